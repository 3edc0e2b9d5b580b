// Fused operations and nn::fuse(): the same numbers as one operation a layer, fewer bytes kept, the same names.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/fused.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/graph.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/fuse.h>
#include <limpid/nn/models/models.h>
#include <limpid/nn/pool.h>
#include <limpid/nn/summary.h>
#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/workspace_cap.h>

#include "live_and_dry.h"

using namespace limpid;

namespace {

constexpr ConvTail kTails[] = {ConvTail::relu, ConvTail::relu_max_pool, ConvTail::relu_mean};

Tensor separate(const Tensor& x, const Tensor& w, const Tensor& b, const Conv2dOptions& o, ConvTail tail) {
  Tensor y = relu(conv2d(x, w, b, o));
  if (tail == ConvTail::relu_max_pool) return max_pool2d(y, {.kernel_size = 2});
  return tail == ConvTail::relu_mean ? adaptive_avg_pool2d(y, 1) : y;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.shape() == y.shape() && x.dtype() == y.dtype() && std::memcmp(x.raw_data(), y.raw_data(), x.nbytes()) == 0;
}

// The result and the gradients of x, w and b (where there is one) for a gradient of the result that has no symmetry.
template <class Function>
std::vector<Tensor> results(const std::vector<Tensor>& inputs, const Function& function) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : inputs) leaves.push_back(t.defined() ? t.detach().clone().requires_grad_() : t);
  const Tensor y = function(leaves);
  Generator generator(7);
  y.backward(randn(y.shape(), {.dtype = y.dtype()}, generator));
  std::vector<Tensor> out{y.detach()};
  for (const Tensor& t : leaves)
    if (t.defined()) out.push_back(t.grad());
  return out;
}

void check_same_results(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); i++) {
    CAPTURE(i);
    CHECK(same_bits(a[i], b[i]));
  }
}

struct Case {
  std::int64_t n, c, h, w, k, r, s;
  Conv2dOptions o = {};
  bool bias = true;
};

std::vector<Tensor> inputs_of(const Case& c, DType dtype) {
  Generator generator(static_cast<std::uint64_t>(c.n + 10 * c.c + 100 * c.k + 1000 * c.h));
  const TensorOptions options{.dtype = dtype};
  return {randn({c.n, c.c, c.h, c.w}, options, generator), randn({c.k, c.c / c.o.groups, c.r, c.s}, options, generator),
          c.bias ? randn({c.k}, options, generator) : Tensor()};
}

void check_case(const Case& c, DType dtype, ConvTail tail) {
  INFO("n " << c.n << " c " << c.c << " h " << c.h << " w " << c.w << " k " << c.k << " r " << c.r << " s " << c.s << " tail "
            << static_cast<int>(tail) << " " << to_string(dtype));
  const std::vector<Tensor> in = inputs_of(c, dtype);
  const auto fused = results(in, [&](const auto& t) { return conv2d_relu(t[0], t[1], t[2], c.o, tail); });
  const auto plain = results(in, [&](const auto& t) { return separate(t[0], t[1], t[2], c.o, tail); });
  check_same_results(fused, plain);
  NoGradGuard no_grad;  // nothing is kept
  CHECK(same_bits(conv2d_relu(in[0], in[1], in[2], c.o, tail), plain[0]));
}

std::set<std::string> ops_of(const Tensor& root) {
  std::set<std::string> names;
  for (const NodeInfo& node : list_graph(root)) names.insert(node.name);
  return names;
}

// Largest difference over the largest value.
double largest_error(const Tensor& got, const Tensor& want) {
  const auto a = got.to_vector<double>(), b = want.to_vector<double>();
  double error = 0, scale = 1e-30;
  for (std::size_t i = 0; i < a.size(); i++) error = std::max(error, std::fabs(a[i] - b[i])), scale = std::max(scale, std::fabs(b[i]));
  return error / scale;
}

