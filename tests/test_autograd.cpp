#include <doctest/doctest.h>

#include <limpid/autograd/check_finite.h>
#include <limpid/autograd/checkpoint.h>
#include <limpid/autograd/custom_function.h>
#include <limpid/autograd/engine.h>
#include <limpid/autograd/functions.h>
#include <limpid/autograd/gradcheck.h>
#include <limpid/autograd/graph.h>
#include <limpid/memory/allocator.h>

#include <cmath>
#include <limits>

using namespace limpid;

namespace {
Tensor vec(std::vector<double> values, bool grad = true) {
  std::int64_t n = static_cast<std::int64_t>(values.size());
  return from_vector(values, {n}, {.dtype = float64, .requires_grad = grad});
}
using Values = std::vector<double>;
}  // namespace

TEST_CASE("two backwards of fresh graphs give twice the gradient") {
  Tensor x = vec({4.0});
  sum(square(x) * x).backward();
  CHECK(x.grad().item() == doctest::Approx(48));
  sum(square(x) * x).backward();
  CHECK(x.grad().item() == doctest::Approx(96));
}

TEST_CASE("a retained graph can be run twice; a freed one is an error that names the op") {
  Tensor x = vec({4.0});
  Tensor y = square(x);
  y.backward({}, true);
  y.backward({}, true);
  CHECK(x.grad().item() == 16);
  y.backward();
  CHECK(x.grad().item() == 24);
  CHECK_THROWS_WITH_AS(y.backward(), doctest::Contains("graph of square was freed"), AutogradError);
}

TEST_CASE("an overwritten saved tensor is an error that names the op and the tensor") {
  Tensor x = vec({1, 2, 3});
  Tensor w = vec({1, 1, 1});
  w.set_name("w");
  Tensor y = x * w;
  {
    NoGradGuard no_grad;
    w.fill_(5);
  }
  try {
    sum(y).backward();
    FAIL("no error");
  } catch (const AutogradError& e) {
    CHECK(e.message().find("[mul]") != std::string::npos);
    CHECK(e.message().find("'w'") != std::string::npos);
  }
  // Through a view and through detach() as well.
  for (int way = 0; way < 2; way++) {
    Tensor a = vec({1, 2, 3});
    Tensor b = square(a);
    Tensor alias = way == 0 ? a.detach() : a.detach().narrow(0, 1, 1);
    alias.zero_();
    CHECK_THROWS_AS(sum(b).backward(), AutogradError);
  }
}

TEST_CASE("a diamond adds the gradients of its branches") {
  Tensor x = vec({3});
  Tensor a = x * 2.0;
  Tensor y = a * a + a + a;  // 4x^2 + 4x
  y.backward();
  CHECK(x.grad().item() == doctest::Approx(8 * 3 + 4));
}

TEST_CASE("the same gradient tensor may reach several inputs without aliasing") {
  Tensor x = vec({1, 2}), y = vec({3, 4});
  sum(x + y).backward();
  sum(x + y).backward();
  CHECK(x.grad().to_vector<double>() == Values{2, 2});
  CHECK(y.grad().to_vector<double>() == Values{2, 2});
  CHECK(x.grad().storage().get() != y.grad().storage().get());
}

TEST_CASE("a chain of two million nodes is built, run and freed without recursion") {
  Tensor x = vec({1});
  Tensor y = x;
  for (int i = 0; i < 2000000; i++) y = y + x.detach();
  y.backward();
  CHECK(x.grad().item() == 1);
  y = Tensor();
  Tensor z = x;
  for (int i = 0; i < 2000000; i++) z = z * 1.0;
  z = Tensor();  // freed without having run
}

TEST_CASE("no-grad, detach and leaves") {
  Tensor x = vec({1, 2});
  {
    NoGradGuard no_grad;
    CHECK(!(x * x).requires_grad());
  }
  CHECK((x * x).requires_grad());
  CHECK(!(x * x).detach().requires_grad());
  CHECK((x * x).grad_fn_name() == "mul");
  CHECK(x.is_leaf());
  CHECK_THROWS_AS((x * x).requires_grad_(false), AutogradError);
  CHECK_THROWS_AS(arange(3).requires_grad_(), DTypeError);
  CHECK_THROWS_AS(x.fill_(0), AutogradError);
  CHECK_THROWS_AS(x.add_(x), AutogradError);
  CHECK_THROWS_AS((x * x).backward(), AutogradError);  // two elements, no gradient given
  CHECK_THROWS_AS(vec({1}, false).backward(), AutogradError);
  CHECK_THROWS_AS((x * x).backward(vec({1, 2, 3}, false)), ShapeError);
}

