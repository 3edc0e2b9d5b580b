// Matrix product C[m,n] (+)= A[m,k] * B[k,n] + bias[n] on the CPU, float and double. A and B have any element strides,
// so transposes are free; rows of C are dense. Operands are packed block by block into a caller-provided workspace
// (panels of 64 bytes, see panel.h); small products read their operands in place. Nothing is allocated here.
// The result depends on shape, strides, type and instruction set, never on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include <limpid/tensor/cpu/task_list.h>

namespace limpid::cpu {

struct GemmDesc {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_row = 0, a_col = 1;  // element strides of A
  std::int64_t b_row = 0, b_col = 1;  // element strides of B
  std::int64_t c_row = 0;             // row stride of C, >= n
  bool accumulate = false;            // add to C instead of overwriting it
  std::int64_t batch = 1;             // independent products
  std::int64_t a_batch = 0, b_batch = 0, c_batch = 0;
};

// Bytes of workspace that gemm() needs; 0 for small products. Pure. With a cap it works in smaller blocks and fewer
// slots, for the same result; where even the smallest need more, their bytes are the answer.
std::size_t gemm_workspace(const GemmDesc& desc, std::size_t element_size, std::size_t cap = SIZE_MAX);

// bias: n values added to every row, or null. workspace: gemm_workspace() bytes, 64-byte aligned (null if 0); cap: that
// of gemm_workspace(), or the bytes that it answered.
template <class T>
void gemm(const GemmDesc& desc, const T* a, const T* b, T* c, const T* bias, void* workspace,
          std::size_t cap = SIZE_MAX);

// The tasks of gemm() without a cap. Padding: packed products compute whole panels of columns.
TaskList gemm_tasks(const GemmDesc& desc, std::size_t element_size);
// Columns of a panel, of convolutions too: output features or channels are padded to a multiple of this.
std::int64_t panel_columns(std::size_t element_size);

}  // namespace limpid::cpu
