// The entries of the CUDA kernel table, called as limpid calls them: tensors on cuda:0 of the fake runtime, kernels on
// its lazy streams, results against the CPU's.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/cuda/entries.h>
#include <limpid/cuda/kernel_table.h>
#include <limpid/cuda/runtime.h>
#include <tensor_test.h>

#include "both_devices.h"

using namespace limpid;
using namespace tensor_test;

namespace limpid::cu {
// The entries that this test is about; the others stay null.
const Kernels* cuda_kernels() {
  static const Kernels table = [] {
    Kernels kernels{};
    kernels.device = "cuda";
#define LIMPID_SET(name) kernels.name = entries::name;
    LIMPID_SET(fill) LIMPID_SET(copy) LIMPID_SET(flip) LIMPID_SET(unary) LIMPID_SET(unary_grad) LIMPID_SET(binary)
    LIMPID_SET(binary_grad) LIMPID_SET(compare) LIMPID_SET(where) LIMPID_SET(add_scaled) LIMPID_SET(is_finite)
    LIMPID_SET(all_finite) LIMPID_SET(reduce) LIMPID_SET(arg_reduce) LIMPID_SET(gather) LIMPID_SET(scatter_add)
    LIMPID_SET(index_select) LIMPID_SET(index_add) LIMPID_SET(one_hot) LIMPID_SET(uniform) LIMPID_SET(normal)
    LIMPID_SET(dropout) LIMPID_SET(sgd) LIMPID_SET(adam) LIMPID_SET(rmsprop) LIMPID_SET(lamb) LIMPID_SET(lars)
    LIMPID_SET(sum_of_squares) LIMPID_SET(scale) LIMPID_SET(amp_unscale) LIMPID_SET(amp_update)
#undef LIMPID_SET
    return kernels;
  }();
  return &table;
}
}  // namespace limpid::cu

namespace {

Tensor on(Device device, const std::vector<double>& numbers, const Shape& shape, DType dtype = float32) {
  return raw::to_device(from(numbers, shape, dtype), device);
}

}  // namespace

TEST_CASE("elementwise operations, copies and fills") {
  same_on_both("elementwise", 1e-6, [](Device device) {
    const Tensor x = on(device, random_numbers(60, -2, 2, 1), {3, 4, 5}),
                 row = on(device, random_numbers(5, 1, 2, 2), {5});
    const Tensor t = raw::transpose(x, 0, 2);
    Tensor filled = raw::empty({2, 3}, int64, device), sum = raw::clone(x);
    raw::fill(filled, 7);
    raw::add_scaled(sum, x, -0.5);
    const Tensor y = raw::unary(UnaryOp::gelu, t);
    return std::vector<Tensor>{raw::binary(BinaryOp::div, x, row),
                               y,
                               raw::unary_grad(UnaryOp::gelu, t, Tensor(), y),
                               raw::binary_grad(BinaryOp::mul, true, x, row, Tensor(), x),
                               raw::compare(CompareOp::lt, x, row),
                               raw::where(raw::is_finite(x), x, row),
                               raw::contiguous(t),
                               raw::cast(x, int32),
                               raw::flip(x, {0, 2}),
                               filled,
                               sum};
  });
}

TEST_CASE("reductions with and without a workspace; what is read back") {
  same_on_both("reduce", 1e-5, [](Device device) {
    const Tensor x = on(device, random_numbers(9000, -1, 1, 3), {2, 4500});
    Tensor bad = raw::clone(x);
    raw::fill(bad, 1.0);
    const bool finite = raw::all_finite(x) && raw::all_finite(bad);
    const Tensor infinite = raw::unary(UnaryOp::reciprocal, raw::unary(UnaryOp::relu, x));
    CHECK(finite);
    CHECK_FALSE(raw::all_finite(infinite));
    return std::vector<Tensor>{raw::reduce(ReduceOp::sum, "sum", x, {}, false), raw::mean(x, {1}, true),
                               raw::reduce(ReduceOp::max, "max", x, {0}, false), raw::arg_reduce(true, x, 1, false)};
  });
}

TEST_CASE("indexing") {
  same_on_both("indexing", 0, [](Device device) {
    const Tensor x = on(device, random_numbers(24, -1, 1, 4), {6, 4});
    const Tensor rows = on(device, {5, 0, 0, 3}, {4}, int64),
                 each = on(device, {0, 1, 5, 2, 3, 3, 1, 0}, {2, 4}, int32);
    const Tensor source = on(device, random_numbers(16, -1, 1, 5), {4, 4});
    return std::vector<Tensor>{raw::index_select(x, 0, rows), raw::index_add(x, 0, rows, source),
                               raw::gather(x, 0, each), raw::scatter_add(x, 0, each, raw::narrow(source, 0, 0, 2)),
                               raw::one_hot(rows, 6)};
  });
}

