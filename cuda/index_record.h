// Where kernels leave a bad index, so that nothing has to be read back in the step: the record lies in device memory, and
// whoever waits for the stream reads it afterwards (index_errors.h). The first bad index in logical order of the first bad
// operation stays until the record is cleared; kernels that meet a bad index read and write nothing for it.
//
// One record a stream: operations of one stream run one after the other.
#pragma once

#include <cstdint>

#include <limpid/tensor/shape.h>

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

}  // namespace limpid::cu
