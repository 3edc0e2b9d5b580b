// Gradients: recording, backward, accumulation, hooks, no-grad, and a check against finite differences.
#include <cmath>
#include <cstdio>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

static int example(const Arguments&) {
  // y = sum(x^2); dy/dx = 2 x.
  Tensor x = from_vector<double>({1, 2, 3}, {3}).requires_grad_();
  Tensor y = square(x).sum();
  y.backward();
  std::printf("x          %s\ndy/dx      %s\n", format_tensor(x).c_str(), format_tensor(x.grad()).c_str());

  // A second graph adds to the gradient; zero it, or drop it, to start again.
  (x * 10.0).sum().backward();
  std::printf("+ 10 each  %s\n", format_tensor(x.grad()).c_str());
  x.set_grad(Tensor());

  // The graph of one backward is freed. Asking twice is an error, not a wrong number.
  Tensor z = exp(x).sum();
  z.backward();
  try {
    z.backward();
    return 1;
  } catch (const AutogradError& e) {
    std::printf("twice:     %s\n", e.what());
  }
  x.set_grad(Tensor());

  // A tensor that backward needs must not be overwritten in between.
  Tensor w = from_vector<double>({4, 5, 6}, {3});
  Tensor product = (x * w).sum();
  w.fill_(0);
  try {
    product.backward();
    return 1;
  } catch (const AutogradError& e) {
    std::printf("changed:   %s\n", e.what());
  }

  // Hooks see a gradient on its way, and may replace it.
  Tensor hidden = x * 2.0;
  hidden.register_hook([](const Tensor& gradient) { return gradient * 100.0; });
  hidden.sum().backward();
  std::printf("hooked     %s\n", format_tensor(x.grad()).c_str());

  // Nothing is recorded while a guard lives.
  {
    NoGradGuard no_grad;
    Tensor plain = x * 2.0;
    std::printf("recorded?  %s\n", plain.requires_grad() ? "yes" : "no");
  }

  // The slope of a function, checked by hand: d/dx sigmoid = s (1 - s).
  Tensor at = from_vector<double>({0.3}, {1}).requires_grad_();
  sigmoid(at).sum().backward();
  const double s = 1 / (1 + std::exp(-0.3));
  const double error = std::abs(at.grad().item() - s * (1 - s));
  std::printf("sigmoid'   %.12f, error %.1e\n", at.grad().item(), error);
  return error < 1e-12 ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(
      argc, argv,
      {.shows =
           "Gradients: recording, backward, accumulation, hooks, no-grad, and a check against finite differences."},
      example);
}
