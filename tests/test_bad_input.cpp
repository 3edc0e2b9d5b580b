// The library under hostile arguments: every misuse is a typed error with both values, never a crash or a silent result.
// Errors of shapes and dtypes that belong to one op stand in that op's tests; here are the ways of misuse they share.
#include <cmath>
#include <limits>

#include <limpid/autograd/checkpoint.h>
#include <limpid/autograd/custom_function.h>
#include <limpid/memory/allocator.h>
#include <limpid/nn/linear.h>
#include <limpid/optim/sgd.h>

#include "tensor_test.h"

using namespace limpid;

namespace {
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor image() { return ones({1, 1, 4, 4}); }

struct Forgetful : nn::Module {  // a layer as a plain member, not registered
  nn::Linear layer{{.in_features = 2, .out_features = 2}};
  Tensor forward(const Tensor& x) override { return layer(x); }
};
struct WrongShape : Function<WrongShape> {
  static Tensor forward(FunctionContext&, const Tensor& x) { return x * 2.0; }
  static std::vector<Tensor> backward(FunctionContext&, const Tensor&) { return {ones({7})}; }
};
struct WrongDType : Function<WrongDType> {
  static Tensor forward(FunctionContext&, const Tensor& x) { return x * 2.0; }
  static std::vector<Tensor> backward(FunctionContext&, const Tensor& g) { return {g.to(float64)}; }
};
}  // namespace

TEST_CASE("huge windows are refused before they overflow") {
  Tensor w = ones({1, 1, 3, 3});
  CHECK_THROWS_WITH_AS(conv2d(image(), w, {}, {.dilation = kMax}), doctest::Contains("[conv2d] dilation must be at most"),
                       ArgumentError);
  CHECK_THROWS_AS(conv2d(image(), w, {}, {.dilation = Pair(std::int64_t{1} << 62, 1)}), ArgumentError);
  CHECK_THROWS_AS(conv2d(image(), w, {}, {.padding = Pair(kMax, 0)}), ArgumentError);
  CHECK_THROWS_AS(conv2d(image(), w, {}, {.stride = kMax}), ArgumentError);
  CHECK_THROWS_AS(conv2d(image(), w, {}, {.groups = std::int64_t{1} << 62}), ArgumentError);
  CHECK_THROWS_AS(max_pool2d(image(), {.padding = kMax}), ArgumentError);
  CHECK_THROWS_AS(avg_pool2d(image(), {.kernel_size = kMax, .padding = kMax / 4}), ArgumentError);
  CHECK_THROWS_AS(pad(image(), {kMax, 0}), ArgumentError);
  CHECK_THROWS_AS(pad(image(), {kMax, kMax}), ArgumentError);
  CHECK_THROWS_AS(pad(image(), {kMin, 0}), ArgumentError);
}

TEST_CASE("sizes that overflow, or that no machine holds") {
  Tensor a = ones({2, 3});
  CHECK_THROWS_AS(a.expand({kMax, kMax, 2, 3}), ShapeError);
  CHECK_THROWS_AS(a.reshape({std::int64_t{1} << 32, std::int64_t{1} << 32}), ShapeError);
  CHECK_THROWS_AS(a.narrow(0, kMax, 1), IndexError);
  CHECK_THROWS_AS(arange(kMax), Error);
  CHECK_THROWS_AS(randperm(kMax), Error);
  CHECK_THROWS_AS(arange(std::int64_t{1} << 45), memory::OutOfMemoryError);
  CHECK_THROWS_AS(ones({std::int64_t{1} << 42}), memory::OutOfMemoryError);
  CHECK_THROWS_AS(adaptive_avg_pool2d(image(), {1 << 21, 1 << 21}), memory::OutOfMemoryError);
  CHECK_THROWS_AS(randint(kMin, kMax, {2}), ArgumentError);
  CHECK_NOTHROW(memory::host_allocator().check());
}

TEST_CASE("values that a dtype does not have") {
  CHECK_THROWS_WITH_AS(full({2}, 300, {.dtype = uint8}), "[fill] 300 is not a value of u8", ArgumentError);
  CHECK_THROWS_AS(full({2}, -1, {.dtype = uint8}), ArgumentError);
  CHECK_THROWS_AS(full({2}, 1e30, {.dtype = int64}), ArgumentError);
  CHECK_THROWS_AS(full({2}, kNan, {.dtype = int32}), ArgumentError);
  CHECK(full({2}, 2.0, {.dtype = int32}).to_vector<std::int32_t>() == std::vector<std::int32_t>{2, 2});
  CHECK_THROWS_AS(randint(0, 1000, {4}, {.dtype = uint8}), ArgumentError);
  CHECK_NOTHROW(randint(0, 256, {4}, {.dtype = uint8}));
  CHECK_THROWS_AS(scalar_tensor(1e30).item_int(), ArgumentError);
  CHECK_THROWS_AS(scalar_tensor(kNan).item_int(), ArgumentError);
  Tensor whole = ones({2}, {.dtype = int64});
  CHECK_THROWS_AS(whole.mul_(0.5), DTypeError);
  CHECK_THROWS_AS(whole.add_(whole, 0.5), DTypeError);
  CHECK_THROWS_AS(whole.add_(ones({2})), DTypeError);
  CHECK(whole.mul_(3).add_(whole, 2.0).to_vector<double>() == std::vector<double>{9, 9});
}

