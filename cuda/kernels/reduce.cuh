// Reductions over any dims. The partition of a sum into threads, blocks and splits depends on shape, strides and the
// alignment of x alone, so the result has the same bits on every device and in every run. The functions queue one or
// two kernels on the stream and return the error of the launch. Meaning: the entries of tensor/kernels.h.
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

#include <limpid/cuda/kernels/operands.cuh>
#include <limpid/cuda/reduce_plan.h>
#include <limpid/tensor/kernels.h>

namespace limpid::cu {

// out has the dims of the mask as 1. out_dtype: that of x for max and min, bool for any and all, else x's floating
// dtype, or f64 of it, or i64 for integers. Sums of 16-bit floats and f32 are added in f32 by short runs, the runs in
// f64. workspace: reduce_workspace_bytes() of x (reduce_plan.h).
cudaError_t reduce(ReduceOp op, const Shape& shape, DType out_dtype, const Output& out, DType dtype, const Input& x,
                   std::uint32_t dims_mask, void* workspace, cudaStream_t stream);

// out (i64, `dim` is 1): place of the first of the largest (smallest) values along dim; the first NaN wins.
cudaError_t arg_reduce(bool maximum, const Shape& shape, const Output& out, DType dtype, const Input& x, int dim,
                       cudaStream_t stream);

}  // namespace limpid::cu
