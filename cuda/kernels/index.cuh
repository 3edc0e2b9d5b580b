// Indexed reads and writes. The index is i64 and has been looked at by check_indices (index_error.cuh); where it is
// outside of the bounds, a read gives 0 and a write does not happen. The functions queue one kernel on the stream and
// return the error of the launch. Meaning: the entries of tensor/kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/cuda/kernels/operands.cuh>

namespace limpid::cu {

// out has the index's shape: out[i][j] = x[index[i][j]][j] for dim 0. `bound`: x's size along dim.
// index_select is the same with an index of strides 0 in all dims but `dim`.
cudaError_t gather(DType dtype, const Shape& shape, const Output& out, const Input& x, int dim, std::int64_t bound,
                   const Input& index, cudaStream_t stream);
// out[index[i][j]][j] += source[i][j], in the order of i: the additions to one place happen one after the other in one
// thread, so results do not depend on what runs beside. shape: that of the index; bound: out's size along dim.
// index_add is the same with an index of strides 0 in all dims but `dim`.
// Costs: a thread for each of the other dims' positions and range of targets walks the whole index along dim.
cudaError_t scatter_add(DType dtype, const Shape& shape, const Output& out, int dim, std::int64_t bound,
                        const Input& index, const Input& source, cudaStream_t stream);
// out[.., c] = 1 where index[..] = c, else 0. shape: that of out.
cudaError_t one_hot(DType dtype, const Shape& shape, const Output& out, const Input& index, cudaStream_t stream);

}  // namespace limpid::cu
