// Layers and losses against PyTorch (golden/make_nn_golden.py), start values, and the sentences of their errors.
#include <functional>
#include <set>

#include <limpid/autograd/checkpoint.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/dropout.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/init.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/loss.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>

#include "golden.h"

using namespace limpid;
using Make = std::function<std::shared_ptr<nn::Module>()>;

namespace {

template <class M>
Make make(M (*f)()) {
  return [f] { return std::make_shared<M>(f()); };
}
#define LAYER(...) make(+[] { return __VA_ARGS__; })

std::map<std::string, Make> layers() {
  using namespace limpid::nn;
  return {
      {"linear", LAYER(Linear({.in_features = 7, .out_features = 3}))},
      {"linear_no_bias_3d", LAYER(Linear({.in_features = 5, .out_features = 4, .bias = false}))},
      {"conv", LAYER(Conv2d({.in_channels = 3, .out_channels = 5, .kernel_size = 3}))},
      {"conv_all", LAYER(Conv2d({.in_channels = 4,
                                 .out_channels = 6,
                                 .kernel_size = {3, 2},
                                 .stride = {2, 1},
                                 .padding = {1, 2},
                                 .dilation = {1, 3},
                                 .groups = 2}))},
      {"conv_depthwise",
       LAYER(
           Conv2d({.in_channels = 5, .out_channels = 5, .kernel_size = 3, .padding = 1, .groups = 5, .bias = false}))},
      {"conv_1x1_stride", LAYER(Conv2d({.in_channels = 3, .out_channels = 7, .kernel_size = 1, .stride = 2}))},
      {"conv_dilated",
       LAYER(Conv2d({.in_channels = 2, .out_channels = 3, .kernel_size = 3, .padding = 2, .dilation = 2}))},
      {"conv_5x5", LAYER(Conv2d({.in_channels = 1, .out_channels = 6, .kernel_size = 5, .padding = 2}))},
      {"bn1d_train", LAYER(BatchNorm1d({.num_features = 3}))},
      {"bn1d_3d_train", LAYER(BatchNorm1d({.num_features = 3, .eps = 1e-3, .momentum = 0.3}))},
      {"bn1d_eval", LAYER(BatchNorm1d({.num_features = 4}))},
      {"bn2d_train", LAYER(BatchNorm2d({.num_features = 5}))},
      {"bn2d_eval", LAYER(BatchNorm2d({.num_features = 5}))},
      {"bn2d_cumulative", LAYER(BatchNorm2d({.num_features = 3, .momentum = std::nullopt}))},
      {"bn2d_no_affine", LAYER(BatchNorm2d({.num_features = 3, .affine = false}))},
      {"bn2d_no_track_eval", LAYER(BatchNorm2d({.num_features = 3, .track_running_stats = false}))},
      {"layernorm", LAYER(LayerNorm({.normalized_shape = {4, 5}}))},
      {"layernorm_no_bias", LAYER(LayerNorm({.normalized_shape = {7}, .eps = 1e-3, .bias = false}))},
      {"layernorm_plain", LAYER(LayerNorm({.normalized_shape = {7}, .elementwise_affine = false}))},
      {"groupnorm", LAYER(GroupNorm({.num_groups = 3, .num_channels = 6}))},
      {"groupnorm_2d", LAYER(GroupNorm({.num_groups = 2, .num_channels = 6, .affine = false}))},
      {"relu", LAYER(ReLU())},
      {"leaky_relu", LAYER(LeakyReLU({.negative_slope = 0.2}))},
      {"elu", LAYER(ELU({.alpha = 0.7}))},
      {"gelu", LAYER(GELU())},
      {"gelu_tanh", LAYER(GELU({.tanh_approximation = true}))},
      {"silu", LAYER(SiLU())},
      {"sigmoid", LAYER(Sigmoid())},
      {"tanh", LAYER(Tanh())},
      {"softmax", LAYER(Softmax())},
      {"softmax_dim1", LAYER(Softmax({.dim = 1}))},
      {"maxpool", LAYER(MaxPool2d(2))},
      {"maxpool_all",
       LAYER(
           MaxPool2d({.kernel_size = {3, 2}, .stride = {2, 1}, .padding = 1, .dilation = {1, 2}, .ceil_mode = true}))},
      {"maxpool_overlap", LAYER(MaxPool2d({.kernel_size = 3, .stride = 2, .padding = 1}))},
      {"avgpool", LAYER(AvgPool2d(2))},
      {"avgpool_ceil", LAYER(AvgPool2d({.kernel_size = {3, 2}, .stride = 2, .padding = 1, .ceil_mode = true}))},
      {"avgpool_no_pad_count",
       LAYER(AvgPool2d({.kernel_size = 3, .stride = 2, .padding = 1, .count_include_pad = false}))},
      {"adaptive_1", LAYER(AdaptiveAvgPool2d(1))},
      {"adaptive_3x2", LAYER(AdaptiveAvgPool2d({3, 2}))},
      {"flatten", LAYER(Flatten())},
      {"flatten_1_2", LAYER(Flatten({.start_dim = 1, .end_dim = 2}))},
  };
}

Tensor leaf(const Tensor& x) {
  Tensor copy = x.clone();
  copy.requires_grad_();
  return copy;
}

}  // namespace

