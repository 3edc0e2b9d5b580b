// nvcc's code in place of g++'s: kernels whose PTX has been loaded are interpreted.
//
// The environment variable CUDASIM_PTX, a list of files separated by ':', loads PTX before the first launch. From then on
// every kernel must be there: one that is not ends the program with a message, and so does an instruction that the
// interpreter does not know. Every access is checked as by the access checker.
#pragma once

#include <functional>
#include <string>

#include <cudasim/emulator.h>

namespace limpid::cudasim {

// Throws std::runtime_error: the file cannot be read, or holds what the interpreter does not know.
void load_ptx(const std::string& file);
void unload_ptx();
// One thread's run of the kernel, or null: no PTX is loaded. Throws std::runtime_error when PTX is loaded but does not have
// the kernel, has two of the name, or expects other arguments.
std::function<void()> ptx_body(const Kernel& kernel);

}  // namespace limpid::cudasim
