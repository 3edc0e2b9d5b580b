// Layer norm and group norm over rows of a contiguous x [rows, len]. Element (row, i) uses the affine pair
// row % affine_rows * (len / inner) + i / inner: layer norm has inner = 1, affine_rows = 1, group norm inner = h * w,
// affine_rows = groups. f64, f32, f16, bf16; weight and bias have the dtype of x. mean, invstd: [rows] f64.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/tensor/dtype.h>

namespace limpid::cu {

struct RowNormShape {
  std::int64_t rows = 0, len = 0, inner = 1, affine_rows = 1;
  LIMPID_HD std::int64_t slice() const { return len / inner; }  // affine pairs of a row
};

// y = (x - mean) invstd weight + bias, invstd = 1 / sqrt(variance + eps). weight and bias may be null (1 and 0).
cudaError_t row_norm(DType dtype, const RowNormShape& shape, void* y, double* mean, double* invstd, const void* x,
                     const void* weight, const void* bias, double eps, cudaStream_t stream);
// dx = invstd (g - mean(g) - xhat mean(g xhat)), g = dy weight; dweight = sum dy xhat, dbias = sum dy, over the rows
// and places of a pair. Any of dx, dweight, dbias may be null.
cudaError_t row_norm_backward(DType dtype, const RowNormShape& shape, void* dx, void* dweight, void* dbias,
                              const void* dy, const void* x, const double* mean, const double* invstd,
                              const void* weight, cudaStream_t stream);

}  // namespace limpid::cu