TEST_CASE("a += b rebinds and keeps the history") {
  Tensor x = vec({2});
  Tensor total = vec({0}, false);
  for (int i = 0; i < 3; i++) total += x * x;
  total.backward();
  CHECK(x.grad().item() == doctest::Approx(12));
}

TEST_CASE("hooks see and replace gradients of leaves and of results") {
  Tensor x = vec({1, 2});
  int calls = 0;
  x.register_hook([&](const Tensor& g) {
    calls++;
    return g * 10.0;
  });
  Tensor y = x * 3.0;
  y.register_hook([&](const Tensor& g) {
    calls++;
    CHECK(g.to_vector<double>() == Values{1, 1});
    return Tensor();
  });
  sum(y).backward();
  CHECK(calls == 2);
  CHECK(x.grad().to_vector<double>() == Values{30, 30});
  CHECK_THROWS_AS(vec({1}, false).register_hook([](const Tensor&) { return Tensor(); }), AutogradError);
}

TEST_CASE("gradients() leaves grad() alone and reaches interior tensors") {
  Tensor x = vec({3});
  Tensor a = square(x);
  Tensor y = a * 5.0;
  auto g = gradients(y, {x, a});
  CHECK(g[0].item() == doctest::Approx(30));
  CHECK(g[1].item() == doctest::Approx(5));
  CHECK(!x.grad().defined());
}

// ---- user-defined functions

struct Cube : Function<Cube> {
  static Tensor forward(FunctionContext& ctx, const Tensor& x, double factor) {
    ctx.save(x);
    ctx.number["factor"] = factor;
    return x * x * x * factor;
  }
  static std::vector<Tensor> backward(FunctionContext& ctx, const Tensor& grad) {
    const Tensor& x = ctx.saved(0);
    return {grad * x * x * (3 * ctx.number["factor"])};
  }
};
struct WrongCount : Function<WrongCount> {
  static Tensor forward(FunctionContext&, const Tensor& a, const Tensor& b) { return a + b; }
  static std::vector<Tensor> backward(FunctionContext&, const Tensor& grad) { return {grad}; }
};
struct WrongValue : Function<WrongValue> {
  static Tensor forward(FunctionContext&, const Tensor& a) { return a * 2.0; }
  static std::vector<Tensor> backward(FunctionContext&, const Tensor& grad) { return {grad * 2.5}; }
};

TEST_CASE("a user's function is recorded, checked for overwriting and named") {
  Tensor x = vec({1, 2, -3});
  Tensor y = Cube::apply(x, 2.0);
  CHECK(y.grad_fn_name().find("Cube") != std::string::npos);
  sum(y).backward();
  CHECK(x.grad().to_vector<double>() == Values{6, 24, 54});
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return Cube::apply(in[0], 0.5); }, {vec({0.3, -1.2})}).ok);
  Tensor z = Cube::apply(x, 1.0);
  x.detach().zero_();
  CHECK_THROWS_AS(sum(z).backward(), AutogradError);
  Tensor a = vec({1}), b = vec({1});
  CHECK_THROWS_AS(WrongCount::apply(a, b).backward(), AutogradError);
}

TEST_CASE("gradcheck finds a planted wrong gradient and names the element") {
  auto result = gradcheck([](const std::vector<Tensor>& in) { return WrongValue::apply(in[0]); }, {vec({1, 2})});
  CHECK(!result.ok);
  CHECK(result.message.find("backward 2.5") != std::string::npos);
  CHECK(result.checked == 4);
  CHECK_THROWS_AS(gradcheck([](const auto& in) { return in[0] * 2.0; }, {ones({2}, {.requires_grad = true})}), DTypeError);
  CHECK_THROWS_AS(gradcheck([](const auto& in) { return in[0] * 2.0; }, {vec({1}, false)}), AutogradError);
}