std::int64_t saved_bytes(nn::Module& model, const Shape& input) { return nn::summary(model, input).saved_bytes; }

}  // namespace

TEST_CASE("fused convolutions have the bits of the separate functions: shapes, strides, paddings, groups") {
  const Case cases[] = {
      {2, 3, 9, 8, 5, 3, 3},                                                      // direct
      {1, 1, 6, 7, 8, 3, 3, {.padding = 1}, false},                                //
      {3, 4, 10, 11, 9, 3, 2, {.stride = {2, 1}, .padding = {1, 0}}},              //
      {2, 6, 9, 9, 7, 2, 3, {.padding = {2, 2}, .dilation = {2, 1}}},              //
      {2, 6, 8, 8, 10, 3, 3, {.padding = 1, .groups = 2}},                         //
      {2, 13, 7, 6, 13, 3, 3, {.padding = 1, .groups = 13}},                       // depthwise
      {2, 16, 9, 10, 16, 3, 3, {.padding = 1}},                                    // Winograd for f32
      {3, 17, 14, 13, 33, 3, 3, {}, false},                                        //
      {1, 32, 24, 24, 64, 3, 3},                                                   //
      {2, 40, 8, 8, 520, 3, 3, {.padding = 1}},                                    // wide
      {5, 2, 4, 4, 3, 3, 3},                                                       // windows of 2x2 exactly
      {33, 16, 16, 16, 24, 1, 1},                                                  // several pieces and a rest
  };
  for (const Case& c : cases) {
    for (ConvTail tail : kTails) {
      check_case(c, float32, tail);
      check_case(c, float64, tail);
    }
  }
}

TEST_CASE("fused convolutions: every number of output channels from 1 to 70, direct and Winograd") {
  for (std::int64_t k = 1; k <= 70; k++) {
    const ConvTail tail = kTails[k % 3];
    check_case({1, 3, 7, 6, k, 3, 3}, float32, tail);
    check_case({1, 16, 6, 9, k, 3, 3, {.padding = 1}}, float32, tail);
    check_case({1, 2, 5, 6, k, 2, 2}, float64, tail);
  }
}

TEST_CASE("strided inputs, empty batches, NaN and zeros") {
  const Case c{2, 16, 8, 9, 19, 3, 3, {.padding = 1}};
  std::vector<Tensor> in = inputs_of(c, float32);
  for (ConvTail tail : kTails) {
    const auto run = [&](const Tensor& x) {
      return results({x, in[1], in[2]}, [&](const auto& t) { return conv2d_relu(t[0], t[1], t[2], c.o, tail); })[0];
    };
    const Tensor want = run(in[0]);
    CHECK(same_bits(run(in[0].contiguous(MemoryFormat::channels_last)), want));
    CHECK(same_bits(run(permute(permute(in[0], {3, 2, 1, 0}).contiguous(), {3, 2, 1, 0})), want));
    const Tensor none = conv2d_relu(zeros({0, 16, 8, 9}), in[1], in[2].clone().requires_grad_(), c.o, tail);
    CHECK(none.numel() == 0);
    CHECK(none.shape() == separate(zeros({0, 16, 8, 9}), in[1], in[2], c.o, tail).shape());
    none.backward(zeros(none.shape()));
    // NaN passes, the gradient at 0 is 0, the first of equal maxima has it.
    std::vector<float> values = in[0].to_vector<float>();
    values[5] = std::numeric_limits<float>::quiet_NaN();
    const Tensor odd = from_vector(values, in[0].shape()), flat = zeros(in[1].shape());
    const auto fused = results({odd, in[1], in[2]}, [&](const auto& t) { return conv2d_relu(t[0], t[1], t[2], c.o, tail); });
    const auto plain = results({odd, in[1], in[2]}, [&](const auto& t) { return separate(t[0], t[1], t[2], c.o, tail); });
    for (std::size_t i = 0; i < fused.size(); i++) {
      const auto a = fused[i].to_vector<float>(), b = plain[i].to_vector<float>();
      for (std::size_t at = 0; at < a.size(); at++) {
        INFO("tail " << static_cast<int>(tail) << " result " << i << " at " << at << ": " << a[at] << " and " << b[at]);
        REQUIRE(((std::isnan(a[at]) && std::isnan(b[at])) || a[at] == b[at]));
      }
    }
    const Tensor bias = from_vector(std::vector<float>(19, 0.0f), {19});
    check_same_results(results({in[0], flat, bias}, [&](const auto& t) { return conv2d_relu(t[0], t[1], t[2], c.o, tail); }),
                       results({in[0], flat, bias}, [&](const auto& t) { return separate(t[0], t[1], t[2], c.o, tail); }));
  }
}

