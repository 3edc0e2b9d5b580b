// Cost of one small operation: 1-element add with and without recording, a chain of 100 adds with its backward, and a
// linear layer of one row. Nanoseconds an operation, one thread, ledger and trace on.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include <limpid/limpid.h>

using namespace limpid;

namespace {
template <class F>
void measure(const char* what, int operations, F&& f) {
  std::vector<double> times;
  for (int repeat = 0; repeat < 21; repeat++) {
    auto start = std::chrono::steady_clock::now();
    f();
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / operations);
  }
  std::sort(times.begin(), times.end());
  std::printf("%-46s median %8.1f ns (min %.1f, max %.1f)\n", what, times[10], times.front(), times.back());
}
}  // namespace

int main() {
  cpu::set_num_threads(1);
  Tensor a = ones({1}), b = ones({1});
  Tensor g = ones({1}, {.requires_grad = true});
  Tensor x = ones({1, 128}), w = ones({10, 128}), bias = ones({10});
  {
    NoGradGuard no_grad;
    measure("1-element add, not recorded", 20000, [&] {
      for (int i = 0; i < 20000; i++) Tensor c = add(a, b);
    });
    measure("linear 1x128 -> 10, not recorded", 20000, [&] {
      for (int i = 0; i < 20000; i++) Tensor c = linear(x, w, bias);
    });
  }
  measure("1-element add, recorded", 20000, [&] {
    for (int i = 0; i < 20000; i++) Tensor c = add(g, b);
  });
  measure("chain of 100 adds, forward + backward, an add", 10000, [&] {
    for (int i = 0; i < 100; i++) {
      Tensor c = g;
      for (int k = 0; k < 100; k++) c = add(c, b);
      c.backward();
    }
  });
  return 0;
}
