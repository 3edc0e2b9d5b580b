// An operation and a layer of your own, outside the library: a Function with its gradient, checked against finite
// differences, and a Module with a parameter that uses it.
#include <cstdio>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

// y = x / (1 + beta |x|), "softsign" with a slope. dy/dx = 1 / (1 + beta |x|)^2.
struct Softsign : Function<Softsign> {
  static Tensor forward(FunctionContext& ctx, const Tensor& x, double beta) {
    ctx.save(x);
    ctx.number["beta"] = beta;
    return x / (abs(x) * beta + 1.0);
  }
  static std::vector<Tensor> backward(FunctionContext& ctx, const Tensor& grad) {
    const Tensor& x = ctx.saved(0);
    return {grad / square(abs(x) * ctx.number["beta"] + 1.0)};
  }
};

// x -> scale * softsign(W x): composed of a library layer, the function above and a parameter.
class SoftsignLayer : public nn::Module {
 public:
  SoftsignLayer(std::int64_t in, std::int64_t out)
      : linear_(register_module("linear", nn::Linear({.in_features = in, .out_features = out}))),
        scale_(register_parameter("scale", ones({out}))) {}
  Tensor forward(const Tensor& x) override { return Softsign::apply((*linear_)(x), 0.5) * scale_; }

 private:
  std::shared_ptr<nn::Linear> linear_;
  Tensor scale_;
};

}  // namespace

static int example(const Arguments&) {
  manual_seed(5);
  Tensor x = randn({3, 4}, {.dtype = float64}).requires_grad_();
  const auto report = gradcheck([](const std::vector<Tensor>& in) { return Softsign::apply(in[0], 0.5); }, {x});
  std::printf("gradcheck of Softsign: %s\n", report.ok ? "ok" : report.message.c_str());
  if (!report.ok) return 1;

  nn::Sequential model(SoftsignLayer(2, 16), nn::Linear({.in_features = 16, .out_features = 1}));
  std::printf("%s\n", model.repr().c_str());
  for (const auto& [name, parameter] : model.named_parameters()) {
    std::printf("  %-18s %s\n", name.c_str(), to_string(parameter.shape()).c_str());
  }

  // Learns the product of two numbers.
  Tensor inputs = rand({256, 2}) * 2.0 - 1.0;
  Tensor targets = inputs.select(1, 0).unsqueeze(1) * inputs.select(1, 1).unsqueeze(1);
  optim::Adam optimizer(model.parameters(), {.lr = 1e-2});
  double first = 0, last = 0;
  for (int step = 0; step < 300; step++) {
    optimizer.zero_grad();
    Tensor loss = mse_loss(model(inputs), targets);
    loss.backward();
    optimizer.step();
    last = loss.item();
    if (step == 0) first = last;
  }
  std::printf("mean squared error: %.4f, then %.5f\n", first, last);
  return last < 0.5 * first ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(
      argc, argv,
      {.shows = "An operation and a layer of your own, outside the library, checked against finite differences."},
      example);
}