TEST_CASE("first layers: gradients of weight and bias without one of the convolution's output") {
  const Case cases[] = {{3, 1, 28, 28, 32, 3, 3},
                        {2, 3, 31, 33, 64, 3, 3},
                        {2, 3, 23, 22, 21, 7, 7, {.stride = 2, .padding = 3}},
                        {2, 15, 9, 9, 10, 3, 3, {.padding = {2, 1}, .dilation = {1, 2}}},
                        {1, 2, 5, 120, 7, 2, 3, {.stride = {1, 3}}, false},
                        {40, 4, 6, 6, 16, 3, 3, {.padding = 1}}};
  for (const Case& c : cases) {
    for (ConvTail tail : kTails) {
      for (DType dtype : {float32, float64}) {
        INFO("c " << c.c << " h " << c.h << " k " << c.k << " tail " << static_cast<int>(tail) << " " << to_string(dtype));
        const std::vector<Tensor> in = inputs_of(c, dtype);
        const auto run = [&](bool fused) {
          return results({in[1], in[2]}, [&](const auto& t) {
            return fused ? conv2d_relu(in[0], t[0], t[1], c.o, tail) : separate(in[0], t[0], t[1], c.o, tail);
          });
        };
        const auto fused = run(true), plain = run(false);
        CHECK(same_bits(fused[0], plain[0]));
        CHECK(same_bits(fused[1], plain[1]));
        if (c.bias) CHECK(largest_error(fused[2], plain[2]) < (dtype == float32 ? 3e-5 : 1e-13));
        // A cap that leaves no room for the quick way: the same numbers but for the order of the sums.
        const WorkspaceCapScope cap(std::size_t{96} << 10);
        const auto tight = run(true);
        CHECK(largest_error(tight[0], plain[0]) < (dtype == float32 ? 1e-5 : 1e-13));
        CHECK(largest_error(tight[1], plain[1]) < (dtype == float32 ? 1e-4 : 1e-12));
      }
    }
  }
}

TEST_CASE("the thread count does not change a bit, and neither does a workspace cap that keeps the algorithm") {
  const int before = cpu::num_threads();
  for (const Case& c : {Case{5, 3, 33, 31, 24, 3, 3}, Case{3, 32, 22, 22, 64, 3, 3}}) {
    for (ConvTail tail : kTails) {
      const std::vector<Tensor> in = inputs_of(c, float32);
      const auto run = [&] {
        return results(in, [&](const auto& t) { return conv2d_relu(t[0], t[1], t[2], c.o, tail); });
      };
      cpu::set_num_threads(1);
      const auto one = run();
      for (int threads : {2, 3, 8}) {
        cpu::set_num_threads(threads);
        check_same_results(run(), one);
      }
      NoGradGuard no_grad;
      const WorkspaceCapScope cap(std::size_t{3} << 20);
      CHECK(same_bits(conv2d_relu(in[0], in[1], in[2], c.o, tail), one[0]));
    }
  }
  cpu::set_num_threads(before);
}

