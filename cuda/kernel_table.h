// Where the CUDA kernels come from: a table in the order of tensor/kernel_entries.h, or null while a build has none.
// cuda/no_kernels.cpp answers null and defines nothing else, so that a program which brings kernels of its own (the
// tests compile them for the emulator) defines this function and replaces it.
#pragma once

#include <limpid/tensor/kernels.h>

namespace limpid::cu {

const Kernels* cuda_kernels();

}  // namespace limpid::cu
