// Autocast: result dtypes against PyTorch's, nesting, the cache of parameter copies, gradients, memory, a trained network.
#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/checkpoint.h>
#include <limpid/autograd/custom_function.h>
#include <limpid/autograd/engine.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/sgd.h>

#include "golden.h"
#include "live_and_dry.h"
#include "op_table.h"

using namespace limpid;
using namespace limpid::test;

namespace {

Inputs as(const Inputs& inputs, DType first, DType rest) {
  Inputs out;
  for (const Tensor& t : inputs) {
    bool floats = is_floating(t.dtype());
    out.push_back(floats ? t.detach().to(out.empty() ? first : rest) : t);
  }
  return out;
}

Tensor parameter(const Shape& shape, const char* name = "w") {
  Tensor w = randn(shape);
  w.set_name(name);
  return w.requires_grad_();
}

}  // namespace

TEST_CASE("every operation gives the dtype that PyTorch's CUDA autocast gives") {
  std::ifstream file(std::string(LIMPID_TEST_DATA) + "/autocast_dtypes.txt");
  std::map<std::string, std::map<std::string, std::string>> expected;
  for (std::string op, inputs, result; file >> op >> inputs >> result;) expected[op][inputs] = result;
  REQUIRE(expected.size() > 60);
  std::set<std::string> ruled;
  for (const AutocastEntry& entry : autocast_table()) ruled.emplace(entry.op);
  // PyTorch has no such operations. Their parts after the first keep the dtype that it gives.
  expected["linear_relu"] = expected["linear"];
  expected["conv2d_relu"] = expected["conv2d"];
  expected["batch_norm_relu"] = expected["batch_norm"];
  int checks = 0;
  for (DType low : {float16, bfloat16}) {
    const std::map<std::string, std::pair<DType, DType>> cases{
        {"f32", {float32, float32}}, {"low", {low, low}}, {"f64", {float64, float64}}, {"mixed", {low, float32}}};
    for (const OpRow& row : op_table()) {
      if (!row.differentiable) continue;  // their results are bool or i64
      if (row.name == "cast") continue;   // gives what it is asked for
      INFO(row.name);
      REQUIRE(expected.count(row.name) == 1);
      for (const auto& [name, result] : expected[row.name]) {
        const auto [first, rest] = cases.at(name);
        for (const OpSample& sample : row.samples) {
          if (sample.inputs.empty() || sample.inputs[0].dim() == 0) continue;  // 0-d tensors promote by other rules
          INFO(sample.label << " " << name << " " << to_string(low));
          std::int64_t floats = std::count_if(sample.inputs.begin(), sample.inputs.end(),
                                              [](const Tensor& t) { return is_floating(t.dtype()); });
          if (name == "mixed" && floats < 2) continue;
          NoGradGuard no_grad;
          Autocast amp({.dtype = low});
          DType got = sample.run(as(sample.inputs, first, rest)).dtype();
          // The sum with an f32 residual is f32, as that of add() is.
          const bool promoted = row.name == "batch_norm_relu" && name == "mixed" && sample.inputs.size() > 3;
          CHECK(got == (promoted ? float32 : result == "low" ? low : result == "f32" ? float32 : float64));
          checks++;
        }
      }
      ruled.erase(row.name);
    }
  }
  CHECK(ruled.empty());  // no rule is unproven
  MESSAGE(checks << " results");
}

TEST_CASE("off, nothing is cast, and wrong dtypes are refused") {
  Tensor x = randn({2, 3}), w = randn({3, 4});
  CHECK_FALSE(autocast_enabled());
  CHECK(matmul(x, w).dtype() == float32);
  CHECK_THROWS_WITH_AS(Autocast({.dtype = float32}), "[autocast] the lower precision is f16 or bf16, got f32", DTypeError);
  CHECK_FALSE(autocast_enabled());
  Autocast amp;
  CHECK(matmul(x, w).dtype() == bfloat16);
  CHECK(matmul(x.to(float64), w.to(float64)).dtype() == float64);
}

TEST_CASE("scopes nest, and end when an exception passes") {
  Tensor x = randn({2, 3}), w = randn({3, 4});
  {
    Autocast outer({.dtype = float16});
    CHECK(matmul(x, w).dtype() == float16);
    {
      Autocast off({.enabled = false});
      CHECK(matmul(x, w).dtype() == float32);
      Autocast inner({.dtype = bfloat16});
      CHECK(matmul(x, w).dtype() == bfloat16);
    }
    CHECK(matmul(x, w).dtype() == float16);
    CHECK_THROWS_AS(matmul(x, randn({5, 5})), ShapeError);  // inside the operation, autocast is off
    CHECK(matmul(x, w).dtype() == float16);
    CHECK(autocast_options().dtype == float16);
  }
  CHECK_FALSE(autocast_enabled());
}

