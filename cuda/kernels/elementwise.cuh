// Elementwise kernels from the functors of tensor/functors.h, and copies. Operands have the output's shape (strides 0
// where broadcast), any strides. The functions queue one kernel on the stream (none for an empty shape) and return the
// error of the launch; cudaErrorInvalidValue for a dtype that the operation does not take. Meaning: the entries of
// tensor/kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/cuda/kernels/operands.cuh>
#include <limpid/tensor/functors.h>

namespace limpid::cu {

// Every number type but bool; `params` are rounded to the type that the op computes in.
cudaError_t unary(UnaryOp op, DType dtype, const Shape& shape, const Output& out, const Input& x, UnaryParams params,
                  cudaStream_t stream);
cudaError_t binary(BinaryOp op, DType dtype, const Shape& shape, const Output& out, const Input& a, const Input& b,
                   cudaStream_t stream);
// Floating types. Operands that the op does not read may have no data.
cudaError_t unary_grad(UnaryOp op, DType dtype, const Shape& shape, const Output& out, const Input& x, const Input& y,
                       const Input& grad, UnaryParams params, cudaStream_t stream);
cudaError_t binary_grad(BinaryOp op, bool of_b, DType dtype, const Shape& shape, const Output& out, const Input& a,
                        const Input& b, const Input& y, const Input& grad, cudaStream_t stream);
// out: bool. dtype: that of a and b, any.
cudaError_t compare(CompareOp op, DType dtype, const Shape& shape, const Output& out, const Input& a, const Input& b,
                    cudaStream_t stream);
// condition: bool; dtype: that of the others.
cudaError_t where(DType dtype, const Shape& shape, const Output& out, const Input& condition, const Input& a,
                  const Input& b, cudaStream_t stream);
// out += alpha * x
cudaError_t add_scaled(DType dtype, const Shape& shape, const Output& out, const Input& x, double alpha,
                       cudaStream_t stream);
// out: bool; dtype: that of x. Integers are finite.
cudaError_t is_finite(DType dtype, const Shape& shape, const Output& out, const Input& x, cudaStream_t stream);

// ---- copy.cu
cudaError_t fill(DType dtype, const Shape& shape, const Output& out, const Scalar& value, cudaStream_t stream);
cudaError_t copy(const Shape& shape, DType out_dtype, const Output& out, DType x_dtype, const Input& x,
                 cudaStream_t stream);
// out[i] = x[i], with the dims in the mask walked backwards in x.
cudaError_t flip(DType dtype, const Shape& shape, const Output& out, const Input& x, std::uint32_t dims_mask,
                 cudaStream_t stream);

}  // namespace limpid::cu