TEST_CASE("checkpoint recomputes: same gradients, fewer bytes kept, same random numbers") {
  auto block = [](const std::vector<Tensor>& in) { return tanh(exp(tanh(in[0] * in[1]))); };
  Tensor x = vec({0.1, 0.2, 0.3}), w = vec({0.5, -0.5, 1.0});
  sum(block({x, w})).backward();
  auto gx = x.grad().to_vector<double>(), gw = w.grad().to_vector<double>();
  x.set_grad({}), w.set_grad({});
  // w is used inside without being an input.
  Tensor y = checkpoint([&](const std::vector<Tensor>& in) { return block({in[0], w}); }, {x});
  CHECK(list_graph(y).size() == 1);
  sum(y).backward();
  CHECK(x.grad().to_vector<double>() == gx);
  CHECK(w.grad().to_vector<double>() == gw);

  manual_seed(5);
  Tensor big = ones({64, 64}, {.dtype = float64, .requires_grad = true});
  std::uint32_t layer = intern("drop");
  auto drop = [&](const std::vector<Tensor>& in) { return dropout(in[0], 0.5, next_layer_key(layer)); };
  Tensor out = checkpoint(drop, {big});
  sum(out).backward();
  CHECK(big.grad().to_vector<double>() == out.to_vector<double>());  // the mask of the forward pass
}

TEST_CASE("a checkpoint inside gradients(), inside a checkpoint, and in gradcheck") {
  Tensor x = vec({0.4, -0.7}), w = vec({0.5, 1.5});
  auto inner = [&](const std::vector<Tensor>& in) { return tanh(in[0] * w); };
  auto outer = [&](const std::vector<Tensor>& in) { return exp(checkpoint(inner, {in[0] * 2.0})) * w; };
  auto run = [&](bool recompute) { return sum(recompute ? checkpoint(outer, {x}) : outer({x})); };
  auto plain = gradients(sum(exp(tanh(x * 2.0 * w)) * w), {x, w});
  auto nested = gradients(run(true), {x, w});
  CHECK(nested[0].to_vector<double>() == plain[0].to_vector<double>());
  CHECK(nested[1].to_vector<double>()[0] == doctest::Approx(plain[1].to_vector<double>()[0]));
  CHECK(!x.grad().defined());
  CHECK(!w.grad().defined());
  run(true).backward();
  CHECK(x.grad().to_vector<double>() == plain[0].to_vector<double>());
  CHECK(w.grad().to_vector<double>()[1] == doctest::Approx(plain[1].to_vector<double>()[1]));
  CHECK(gradcheck([&](const std::vector<Tensor>& in) { return checkpoint([](const auto& i) { return tanh(i[0] * i[1]); }, in); },
                  {vec({0.4, -0.7}), vec({0.5, 1.5})}).ok);
}

TEST_CASE("an undefined tensor is an error everywhere, never a crash") {
  Tensor none, x = vec({1, 2});
  CHECK_THROWS_WITH_AS(add(x, none), doctest::Contains("[add] "), ArgumentError);
  CHECK_THROWS_AS(relu(none), ArgumentError);
  CHECK_THROWS_AS(none.shape(), ArgumentError);
  CHECK_THROWS_AS(none.sum(), ArgumentError);
  CHECK_THROWS_AS(none.backward(), AutogradError);
  CHECK_THROWS_AS(none.to_vector<double>(), ArgumentError);
  CHECK_THROWS_AS(cat({x, none}), ArgumentError);
  CHECK_THROWS_AS(conv2d(none, none), ArgumentError);
  CHECK_THROWS_AS(linear(x, none), ArgumentError);
  CHECK_THROWS_AS(batch_norm(none, none, none, none, none, true), ArgumentError);
  CHECK_THROWS_AS(cross_entropy(none, none), ArgumentError);
  CHECK_THROWS_AS(where(none, x, x), ArgumentError);
  CHECK(!none.requires_grad());
  CHECK(none.describe() == "undefined");
}