TEST_CASE("parameters are cast once, and the copies go with the outermost scope") {
  Tensor w = parameter({64, 32}), x = randn({8, 32});
  {
    Autocast outer;
    Tensor y = linear(x, w);
    CHECK(autocast_cache_bytes() == 64 * 32 * 2);
    {
      Autocast inner;
      y = y + linear(x, w);
      CHECK(autocast_cache_bytes() == 64 * 32 * 2);
      Autocast other({.dtype = float16});  // another dtype is another copy
      linear(x, w);
      CHECK(autocast_cache_bytes() == 2 * 64 * 32 * 2);
    }
    CHECK(autocast_cache_bytes() == 2 * 64 * 32 * 2);
    Autocast off({.enabled = false});
    CHECK(linear(x, w).dtype() == float32);
  }
  CHECK(autocast_cache_bytes() == 0);
  Autocast uncached({.cache = false});
  linear(x, w);
  linear(x, randn({64, 32}));             // no gradient wanted: no parameter
  linear(x, randn({64, 32}).to(float64).to(float32) * 1.0);
  CHECK(autocast_cache_bytes() == 0);
}

TEST_CASE("only whole f32 leaves that want a gradient are kept") {
  Autocast amp;
  Tensor x = randn({8, 32}), big = parameter({64, 32});
  linear(x, randn({4, 32}));                        // wants none
  linear(x, big.narrow(0, 0, 4));                   // not a leaf
  linear(x, big.detach().narrow(0, 0, 4).requires_grad_());  // part of a larger storage
  linear(x, randn({4, 32}).to(bfloat16).requires_grad_());   // low already
  exp(parameter({3}));                              // stays f32
  CHECK(autocast_cache_bytes() == 0);
  linear(x, big);
  CHECK(autocast_cache_bytes() == big.nbytes() / 2);
  clear_autocast_cache();
  CHECK(autocast_cache_bytes() == 0);
}

TEST_CASE("gradients arrive in the parameter's dtype, in backward inside or outside of the scope") {
  for (bool inside : {false, true}) {
    Tensor w = parameter({4, 3}), b = parameter({4}), x = randn({5, 3}).requires_grad_();
    Tensor loss;
    {
      Autocast amp({.dtype = float16});
      loss = sum(linear(x, w, b));
      if (inside) loss.backward();
    }
    if (!inside) loss.backward();
    for (const Tensor& t : {w, b, x}) CHECK(t.grad().dtype() == float32);
    std::vector<double> expected = x.detach().to(float16).sum({0}).to_vector<double>();
    std::vector<double> got = w.grad().to_vector<double>();
    for (std::size_t i = 0; i < got.size(); i++) CHECK(got[i] == doctest::Approx(expected[i % 3]).epsilon(2e-3));
    CHECK(b.grad().to_vector<double>() == std::vector<double>(4, 5.0));
  }
}

TEST_CASE("a first use under NoGrad does not take later gradients away") {
  Tensor w = parameter({4, 3}), x = randn({5, 3});
  Autocast amp;
  {
    NoGradGuard no_grad;
    linear(x, w);
  }
  Tensor loss = sum(linear(x, w));
  REQUIRE(loss.requires_grad());
  loss.backward();
  CHECK(w.grad().defined());
}

TEST_CASE("two backward passes and a written parameter inside one scope") {
  Tensor w = parameter({1, 1}), x = ones({1, 1});
  Autocast amp;
  for (int i = 0; i < 2; i++) sum(linear(x, w)).backward();  // the first used the cast's history up
  CHECK(w.grad().item() == 2);
  {
    NoGradGuard no_grad;
    w.fill_(3);
  }
  CHECK(linear(x, w).item() == 3);
  CHECK(autocast_cache_bytes() == 2);
}

TEST_CASE("a shared copy collects the gradients of all uses") {
  Tensor w = parameter({1, 1}), x = ones({1, 1});
  Tensor y;
  {
    Autocast amp;
    y = linear(linear(x, w), w);  // w^2
  }
  y.backward();
  double low = w.detach().to(bfloat16).item();
  CHECK(w.grad().item() == doctest::Approx(2 * low).epsilon(1e-2));
}

TEST_CASE("a recomputed part runs in the precision of its forward pass") {
  Tensor w = parameter({6, 6}), x = randn({4, 6}).requires_grad_();
  auto part = [&](const std::vector<Tensor>& in) { return relu(linear(in[0], w)); };
  std::vector<std::vector<double>> grads;
  for (bool recompute : {false, true}) {
    w.set_grad({});
    Tensor loss;
    {
      Autocast amp({.dtype = float16});
      Tensor y = recompute ? checkpoint(part, {x}) : part({x});
      CHECK(y.dtype() == float16);
      loss = sum(y);
    }
    loss.backward();
    CHECK(autocast_cache_bytes() == 0);
    grads.push_back(w.grad().to_vector<double>());
  }
  CHECK(grads[0] == grads[1]);
}