TEST_CASE("a bad index is an IndexError where the program next waits, with the CPU's sentence") {
  fake::reset({});
  const fake::LaunchScope launches;
  auto message = [](Device device, const std::function<Tensor(const Tensor&, const Tensor&)>& op) {
    const Tensor x = on(device, random_numbers(24, -1, 1, 4), {6, 4});
    const Tensor index = on(device, {0, 1, 2, 3, 4, 6, 1, -1}, {2, 4}, int64);
    return message_of<IndexError>([&] { raw::to_device(op(x, index), kCpu); });
  };
  const auto gather = [](const Tensor& x, const Tensor& index) { return raw::gather(x, 0, index); };
  const auto one_hot = [](const Tensor&, const Tensor& index) { return raw::one_hot(index, 4); };
  const auto select = [](const Tensor& x, const Tensor& index) {
    return raw::index_select(x, 0, raw::reshape(index, {8}));
  };
  const std::string expected = "[gather] index 6 at position [1,1] is outside [0, 6)";
  CHECK(message(kCpu, gather) == expected);
  CHECK(message(kGpu, gather) == expected);
  CHECK(message(kGpu, one_hot) == message(kCpu, one_hot));
  CHECK(message(kGpu, select) == message(kCpu, select));

  // The operation itself does not wait, and the error is told once.
  const Tensor x = on(kGpu, {1, 2, 3}, {3}), index = on(kGpu, {3}, {1}, int64);
  const std::size_t before = fake::trace().size();
  const Tensor y = raw::gather(x, 0, index);
  CHECK(fake::step_offences(before).empty());
  CHECK(message_of<IndexError>([] { cu::synchronize(0); }) == "[gather] index 3 at position [0] is outside [0, 3)");
  CHECK(message_of<IndexError>([&] { y.item(); }) == "no error");
  CHECK(cudasim::finding() == std::string());
}

TEST_CASE("random numbers and dropout") {
  same_on_both("random", 0, [](Device device) {
    Tensor u = raw::empty({3, 7}, float32, device), n = raw::empty({3, 7}, float64, device);
    Tensor x = on(device, random_numbers(21, 1, 2, 6), {3, 7}), y = raw::empty({3, 7}, float32, device);
    const Kernels& kernels = kernels_for(device);
    kernels.uniform(u, 5, 6);
    kernels.normal(n, 5, 6);
    kernels.dropout(y, x, 0.4, 9, 2);
    return std::vector<Tensor>{u, n, y};
  });
}

TEST_CASE("optimizer steps, scaling and loss scaling") {
  same_on_both("optimizers", 1e-5, [](Device device) {
    const Kernels& kernels = kernels_for(device);
    std::vector<OptimChunk> chunks;
    std::vector<Tensor> params;
    for (DType dtype : {float32, float64, float32}) {
      OptimChunk chunk;
      chunk.param = on(device, random_numbers(30, -1, 1, 7), {5, 6}, dtype);
      chunk.grad = raw::transpose(on(device, random_numbers(30, -1, 1, 8), {6, 5}, dtype), 0, 1);
      for (Tensor* state : {&chunk.state0, &chunk.state1, &chunk.state2})
        *state = on(device, std::vector<double>(30), {5, 6}, dtype);
      params.push_back(chunk.param);
      chunks.push_back(chunk);
    }
    const Tensor found = on(device, {0}, {1}), skipped = on(device, {1}, {1}, int64);
    const StepGuard guard{found, skipped};
    kernels.sgd(
        chunks,
        {.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0.1, .nesterov = true, .step = 2, .guard = guard});
    kernels.adam(chunks, {.lr = 0.1,
                          .beta1 = 0.9,
                          .beta2 = 0.9,
                          .eps = 1e-3,
                          .weight_decay = 0,
                          .decoupled = true,
                          .amsgrad = true,
                          .step = 3,
                          .guard = guard});
    kernels.rmsprop(chunks,
                    {.lr = 0.1, .alpha = 0.9, .eps = 0.1, .weight_decay = 0, .momentum = 0.1, .centered = false});
    kernels.lamb(chunks, {.lr = 0.1,
                          .beta1 = 0.9,
                          .beta2 = 0.9,
                          .eps = 0.1,
                          .weight_decay = 0.1,
                          .grad_scale = 1,
                          .adapt = true,
                          .trust_clip = false,
                          .step = 1});
    kernels.lars(chunks, {.lr = 0.1,
                          .momentum = 0.9,
                          .dampening = 0,
                          .weight_decay = 0.1,
                          .trust_coefficient = 0.1,
                          .eps = 1e-8,
                          .nesterov = false,
                          .first_step = false,
                          .adapt = true,
                          .trust_clip = false});
    params.push_back(from({chunks[0].trust, chunks[1].trust, kernels.sum_of_squares(params)}, {3}));
    std::vector<Tensor> grads;
    for (const OptimChunk& chunk : chunks) grads.push_back(raw::contiguous(chunk.grad));
    Tensor flag = on(device, {0}, {1}), scale = on(device, {8}, {1}), tracker = on(device, {0}, {1}, int32);
    kernels.scale(grads, 0.5);
    kernels.amp_unscale(grads, flag, on(device, {0.125}, {1}));
    kernels.amp_update(scale, tracker, flag, 2, 0.5, 1);
    params.insert(params.end(), grads.begin(), grads.end());
    params.insert(params.end(), {flag, scale, tracker});
    return params;
  });
}

TEST_CASE("no entry waits, allocates outside of the pool or reads back in a step") {
  fake::reset({});
  const fake::LaunchScope launches;
  const auto step = [] {
    const Tensor x = on(kGpu, random_numbers(9000, -1, 1, 3), {9000});
    const Tensor index = on(kGpu, {1, 2}, {2}, int64);
    const std::size_t before = fake::trace().size();
    Tensor sum = raw::reduce(ReduceOp::sum, "sum", raw::unary(UnaryOp::relu, x), {}, false);
    raw::index_select(x, 0, index);
    OptimChunk chunk{.param = x, .grad = raw::clone(x), .state0 = raw::clone(x), .state1 = {}, .state2 = {}};
    kernels_for(kGpu).sgd(
        {&chunk, 1}, {.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0, .nesterov = false, .step = 1});
    return fake::step_offences(before);
  };
  step();  // segments of the pool, the record of bad indices
  cu::synchronize(0);
  CHECK(step() == std::vector<std::string>());
  cu::synchronize(0);
}