TEST_CASE("the graph can be listed and drawn, with the bytes each node keeps") {
  Tensor x = rand({8, 16}, {.requires_grad = true});
  x.set_name("x");
  Tensor h = x * 2.0;
  Tensor y = sum(square(h));
  auto list = list_graph(y);
  REQUIRE(list.size() == 3);
  CHECK(list[0].name == "sum");
  CHECK(list[1].name == "square");
  CHECK(list[1].saved_bytes == 8 * 16 * 4);
  CHECK(list[2].leaves == std::vector<std::string>{"x"});
  std::string dot = graph_dot(y);
  CHECK(dot.find("square\\nkeeps 512 B") != std::string::npos);
  CHECK(dot.find("-> n1") != std::string::npos);
}

TEST_CASE("check_finite names the first op with a non-finite result, forward and backward") {
  struct Off {
    ~Off() { set_check_finite(false); }
  } off;
  set_check_finite(true);
  Tensor x = vec({1, 0, 4});
  {
    ModuleScope layer(intern("net.fc1"));
    try {
      log(x);
      FAIL("no error");
    } catch (const NonFiniteError& e) {
      CHECK(name_of(e.scope().op) == "log");
      CHECK(name_of(e.scope().module) == "net.fc1");
      CHECK(e.message().find("the first at 1 is -inf") != std::string::npos);
    }
  }
  Tensor y = sum(sqrt(x));  // finite forward, infinite gradient at 0
  try {
    y.backward();
    FAIL("no error");
  } catch (const NonFiniteError& e) {
    CHECK(name_of(e.scope().op) == "sqrt");
    CHECK(e.scope().phase == Phase::backward);
  }
}

TEST_CASE("saved tensors count as role saved for as long as a node keeps them") {
  auto& pool = memory::host_allocator();
  auto saved = [&] { return pool.ledger().role(memory::Role::saved); };
  auto before = saved();
  Tensor x = rand({1000}, {.dtype = float32, .requires_grad = true});
  Tensor h = x + 1.0;
  Tensor y = square(h);
  CHECK(saved() - before == 4000);
  Tensor z = h * y;  // h is kept twice, y once
  CHECK(saved() - before == 8000);
  sum(z).backward();
  CHECK(saved() == before);
  CHECK(x.grad().storage()->role() == memory::Role::grad);
}

TEST_CASE("ReLU has gradient 0 at 0, and NaN passes through") {
  Tensor x = vec({-1, 0, 2, std::numeric_limits<double>::quiet_NaN()});
  Tensor y = relu(x);
  CHECK(std::isnan(y.to_vector<double>()[3]));
  sum(y.narrow(0, 0, 3)).backward();
  CHECK(x.grad().to_vector<double>()[1] == 0);
  CHECK(x.grad().to_vector<double>()[2] == 1);
}

TEST_CASE("mean().backward() of a matrix") {
  Tensor x = rand({3, 5}, {.dtype = float64, .requires_grad = true});
  mean(x).backward();
  for (double g : x.grad().to_vector<double>()) CHECK(g == doctest::Approx(1.0 / 15));
}

TEST_CASE("errors carry both values") {
  Tensor x = rand({8, 4, 32, 32});
  Tensor w = rand({16, 3, 3, 3});
  CHECK_THROWS_WITH_AS(conv2d(x, w), "[conv2d] weight expects 3 input channels, input has 4 (input f32[8,4,32,32] cpu)", ShapeError);
  CHECK_THROWS_AS(cross_entropy(rand({2, 10}), from_vector<std::int64_t>({3, 12}, {2})), IndexError);
  CHECK_THROWS_AS(matmul(rand({2, 3}), rand({4, 5})), ShapeError);
  CHECK_THROWS_AS(x.view({5, -1}), ShapeError);
  CHECK_THROWS_AS(x.narrow(1, 3, 2), IndexError);
  CHECK_THROWS_AS(x.select(0, 8), IndexError);
  CHECK_THROWS_AS(x.expand({8, 5, 32, 32}), ShapeError);
  CHECK_THROWS_AS(linear(rand({2, 3}), rand({4, 5})), ShapeError);
  CHECK_THROWS_AS(x.item(), ShapeError);
  CHECK_THROWS_AS(x.data<double>(), DTypeError);
  CHECK_THROWS_AS(empty({1ll << 40, 1ll << 40}), ShapeError);
}