namespace {
struct Doubled : Function<Doubled> {  // differentiates by public functions: they must not be cast
  static Tensor forward(FunctionContext& ctx, const Tensor& x) {
    ctx.save(x);
    return x * 2.0;
  }
  static std::vector<Tensor> backward(FunctionContext&, const Tensor& grad) {
    CHECK_FALSE(autocast_enabled());
    return {matmul(grad, eye_like(grad))};
  }
  static Tensor eye_like(const Tensor& g) { return one_hot(arange(g.size(1)), g.size(1)).to(g.dtype()) * 2.0; }
};
}  // namespace

TEST_CASE("backward is never autocast") {
  Tensor x = randn({2, 3}).requires_grad_();
  Autocast amp;
  Tensor y = Doubled::apply(x);
  CHECK(y.dtype() == float32);
  y.backward(ones({2, 3}));
  CHECK(x.grad().dtype() == float32);
  CHECK(x.grad().to_vector<double>() == std::vector<double>(6, 2.0));
  CHECK(autocast_enabled());
}

TEST_CASE("a network under bf16 autocast trains as PyTorch's") {
  golden::Tensors all = golden::load("amp_cnn"), start = golden::below(all, "start"), end = golden::below(all, "end");
  auto leaf = [&](const char* name) { return start.at(name).clone().requires_grad_(); };
  std::map<std::string, Tensor> p;
  for (const char* name : {"conv1.weight", "bn1.weight", "bn1.bias", "conv2.weight", "conv2.bias", "fc.weight", "fc.bias"})
    p[name] = leaf(name);
  Tensor mean = start.at("bn1.running_mean"), var = start.at("bn1.running_var");
  std::vector<Tensor> parameters;
  for (auto& [name, t] : p) parameters.push_back(t);
  optim::SGD optimizer(parameters, {.lr = 0.1, .momentum = 0.9});
  std::vector<double> losses = all.at("losses").to_vector<double>();
  const Tensor &x = all.at("x"), &t = all.at("t");
  for (std::size_t step = 0; step < losses.size(); step++) {
    optimizer.zero_grad();
    Tensor logits, loss;
    {
      Autocast amp;
      Tensor h = conv2d(x, p["conv1.weight"], {}, {.padding = 1});
      CHECK(h.dtype() == bfloat16);
      h = relu(batch_norm(h, p["bn1.weight"], p["bn1.bias"], mean, var, true));
      CHECK(h.dtype() == bfloat16);
      h = relu(conv2d(max_pool2d(h), p["conv2.weight"], p["conv2.bias"]));
      logits = linear(flatten(adaptive_avg_pool2d(h, 1), 1), p["fc.weight"], p["fc.bias"]);
      loss = cross_entropy(logits, t);
    }
    CHECK(logits.dtype() == bfloat16);
    CHECK(loss.dtype() == float32);
    loss.backward();
    if (step == 0) {
      // bf16 has 8 bits: a sum that rounds the other way moves the result by 2^-8 of it.
      CHECK(golden::difference(logits, all.at("logits")) < 1e-2);
      for (auto& [name, tensor] : p) {
        INFO(name);
        CHECK(tensor.grad().dtype() == float32);
        CHECK(golden::difference(tensor.grad(), all.at("grad." + name)) < 1e-2);
      }
    }
    optimizer.step();
    CHECK(loss.item() == doctest::Approx(losses[step]).epsilon(0.02));
  }
  for (auto& [name, tensor] : p) {
    INFO(name);
    CHECK(golden::difference(tensor, end.at(name)) < 0.05);
  }
  CHECK(golden::difference(mean, end.at("bn1.running_mean")) < 0.02);
}

TEST_CASE("a dry run allocates what an autocast step allocates") {
  for (const char* name : {"lenet-bn", "resnet20"}) {
    for (DType dtype : {bfloat16, float16}) {
      CAPTURE(name);
      CAPTURE(to_string(dtype));
      limpid_test::same_on_both([&](memory::Allocator&, memory::Allocator&) {
        auto model = nn::make_model(name, {.input = {3, 16, 16}, .classes = 4, .seed = 1});
        optim::SGD optimizer(model->parameters(), {.lr = 0.1, .momentum = 0.9});
        Tensor x = randn({4, 3, 16, 16}), y = zeros({4}, {.dtype = int64});
        for (int step = 0; step < 2; step++) {
          optimizer.zero_grad();
          for (int micro = 0; micro < 2; micro++) {
            Tensor loss;
            {
              Autocast amp({.dtype = dtype});
              loss = cross_entropy((*model)(x), y);
            }
            loss.backward();
          }
          optimizer.step();
        }
      });
    }
  }
}
