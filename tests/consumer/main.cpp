// A user's own Function and Module, in a project of their own: trains y = |x| on a tiny network.
#include <cstdio>

#include <limpid/limpid.h>

using namespace limpid;

struct Swish : Function<Swish> {  // x * sigmoid(x)
  static Tensor forward(FunctionContext& ctx, const Tensor& x) {
    ctx.save(x);
    return x * sigmoid(x);
  }
  static std::vector<Tensor> backward(FunctionContext& ctx, const Tensor& grad) {
    const Tensor& x = ctx.saved(0);
    Tensor s = sigmoid(x);
    return {grad * s * (1 + x * (1 - s))};
  }
};

struct Net : nn::Module {
  std::shared_ptr<nn::Linear> hidden = register_module("hidden", nn::Linear({.in_features = 1, .out_features = 16}));
  std::shared_ptr<nn::Linear> out = register_module("out", nn::Linear({.in_features = 16, .out_features = 1}));
  Tensor forward(const Tensor& x) override { return (*out)(Swish::apply((*hidden)(x))); }
  std::string describe() const override { return "Net"; }
};

int main() {
  manual_seed(1);
  auto check = gradcheck([](const std::vector<Tensor>& in) { return Swish::apply(in[0]); },
                         {randn({5}, {.dtype = float64, .requires_grad = true})});
  if (!check.ok) {
    std::printf("gradcheck failed: %s\n", check.message.c_str());
    return 1;
  }
  Net net;
  optim::Adam adam(net.parameters(), {.lr = 0.02});
  Tensor x = rand({256, 1}) * 4.0 - 2.0;
  Tensor y = abs(x);
  double first = 0, last = 0;
  for (int step = 0; step < 300; step++) {
    adam.zero_grad();
    Tensor loss = mse_loss(net(x), y);
    loss.backward();
    adam.step();
    last = loss.item();
    if (step == 0) first = last;
  }
  std::printf("consumer: loss %.4f -> %.4f, %zu parameters\n", first, last, net.parameters().size());
  return last < 0.05 * first ? 0 : 1;
}
