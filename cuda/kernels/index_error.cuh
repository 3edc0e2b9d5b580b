// Where kernels leave a bad index, so that nothing has to be read back in the step: the record lies in device memory, and the
// runtime reads it when it waits for the stream anyway. The first bad index in logical order of the first bad operation stays
// until the record is cleared; kernels that meet a bad index read and write nothing for it.
//
// One record a stream: operations of one stream run one after the other.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include <limpid/cuda/kernels/operands.cuh>

namespace limpid::cu {

enum class IndexOp : std::int32_t { gather, scatter_add, index_select, index_add, one_hot, labels };
inline const char* name_of(IndexOp op) {
  constexpr const char* kNames[] = {"gather", "scatter_add", "index_select", "index_add", "one_hot", "cross_entropy"};
  return kNames[static_cast<int>(op)];
}

struct IndexErrorRecord {
  static constexpr std::uint64_t kNone = ~std::uint64_t(0);
  std::int32_t found = 0;  // 1: the fields below hold
  IndexOp op = IndexOp::gather;
  std::uint32_t blocks_done = 0;     // of the check that runs now
  std::int32_t rank = 0;
  std::uint64_t position = kNone;    // in logical order
  std::int64_t value = 0, bound = 0;  // value is outside of [0, bound)
  std::int64_t shape[kMaxDims] = {};  // of the index; gives the position its coordinates
};

// Looks at every index (i64, any strides) before the operation runs. `ignored` is allowed too (cross entropy's ignore_index;
// 0 where there is none). Nothing for an empty index, and nothing while the record holds an earlier error.
cudaError_t check_indices(IndexErrorRecord* record, IndexOp op, const Shape& shape, const Input& index, std::int64_t bound,
                          std::int64_t ignored, cudaStream_t stream);

}  // namespace limpid::cu