TEST_CASE("layers agree with PyTorch forward and backward") {
  auto golden_file = golden::load("layers");
  std::set<std::string> in_file, tested;
  for (const auto& [name, tensor] : golden_file)
    if (name.ends_with(".y")) in_file.insert(name.substr(0, name.size() - 2));
  for (const auto& [name, make_layer] : layers()) {
    CAPTURE(name);
    tested.insert(name);
    auto expected = golden::below(golden_file, name);
    REQUIRE(expected.count("y") == 1);
    auto layer = make_layer();
    layer->to(float64);
    layer->load_state_dict(golden::below(expected, "param"));
    layer->train(!name.ends_with("_eval"));
    for (int earlier = 0; expected.count(concat("x", earlier + 1)); earlier++) (*layer)(expected[concat("x", earlier)]);
    Tensor x = leaf(expected["x"]);
    Tensor y = (*layer)(x);
    CHECK(golden::difference(y, expected["y"]) <= 1e-12);
    y.backward(expected["g"]);
    CHECK(golden::difference(x.grad(), expected["gx"]) <= 1e-11);
    auto grads = golden::below(expected, "grad");
    CHECK(grads.size() == layer->named_parameters().size());
    for (auto& [parameter, tensor] : layer->named_parameters()) {
      CAPTURE(parameter);
      CHECK(golden::difference(tensor.grad(), grads[parameter]) <= 1e-11);
    }
    auto after = golden::below(expected, "after");
    CHECK(after.size() == layer->named_buffers().size());
    for (auto& [buffer, tensor] : layer->named_buffers()) {
      CAPTURE(buffer);
      CHECK(golden::difference(tensor, after[buffer]) <= 1e-12);
    }
  }
  CHECK(in_file == tested);
}

TEST_CASE("layers agree with PyTorch on channels_last input") {
  auto golden_file = golden::load("layers");
  for (const auto& [name, make_layer] : layers()) {
    auto expected = golden::below(golden_file, name);
    if (expected["x"].dim() != 4 || name == "bn2d_cumulative") continue;
    CAPTURE(name);
    auto layer = make_layer();
    layer->to(float64);
    layer->load_state_dict(golden::below(expected, "param"));
    layer->train(!name.ends_with("_eval"));
    Tensor x = contiguous(expected["x"], MemoryFormat::channels_last).clone();
    x.requires_grad_();
    Tensor y = (*layer)(x);
    CHECK(golden::difference(y, expected["y"]) <= 1e-12);
    y.backward(
        contiguous(expected["g"], expected["g"].dim() == 4 ? MemoryFormat::channels_last : MemoryFormat::contiguous));
    CHECK(golden::difference(x.grad(), expected["gx"]) <= 1e-11);
  }
}

