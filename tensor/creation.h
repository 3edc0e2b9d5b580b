// Making tensors. Options are an aggregate: zeros({2, 3}, {.dtype = float64}).
#pragma once

#include <functional>
#include <vector>

#include <limpid/memory/role.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/tensor.h>

namespace limpid {

struct TensorOptions {
  DType dtype = DType::float32;
  Device device = default_device();
  bool requires_grad = false;
  memory::Role role = memory::Role::other;  // the row of the ledger
};

// Uninitialised memory, plain or channels_last (rank 4).
Tensor empty(const Shape& shape, const TensorOptions& options = {}, MemoryFormat format = MemoryFormat::contiguous);
Tensor zeros(const Shape& shape, const TensorOptions& options = {});
Tensor ones(const Shape& shape, const TensorOptions& options = {});
Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options = {});
// 0, 1, ..., count-1; or start, start+step, ... below end.
Tensor arange(std::int64_t count, const TensorOptions& options = {.dtype = DType::int64});
Tensor arange(double start, double end, double step, const TensorOptions& options = {});
// Copies `values` (row-major) and casts to options.dtype; ShapeError when the counts differ.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, const TensorOptions& options = {.dtype = dtype_of<T>});
// A 0-d tensor.
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options = {});
// Memory of an outside owner, not copied; `deleter` runs when the last tensor on it is gone. Ledger role `external`.
Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void()> deleter = {});
Tensor from_blob(void* data, const Shape& shape, const Strides& strides, DType dtype, std::function<void()> deleter = {});

// Random: numbers depend on the generator's (seed, position) only, never on threads. Drawing advances the position.
// Uniform [0, 1); normal (0, 1); integers in [low, high); a permutation of 0..n-1.
Tensor rand(const Shape& shape, const TensorOptions& options = {}, Generator& generator = default_generator());
Tensor randn(const Shape& shape, const TensorOptions& options = {}, Generator& generator = default_generator());
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape,
               const TensorOptions& options = {.dtype = DType::int64}, Generator& generator = default_generator());
Tensor randperm(std::int64_t n, Generator& generator = default_generator());

}  // namespace limpid
