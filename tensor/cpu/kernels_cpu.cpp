// The CPU's kernel table.
#include <limpid/tensor/cpu/kernels_cpu.h>

namespace limpid {

namespace {

#define LIMPID_ENTRY(name) .name = cpu::name,
constexpr Kernels kTable{.device = "cpu", LIMPID_KERNEL_ENTRIES(LIMPID_ENTRY, LIMPID_ENTRY)};
#undef LIMPID_ENTRY

}  // namespace

const Kernels& cpu_kernels() { return kTable; }

}  // namespace limpid