TEST_CASE("losses agree with PyTorch") {
  auto file = golden::load("losses");
  std::map<std::string, std::function<Tensor(const Tensor&, const Tensor&)>> losses;
  std::pair<const char*, Reduction> reductions[] = {
      {"none", Reduction::none}, {"mean", Reduction::mean}, {"sum", Reduction::sum}};
  for (auto [tag, reduction] : reductions) {
    for (bool smooth : {false, true}) {
      for (bool weighted : {false, true}) {
        std::string name = concat("ce_", tag, smooth ? "_smooth" : "_hard", weighted ? "_weighted" : "_plain");
        losses[name] = nn::CrossEntropyLoss({.weight = weighted ? file.at(name + ".w") : Tensor(),
                                             .label_smoothing = smooth ? 0.1 : 0,
                                             .reduction = reduction});
      }
    }
    losses[concat("mse_", tag)] = nn::MSELoss({.reduction = reduction});
    losses[concat("l1_", tag)] = nn::L1Loss({.reduction = reduction});
    losses[concat("smooth_l1_", tag)] = nn::SmoothL1Loss({.beta = 0.7, .reduction = reduction});
    losses[concat("bce_", tag)] = nn::BCEWithLogitsLoss({.reduction = reduction});
  }
  losses["ce_dense"] = nn::CrossEntropyLoss({.ignore_index = 3, .label_smoothing = 0.2});
  losses["nll"] = nn::NLLLoss();
  losses["nll_weighted_sum"] =
      nn::NLLLoss({.weight = file.at("nll_weighted_sum.w"), .ignore_index = 4, .reduction = Reduction::sum});
  losses["nll_dense_none"] = nn::NLLLoss({.reduction = Reduction::none});
  std::size_t in_file = 0;
  for (const auto& [name, tensor] : file) in_file += name.ends_with(".y");
  CHECK(losses.size() == in_file);
  for (const auto& [name, loss] : losses) {
    CAPTURE(name);
    auto expected = golden::below(file, name);
    Tensor x = leaf(expected["x"]);
    Tensor y = loss(x, expected["t"]);
    CHECK(golden::difference(y, expected["y"]) <= 1e-12);
    y.backward(expected["g"]);
    CHECK(golden::difference(x.grad(), expected["gx"]) <= 1e-12);
  }
}

namespace {

struct Stats {
  double mean, std, min, max;
};
Stats stats_of(const Tensor& t) {
  auto v = t.to_vector<double>();
  double mean = 0, squares = 0;
  for (double x : v) mean += x;
  mean /= static_cast<double>(v.size());
  for (double x : v) squares += (x - mean) * (x - mean);
  auto [low, high] = std::minmax_element(v.begin(), v.end());
  return {mean, std::sqrt(squares / static_cast<double>(v.size() - 1)), *low, *high};
}

// Means within 5 standard errors of each other (and of 0), spreads within 5 %, ends of uniform ranges within 5 %.
void check_like(const Tensor& ours, const Tensor& theirs, bool uniform) {
  Stats a = stats_of(ours);
  auto b = theirs.to_vector<double>();
  double error = b[1] / std::sqrt(static_cast<double>(ours.numel()));
  CHECK(std::abs(a.mean) <= 5 * error);
  double wide = ours.numel() < 1000 ? 0.2 : 0.05;
  CHECK(std::abs(a.std / b[1] - 1) <= wide);
  if (!uniform) return;
  CHECK(std::abs(a.min / b[2] - 1) <= wide);
  CHECK(std::abs(a.max / b[3] - 1) <= wide);
}

}  // namespace