TEST_CASE("errors are those of the separate functions, and what cannot be fused is composed and says why") {
  const Tensor x = zeros({1, 3, 4, 4}), w = zeros({2, 3, 3, 3});
  CHECK_THROWS_AS(conv2d_relu(zeros({1, 4, 4, 4}), w, Tensor(), {}), ShapeError);
  CHECK_THROWS_AS(conv2d_relu(zeros({1, 3, 3, 4}), w, Tensor(), {}, ConvTail::relu_max_pool), ShapeError);
  CHECK_THROWS_AS(linear_relu(x, w), ShapeError);
  CHECK(composed_because(kCpu, float32).empty());
  CHECK(composed_because(kCpu, bfloat16).find("bf16") != std::string::npos);
  CHECK(composed_because({DeviceType::cuda, 0}, float32).find("cuda:0") != std::string::npos);
  const Tensor y = conv2d_relu(x.to(bfloat16), w.to(bfloat16).requires_grad_(), Tensor(), {});
  CHECK(ops_of(y) == std::set<std::string>{"conv2d", "relu"});
  CHECK(ops_of(conv2d_relu(x, w.clone().requires_grad_(), Tensor(), {})) == std::set<std::string>{"conv2d_relu"});
}

TEST_CASE("a bit a value is kept, and an overwritten input is noticed") {
  Tensor x = ones({2, 3, 10, 10}).requires_grad_(), w = ones({12, 3, 3, 3}).requires_grad_();
  const Tensor y = conv2d_relu(x, w, Tensor(), {}, ConvTail::relu_max_pool);
  std::set<std::string> kept;
  const std::vector<NodeInfo> graph = list_graph(y);
  for (const SavedInfo& saved : graph.at(0).saved) {
    kept.insert(saved.what);
    if (saved.what == "bits") CHECK(saved.bytes == 2 * 8 * 8 * 2);  // 12 channels in 2 bytes
  }
  CHECK(kept == std::set<std::string>{"x", "weight", "bits"});
  {
    NoGradGuard no_grad;
    w.fill_(2);
  }
  CHECK_THROWS_AS(y.backward(ones(y.shape())), AutogradError);
}

TEST_CASE("fused models: names, bits of outputs and gradients, fewer bytes kept") {
  struct Row {
    const char* name;
    Shape input;
    std::size_t chains;
    std::int64_t fewer_bytes;  // a sample
  };
  for (const Row& row : {Row{"mlp", {1, 8, 8}, 1, -16}, Row{"seed", {3, 21, 22}, 1, 19 * 20 * (256 - 8)},
                         Row{"lenet", {1, 28, 28}, 3, 24 * 24 * (256 - 8) + 12 * 12 * 256 - 26 * 26 * 4 - 16}}) {
    CAPTURE(row.name);
    const auto plain = nn::make_model(row.name, {.input = row.input}), fused = nn::make_model(row.name, {.input = row.input});
    const auto runs = nn::fuse(*fused);
    CHECK(runs.size() == row.chains);
    for (const auto& run : runs) CHECK(run.composed.empty());
    const auto a = plain->state_dict(), b = fused->state_dict();
    REQUIRE(a.size() == b.size());
    for (const auto& [name, tensor] : a) CHECK(b.count(name) == 1);
    Shape shape = row.input;
    shape.insert(0, 6);
    Generator generator(3);
    const Tensor x = randn(shape, {}, generator), y = from_vector<std::int64_t>({0, 1, 2, 3, 4, 5}, {6});
    for (nn::Module* model : {plain.get(), fused.get()}) cross_entropy((*model)(x), y).backward();
    CHECK(same_bits((*plain)(x), (*fused)(x)));
    const auto pa = plain->named_parameters(), pb = fused->named_parameters();
    for (std::size_t i = 0; i < pa.size(); i++) {
      INFO(pa[i].first);
      const Tensor a_grad = pa[i].second.grad(), b_grad = pb[i].second.grad();
      // The bias of a first convolution is summed together with the weight's gradient, in its order.
      if (pa[i].first == "0.bias" || pa[i].first == "conv1.bias") {
        CHECK(largest_error(b_grad, a_grad) < 1e-5);
      } else {
        CHECK(same_bits(a_grad, b_grad));
      }
    }
    // Of the mlp's hidden layer the next one keeps the values themselves: the bits come on top.
    const std::int64_t fewer = saved_bytes(*plain, row.input) - saved_bytes(*fused, row.input);
    CHECK(fewer == row.fewer_bytes);
    nn::unfuse(*fused);
    CHECK(nn::chain_runs(*fused).empty());
    CHECK(saved_bytes(*fused, row.input) == saved_bytes(*plain, row.input));
  }
}

