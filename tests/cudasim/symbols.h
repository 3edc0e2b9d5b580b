// Names of functions in the running program, from its symbol table; local ones as well, which dladdr cannot see.
#pragma once

#include <string>

namespace limpid::cudasim {

// The mangled name of the function that starts at the address; empty: the program has been stripped, or it is elsewhere.
std::string symbol_at(const void* function);
// "limpid::cu::(anonymous namespace)::relu<float>(float const*, float*, long)"; what is no mangled name comes back as it is.
std::string demangled(const std::string& symbol);
// File name and line of a code address of the program (addr2line of binutils): that of the kernel source where code of
// cuda_lang.cuh was inlined into it. {"?", 0} where it cannot tell.
struct SourceLine {
  std::string file;
  int line;
};
SourceLine source_line(const void* code_address);

}  // namespace limpid::cudasim