TEST_CASE("start values are distributed as PyTorch's") {
  auto file = golden::load("init");
  Generator generator(5);
  nn::Linear linear({.in_features = 300, .out_features = 200});
  check_like(linear.weight, file["linear.weight"], true);
  check_like(linear.bias, file["linear.bias"], true);
  CHECK(stats_of(linear.weight).max <= 1 / std::sqrt(300.0));
  CHECK(stats_of(linear.weight).min >= -1 / std::sqrt(300.0));
  nn::Conv2d conv({.in_channels = 32, .out_channels = 64, .kernel_size = 5, .groups = 2});
  check_like(conv.weight, file["conv.weight"], true);
  check_like(conv.bias, file["conv.bias"], true);
  CHECK(stats_of(conv.weight).max <= 1 / std::sqrt(16 * 25.0) + 1e-7);

  using namespace nn::init;
  Tensor w = empty({128, 32, 3, 3});
  kaiming_uniform(w, {}, generator);
  check_like(w, file["kaiming_uniform"], true);
  kaiming_uniform(w, {.mode = FanMode::fan_out, .nonlinearity = Nonlinearity::tanh}, generator);
  check_like(w, file["kaiming_uniform_fan_out_tanh"], true);
  kaiming_normal(w, {.mode = FanMode::fan_out, .nonlinearity = Nonlinearity::relu}, generator);
  check_like(w, file["kaiming_normal"], false);
  xavier_uniform(w, 1.5, generator);
  check_like(w, file["xavier_uniform"], true);
  xavier_normal(w, 1, generator);
  check_like(w, file["xavier_normal"], false);
  constant(w, 0.25);
  CHECK(stats_of(w).min == 0.25);
  CHECK(stats_of(w).max == 0.25);
  normal(w, 3, 0.5, generator);
  CHECK(std::abs(stats_of(w).mean - 3) < 0.02);
  CHECK(std::abs(stats_of(w).std - 0.5) < 0.01);
}

TEST_CASE("start values depend on the generator's seed alone") {
  Tensor a = empty({7, 5}), b = empty({7, 5});
  Generator first(3), second(3);
  nn::init::uniform(a, -1, 1, first);
  nn::init::uniform(b, -1, 1, second);
  CHECK(a.to_vector<float>() == b.to_vector<float>());
  nn::init::uniform(b, -1, 1, second);
  CHECK(a.to_vector<float>() != b.to_vector<float>());
}

TEST_CASE("orthogonal start values") {
  for (Shape shape : {Shape{5, 9}, Shape{9, 5}, Shape{6, 2, 3}, Shape{1, 4}, Shape{4, 4}}) {
    CAPTURE(to_string(shape));
    Tensor w = empty(shape, {.dtype = float64});
    Generator generator(11);
    nn::init::orthogonal(w, 2.0, generator);
    Tensor m = w.reshape({shape[0], -1});
    if (m.size(0) > m.size(1)) m = m.t();
    Tensor gram = matmul(m, m.t());
    for (std::int64_t i = 0; i < gram.size(0); i++)
      for (std::int64_t j = 0; j < gram.size(1); j++) CHECK(gram[i][j].item() == doctest::Approx(i == j ? 4.0 : 0.0));
  }
  nn::init::orthogonal(empty({0, 3}));
}

TEST_CASE("dropout: scale, rate, eval mode, keys") {
  random_state() = RandomState();
  nn::Dropout layer({.p = 0.25});
  Tensor x = ones({64, 500});
  Tensor y = layer(x);
  double kept = 0;
  for (double v : y.to_vector<double>()) {
    CHECK((v == 0 || v == doctest::Approx(1 / 0.75)));
    kept += v != 0;
  }
  CHECK(std::abs(kept / 32000 - 0.75) < 0.02);
  CHECK(layer(x).to_vector<float>() != y.to_vector<float>());  // the next occurrence has another mask
  begin_micro_batch(0, 0);
  CHECK(layer(x).to_vector<float>() == y.to_vector<float>());
  // Half a batch with its offset drops what the whole batch dropped there.
  begin_micro_batch(0, 32);
  Tensor half = layer(narrow(x, 0, 32, 32));
  CHECK(half.to_vector<float>() == narrow(y, 0, 32, 32).to_vector<float>());
  begin_micro_batch(1, 0);
  CHECK(layer(x).to_vector<float>() != y.to_vector<float>());
  layer.eval();
  CHECK(layer(x).is_same(x));
  Tensor all = nn::Dropout({.p = 1.0})(x);
  CHECK(all.sum().item() == 0);
  random_state() = RandomState();
}