TEST_CASE("fused models with batch norm: bits of outputs, gradients and running statistics") {
  struct Row {
    const char* name;
    Shape input;
    std::size_t chains;
  };
  for (const Row& row : {Row{"lenet-bn", {1, 12, 13}, 3}, Row{"resnet20", {3, 8, 9}, 19}, Row{"resnet9", {3, 9, 8}, 8},
                         Row{"resnet18", {3, 5, 6}, 17}}) {
    CAPTURE(row.name);
    const auto plain = nn::make_model(row.name, {.input = row.input}), fused = nn::make_model(row.name, {.input = row.input});
    CHECK(nn::fuse(*fused).size() == row.chains);
    Shape shape = row.input;
    shape.insert(0, 4);
    Generator generator(3);
    const Tensor x = randn(shape, {}, generator), y = from_vector<std::int64_t>({0, 1, 2, 3}, {4});
    for (nn::Module* model : {plain.get(), fused.get()}) cross_entropy((*model)(x), y).backward();
    const auto pa = plain->named_parameters(), pb = fused->named_parameters();
    for (std::size_t i = 0; i < pa.size(); i++) {
      INFO(pa[i].first);
      CHECK(same_bits(pa[i].second.grad(), pb[i].second.grad()));
    }
    const auto a = plain->state_dict(), b = fused->state_dict();
    REQUIRE(a.size() == b.size());
    for (const auto& [name, tensor] : a) CHECK(same_bits(tensor, b.at(name)));
    plain->eval(), fused->eval();
    CHECK(same_bits((*plain)(x), (*fused)(x)));
    CHECK(saved_bytes(*fused, row.input) <= saved_bytes(*plain, row.input) * 1.04);
  }
}

TEST_CASE("a gradient that somebody else can see is not overwritten") {
  Tensor x = ones({2, 3, 4, 4}).contiguous(MemoryFormat::channels_last).requires_grad_(), w = ones({3}), b = zeros({3});
  Tensor mean = zeros({3}), var = ones({3});
  for (int form = 0; form < 3; form++) {
    const Tensor y = form == 0   ? batch_norm_relu(x, Tensor(), w, b, mean, var, false)
                     : form == 1 ? batch_norm_relu(x, x, w, b, mean, var, false)
                                 : conv2d_relu(x, full({3, 3, 1, 1}, -1), Tensor(), {});
    const Tensor grad = ones(y.shape()).contiguous(MemoryFormat::channels_last);
    y.backward(grad);
    CHECK(same_bits(grad, ones(y.shape())));
  }
}

TEST_CASE("the summary lists every layer of a fused model, and the bytes that it keeps") {
  const auto model = nn::make_model("lenet", {.input = {1, 28, 28}});
  const nn::ModelSummary plain = nn::summary(*model, {1, 28, 28});
  nn::fuse(*model);
  const nn::ModelSummary fused = nn::summary(*model, {1, 28, 28});
  REQUIRE(fused.layers.size() == plain.layers.size());
  for (std::size_t i = 0; i < plain.layers.size(); i++) {
    CHECK(fused.layers[i].name == plain.layers[i].name);
    CHECK(fused.layers[i].output_bytes == plain.layers[i].output_bytes);
    CHECK(fused.layers[i].flops == plain.layers[i].flops);
  }
  // conv1: 26x26 pixels of 32 bits; conv2: its input of 32 channels and 24x24 pixels of 64 bits.
  CHECK(fused.layers[0].saved_bytes == 26 * 26 * 4);
  CHECK(fused.layers[2].saved_bytes == 26 * 26 * 32 * 4 + 24 * 24 * 8);
}

