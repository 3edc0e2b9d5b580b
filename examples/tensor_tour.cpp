// Tensors: making them, looking at them, views, broadcasting, reductions, promotion.
#include <cstdio>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

void show(const char* what, const Tensor& t) {
  std::printf("%-28s %s\n%s\n\n", what, t.describe().c_str(), format_tensor(t).c_str());
}

}  // namespace

static int example(const Arguments&) {
  // Making tensors. Options are named.
  Tensor a = arange(6).to(float32).reshape({2, 3});
  show("arange(6) as floats", a);
  show("zeros, float64", zeros({2, 2}, {.dtype = float64}));
  show("from a vector", from_vector<float>({1, 2, 3}, {3}));

  // Random numbers are a function of the generator's seed and position: the same everywhere.
  Generator generator(42);
  show("randn with a generator", randn({2, 3}, {}, generator));

  // Views share memory: writing through one is seen through the other.
  Tensor column = a.select(1, 0);
  column.fill_(9);
  show("after column.fill_(9)", a);
  show("transposed, the same memory", a.t());

  // Broadcasting, as in NumPy.
  Tensor row = from_vector<float>({10, 20, 30}, {1, 3});
  show("a + row", a + row);

  // Integers and floats promote as in PyTorch.
  Tensor counts = arange(3);
  std::printf("i64 + 1   -> %s\n", to_string((counts + 1).dtype()).c_str());
  std::printf("i64 + 0.5 -> %s\n", to_string((counts + 0.5).dtype()).c_str());
  std::printf("i64 / i64 -> %s\n\n", to_string((counts / (counts + 1)).dtype()).c_str());

  // Reductions over dims.
  show("sum over rows", a.sum({0}));
  show("mean, keepdim", mean(a, {1}, true));
  show("argmax along dim 1", argmax(a, 1));

  // Images are NCHW in logic; channels_last is a matter of strides.
  Tensor image = empty({1, 3, 4, 4}, {}, MemoryFormat::channels_last);
  std::printf("channels_last strides of %s: %s\n\n", to_string(image.shape()).c_str(),
              to_string(image.strides()).c_str());

  // Errors say what was wrong, with both values.
  try {
    matmul(a, a);
  } catch (const Error& e) {
    std::printf("matmul(a, a): %s\n", e.what());
    return 0;
  }
  return 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "Tensors: making them, looking at them, views, broadcasting, reductions, promotion."},
                     example);
}
