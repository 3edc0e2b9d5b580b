// The functions behind the CUDA kernel table, one an entry of tensor/kernel_entries.h with the entry's name and type.
// They take the tensors apart and queue kernels (cuda/kernels/*.cuh) on the current stream of the output's device:
// nothing waits, except where the table's entry says that it reads back. Defined in adapters_*.cpp.
#pragma once

#include <type_traits>

#include <limpid/tensor/kernels.h>

namespace limpid::cu::entries {

#define LIMPID_DECLARE_ENTRY(name) std::remove_pointer_t<decltype(Kernels::name)> name;
LIMPID_KERNEL_ENTRIES(LIMPID_DECLARE_ENTRY, LIMPID_DECLARE_ENTRY)
#undef LIMPID_DECLARE_ENTRY

}  // namespace limpid::cu::entries