TEST_CASE("hooks, derived modules and replaced children keep their layer to itself") {
  struct MyReLU : nn::ReLU {
    Tensor forward(const Tensor& x) override { return relu(x) * 2; }
  };
  nn::Sequential net(nn::Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = 3}), nn::ReLU(), nn::MaxPool2d(2),
                     nn::Conv2d({.in_channels = 4, .out_channels = 4, .kernel_size = 1}), MyReLU(), nn::MaxPool2d(3),
                     nn::Conv2d({.in_channels = 4, .out_channels = 2, .kernel_size = 1}), nn::ReLU(),
                     nn::MaxPool2d({.kernel_size = 2, .ceil_mode = true}), nn::Flatten());
  const auto runs = nn::fuse(net);
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].parts == std::vector<std::string>{"0", "1", "2"});
  CHECK(runs[0].function == "conv2d_relu_max_pool2d");
  CHECK(runs[1].parts == std::vector<std::string>{"6", "7"});
  const Tensor x = ones({1, 3, 24, 24});
  const Tensor want = net(x).detach();
  int called = 0;
  const std::uint64_t hook = net[1].register_forward_hook([&](nn::Module&, const Tensor&, const Tensor&) {
    called++;
    return Tensor();
  });
  CHECK(same_bits(net(x), want));
  CHECK(called == 1);
  CHECK(nn::chain_runs(net)[0].composed == "1 has a hook");
  CHECK(nn::to_string(nn::chain_runs(net)) ==
        "0 + 1 + 2: conv2d_relu_max_pool2d, one by one: 1 has a hook\n6 + 7: conv2d_relu\n");
  net[1].remove_hook(hook);
  CHECK(nn::chain_runs(net)[0].composed.empty());
  {
    const Autocast amp({.dtype = bfloat16});
    CHECK(nn::chain_runs(net)[0].composed.find("autocast") != std::string::npos);
    CHECK(ops_of(net(x)).count("conv2d") == 1);
  }
  net.replace_child("1", std::make_shared<nn::Identity>());
  CHECK(nn::chain_runs(net).empty());
  CHECK_THROWS_AS(net(ones({1, 5, 24, 24})), ShapeError);
}

TEST_CASE("chains inside Residual's main path") {
  nn::Residual block({{"conv1", nn::Conv2d({.in_channels = 4, .out_channels = 4, .kernel_size = 3, .padding = 1})},
                      {"relu1", nn::ReLU()},
                      {"conv2", nn::Conv2d({.in_channels = 4, .out_channels = 4, .kernel_size = 3, .padding = 1})}});
  const Tensor x = ones({1, 4, 5, 5});
  const Tensor want = block(x).detach();
  CHECK(nn::fuse(block).size() == 1);
  CHECK(same_bits(block(x), want));
  CHECK(ops_of(block(x)).count("conv2d_relu") == 1);
}

TEST_CASE("a fused step leaves the same trace dry and live") {
  for (const char* name : {"mlp", "seed", "lenet", "lenet-bn", "resnet20"}) {
    CAPTURE(name);
    const bool colour = std::string(name) == "seed" || std::string(name) == "resnet20";
    const Shape input = colour ? Shape{3, 20, 21} : Shape{1, 28, 28};
    const limpid_test::Program program = [&](memory::Allocator&, memory::Allocator&) {
      const auto model = nn::make_model(name, {.input = input});
      nn::fuse(*model);
      Shape shape = input;
      shape.insert(0, 5);
      for (int step = 0; step < 2; step++) {
        cross_entropy((*model)(ones(shape)), zeros({5}, {.dtype = int64})).backward();
      }
    };
    limpid_test::check_same(limpid_test::run_live(program), limpid_test::run_dry(program));
  }
}
