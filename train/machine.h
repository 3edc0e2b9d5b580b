// What the program runs on and how it was built: for run.json and `limpid info`. No host names, no user names.
#pragma once

#include <cstdint>
#include <string>

namespace limpid::train {

struct MachineInfo {
  std::string cpu;     // "AMD EPYC 7B13"
  int cores = 1;       // logical ones that this process may use
  std::string isa;     // the instruction set that the kernels chose, "AVX2"
  std::string system;  // "Linux 6.1.0 x86_64"
  std::uint64_t memory_bytes = 0;
  std::string compiler;  // "GCC 12.2.0"
  std::string build;     // "release" or "debug", with the sanitizers
};

MachineInfo machine_info();

}  // namespace limpid::train
