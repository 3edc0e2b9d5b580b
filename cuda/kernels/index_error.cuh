// The look at every index before an operation runs. Bad ones are left in a record: cuda/index_record.h.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/cuda/index_record.h>
#include <limpid/cuda/kernels/operands.cuh>

namespace limpid::cu {

// index: i64, any strides. `ignored` is allowed too (cross entropy's ignore_index; 0 where there is none). Nothing for
// an empty index, and nothing while the record holds an earlier error.
cudaError_t check_indices(IndexErrorRecord* record, IndexOp op, const Shape& shape, const Input& index,
                          std::int64_t bound, std::int64_t ignored, cudaStream_t stream);

}  // namespace limpid::cu
