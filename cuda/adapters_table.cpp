// The whole CUDA kernel table. Takes the place of cuda/no_kernels.cpp in a program that has the kernels.
#include <limpid/cuda/entries.h>
#include <limpid/cuda/kernel_table.h>

namespace limpid::cu {

const Kernels* cuda_kernels() {
#define LIMPID_ENTRY(name) .name = entries::name,
  static constexpr Kernels kTable{.device = "cuda", LIMPID_KERNEL_ENTRIES(LIMPID_ENTRY, LIMPID_ENTRY)};
#undef LIMPID_ENTRY
  return &kTable;
}

}  // namespace limpid::cu