TEST_CASE("printed as PyTorch prints") {
  using namespace limpid::nn;
  CHECK(Conv2d({.in_channels = 3, .out_channels = 64, .kernel_size = 3}).describe() ==
        "Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1))");
  CHECK(Conv2d({.in_channels = 4,
                .out_channels = 6,
                .kernel_size = {3, 2},
                .padding = 1,
                .dilation = 2,
                .groups = 2,
                .bias = false})
            .describe() ==
        "Conv2d(4, 6, kernel_size=(3, 2), stride=(1, 1), padding=(1, 1), dilation=(2, 2), groups=2, bias=False)");
  CHECK(Linear({.in_features = 4, .out_features = 2}).describe() == "Linear(in_features=4, out_features=2, bias=True)");
  CHECK(BatchNorm2d({.num_features = 8}).describe() ==
        "BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)");
  CHECK(LayerNorm({.normalized_shape = {4, 5}}).describe() == "LayerNorm((4, 5), eps=1e-05, elementwise_affine=True)");
  CHECK(LayerNorm({.normalized_shape = {4}}).describe() == "LayerNorm((4,), eps=1e-05, elementwise_affine=True)");
  CHECK(GroupNorm({.num_groups = 2, .num_channels = 4}).describe() == "GroupNorm(2, 4, eps=1e-05, affine=True)");
  CHECK(MaxPool2d(2).describe() == "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)");
  CHECK(AvgPool2d(3).describe() == "AvgPool2d(kernel_size=3, stride=3, padding=0)");
  CHECK(AdaptiveAvgPool2d({2, 1}).describe() == "AdaptiveAvgPool2d(output_size=(2, 1))");
  CHECK(Flatten().describe() == "Flatten(start_dim=1, end_dim=-1)");
  CHECK(ReLU().describe() == "ReLU()");
  CHECK(Sequential(ReLU(), Sequential(Tanh(), Sigmoid())).repr() ==
        "Sequential(\n  (0): ReLU()\n  (1): Sequential(\n    (0): Tanh()\n    (1): Sigmoid()\n  )\n)");
}