TEST_CASE("options that make no sense") {
  Tensor x = ones({2, 3});
  CHECK_THROWS_AS(layer_norm(x, {3}, {}, {}, -5), ArgumentError);
  CHECK_THROWS_AS(layer_norm(x, {3}, {}, {}, kNan), ArgumentError);
  CHECK_THROWS_AS(batch_norm(x, {}, {}, {}, {}, true, kNan), ArgumentError);
  CHECK_THROWS_AS(batch_norm(x, {}, {}, {}, {}, true, 0.1, -5), ArgumentError);
  Tensor running = ones({3});
  CHECK_THROWS_AS(batch_norm(x, {}, {}, running, running, true), ArgumentError);
  CHECK_THROWS_AS(group_norm(x, 3, {}, {}, -1), ArgumentError);
  Tensor labels = zeros({2}, {.dtype = int64});
  CHECK_THROWS_AS(cross_entropy(x, labels, {.reduction = static_cast<Reduction>(9)}), ArgumentError);
  CHECK_THROWS_AS(nll_loss(x, labels, {.reduction = static_cast<Reduction>(9)}), ArgumentError);
  CHECK_THROWS_AS(mse_loss(x, x, static_cast<Reduction>(9)), ArgumentError);
  CHECK_THROWS_AS(var(x, {}, kMin), ArgumentError);
  CHECK_THROWS_WITH_AS(log_softmax(x, 5), doctest::Contains("[log_softmax]"), IndexError);
}

TEST_CASE("in-place writes over shared memory") {
  Tensor a = arange(4.0, 8.0, 1.0).reshape({2, 2});
  a.copy_(a.t());
  CHECK(a.to_vector<double>() == std::vector<double>{4, 6, 5, 7});
  a.add_(a.t());
  CHECK(a.to_vector<double>() == std::vector<double>{8, 11, 11, 14});
  Tensor q = arange(0.0, 6.0, 1.0);
  q.narrow(0, 1, 5).add_(q.narrow(0, 0, 5));
  CHECK(q.to_vector<double>() == std::vector<double>{0, 1, 3, 5, 7, 9});
  CHECK_THROWS_WITH_AS(ones({1}).expand({3}).add_(ones({3})), doctest::Contains("share one place"), ArgumentError);
  CHECK_THROWS_AS(ones({1}).expand({3}).copy_(ones({3})), ArgumentError);
  CHECK_THROWS_AS(ones({1}).expand({3}).fill_(1), ArgumentError);
  CHECK_NOTHROW(ones({4, 6}).t().narrow(0, 1, 3).fill_(2));  // gaps and any order of dims are fine
}

TEST_CASE("in-place writes never lose a gradient") {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = zeros({2});
  CHECK_THROWS_WITH_AS(y.add_(x * 2.0), doctest::Contains("would lose the gradient"), AutogradError);
  CHECK_THROWS_AS(y.copy_(x), AutogradError);
  NoGradGuard guard;
  CHECK_NOTHROW(y.copy_(x));
}

TEST_CASE("gradients of another shape or dtype name who made them") {
  Tensor x = ones({2}, {.requires_grad = true});
  CHECK_THROWS_WITH_AS(WrongShape::apply(x * x).sum().backward(), doctest::Contains("WrongShape] backward returned f32[7]"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(WrongDType::apply(x * x).sum().backward(), doctest::Contains("WrongDType] backward returned f64[2]"),
                       ShapeError);
  Tensor y = x * 3.0;
  y.register_hook([](const Tensor& g) { return g.to(float64); });
  CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("a hook returned f64[2]"), ShapeError);
  Tensor z = ones({2}, {.requires_grad = true});
  z.register_hook([](const Tensor&) { return ones({3}); });
  CHECK_THROWS_AS((z * 1.0).sum().backward(), ShapeError);
  CHECK_THROWS_AS(x.register_hook(nullptr), ArgumentError);
}

TEST_CASE("a gradient set by hand must fit its parameter") {
  Tensor p = ones({1000}, {.requires_grad = true});
  optim::SGD sgd({p}, {.lr = 1.0});
  p.mutable_grad() = full({1}, 1.0);
  CHECK_THROWS_WITH_AS(sgd.step(), doctest::Contains("does not fit"), ShapeError);
  CHECK_THROWS_AS((p * 1.0).sum().backward(), ShapeError);
  p.mutable_grad() = ones({1000}, {.dtype = float64});  // another dtype is cast
  sgd.step();
  CHECK(p.to_vector<double>()[999] == 0);
}

TEST_CASE("a checkpointed function that changes its mind is caught") {
  Tensor x = ones({2}, {.requires_grad = true});
  int calls = 0;
  Tensor y = checkpoint([&](const std::vector<Tensor>& v) { return calls++ ? cat({v[0], v[0]}) : v[0] * 2.0; }, {x});
  CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("another result"), AutogradError);
  CHECK_THROWS_AS(checkpoint(nullptr, {x}), ArgumentError);
}

TEST_CASE("memory of outside owners is checked for alignment and reach") {
  alignas(16) char buffer[64] = {};
  CHECK_THROWS_WITH_AS(from_blob(buffer + 1, {2}, float32), doctest::Contains("must be aligned to 4 bytes"), ArgumentError);
  CHECK_THROWS_AS(from_blob(buffer, {2}, {kMax}, float32), ShapeError);
  CHECK_THROWS_AS(from_blob(nullptr, {2}, float32), ArgumentError);
  CHECK(from_blob(buffer, {4}, float32).sum().item() == 0);
}

TEST_CASE("an optimizer without parameters says where they may be") {
  Forgetful bare;
  CHECK_THROWS_WITH_AS(optim::SGD(bare.parameters()), doctest::Contains("register_module"), ArgumentError);
}