TEST_CASE("bad options and inputs are named") {
  using namespace limpid::nn;
  auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(message([] { Linear({.out_features = 2}); }) == "[Linear] in_features must be at least 1, got 0");
  CHECK(message([] {
          Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = {3, 0}});
        }) == "[Conv2d] kernel_size must be at least 1, got (3, 0)");
  CHECK(message([] { Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = 3, .groups = 2}); }) ==
        "[Conv2d] in_channels and out_channels must be multiples of groups, got 3, 4 and groups 2");
  CHECK_THROWS_AS(Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = 3, .stride = 0}), ArgumentError);
  CHECK_THROWS_AS(Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = 3, .padding = -1}), ArgumentError);
  CHECK_THROWS_AS(Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = 3, .dilation = 0}), ArgumentError);
  CHECK_THROWS_AS(Conv2d({.in_channels = 3, .kernel_size = 3}), ArgumentError);
  CHECK_THROWS_AS(MaxPool2d(0), ArgumentError);
  CHECK_THROWS_AS(MaxPool2d({.kernel_size = 2, .padding = 2}), ArgumentError);
  CHECK_THROWS_AS(AvgPool2d({.kernel_size = 2, .stride = -1}), ArgumentError);
  CHECK_THROWS_AS(AdaptiveAvgPool2d(0), ArgumentError);
  CHECK_THROWS_AS(BatchNorm2d(BatchNormOptions{}), ArgumentError);
  CHECK_THROWS_AS(BatchNorm2d({.num_features = 2, .momentum = 1.5}), ArgumentError);
  CHECK_THROWS_AS(BatchNorm2d({.num_features = 2, .eps = -1}), ArgumentError);
  CHECK_THROWS_AS(LayerNorm(LayerNormOptions{}), ArgumentError);
  CHECK_THROWS_AS(LayerNorm({.normalized_shape = {3, 0}}), ArgumentError);
  CHECK_THROWS_AS(GroupNorm({.num_groups = 2, .num_channels = 3}), ArgumentError);
  CHECK_THROWS_AS(Dropout({.p = 1.1}), ArgumentError);
  CHECK_THROWS_AS(CrossEntropyLoss({.label_smoothing = 2}), ArgumentError);
  CHECK_THROWS_AS(CrossEntropyLoss({.weight = ones({2, 2})}), ShapeError);
  CHECK_THROWS_AS(SmoothL1Loss({.beta = -1}), ArgumentError);

  Conv2d conv({.in_channels = 3, .out_channels = 4, .kernel_size = 3});
  CHECK(message([&] { conv(zeros({8, 4, 32, 32})); }) == "[Conv2d] expects [N,3,H,W], input is f32[8,4,32,32] cpu");
  CHECK_THROWS_AS(conv(zeros({3, 32, 32})), ShapeError);
  CHECK_THROWS_AS(conv(zeros({1, 3, 2, 2})), ShapeError);  // smaller than the kernel
  CHECK_THROWS_AS(conv(zeros({1, 3, 5, 5}, {.dtype = float64})), DTypeError);
  CHECK_THROWS_AS(conv(Tensor()), ShapeError);
  CHECK_THROWS_AS(Linear({.in_features = 3, .out_features = 2})(zeros({2, 4})), ShapeError);
  BatchNorm2d norm({.num_features = 3});
  CHECK(message([&] {
          norm(zeros({1, 3, 1, 1}));
        }) ==
        "[BatchNorm2d] expected more than 1 value per channel when the batch's statistics are used, got 1 (input "
        "f32[1,3,1,1] cpu)");
  CHECK(norm.num_batches_tracked.item_int() == 0);
  CHECK_THROWS_AS(norm(zeros({2, 4, 2, 2})), ShapeError);
  CHECK_THROWS_AS(norm(zeros({2, 3})), ShapeError);
  norm.eval();
  CHECK(norm(zeros({1, 3, 1, 1})).numel() == 3);
  CHECK_THROWS_AS(BatchNorm1d({.num_features = 3})(zeros({2, 3, 4, 4})), ShapeError);
  CHECK_THROWS_AS(LayerNorm({.normalized_shape = {3, 4}})(zeros({2, 4})), ShapeError);
  CHECK_THROWS_AS(GroupNorm({.num_groups = 1, .num_channels = 3})(zeros({2, 4})), ShapeError);
  CHECK(message([] { CrossEntropyLoss()(zeros({2, 3}), from_vector<std::int64_t>({0, 3}, {2})); }) != "");
  CHECK_THROWS_AS(CrossEntropyLoss()(zeros({2, 3}), from_vector<std::int64_t>({0, 3}, {2})), IndexError);
  CHECK_THROWS_AS(nn::init::kaiming_normal(zeros({3})), ShapeError);
  CHECK_THROWS_AS(nn::init::orthogonal(zeros({3})), ShapeError);
  CHECK_THROWS_AS(nn::init::uniform(zeros({3}), 1, 0), ArgumentError);
  CHECK_THROWS_AS(nn::init::uniform(zeros({3}, {.dtype = int64})), DTypeError);
  CHECK_THROWS_AS(nn::init::normal(zeros({3}), 0, -1), ArgumentError);
}

TEST_CASE("empty batches pass") {
  using namespace limpid::nn;
  CHECK(Linear({.in_features = 3, .out_features = 2})(zeros({0, 3})).shape() == Shape{0, 2});
  CHECK(Conv2d({.in_channels = 3, .out_channels = 2, .kernel_size = 3})(zeros({0, 3, 5, 5})).shape() ==
        Shape{0, 2, 3, 3});
  CHECK(MaxPool2d(2)(zeros({0, 3, 4, 4})).shape() == Shape{0, 3, 2, 2});
  CHECK(ReLU()(zeros({0, 3})).shape() == Shape{0, 3});
}

TEST_CASE("a recomputed forward does not move the running statistics a second time") {
  nn::BatchNorm1d bn({.num_features = 3});
  Tensor x = rand({5, 3}, {.requires_grad = true});
  Tensor y = checkpoint([&](const std::vector<Tensor>& in) { return bn(in[0]); }, {x});
  auto mean = bn.running_mean.to_vector<double>();
  CHECK(bn.num_batches_tracked.item_int() == 1);
  sum(square(y)).backward();
  CHECK(bn.running_mean.to_vector<double>() == mean);
  CHECK(bn.num_batches_tracked.item_int() == 1);
}
