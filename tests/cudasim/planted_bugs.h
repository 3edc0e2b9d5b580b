// Kernels with one mistake each. The line that must be reported carries the comment `// bug: NAME` in planted_bugs.cu; one
// without the comment may be reported anywhere in its kernel.
#pragma once

#include <vector>

#include <cuda_runtime_api.h>

namespace limpid::cudasim {

struct PlantedBug {
  const char* name;
  const char* says;        // part of the finding
  bool needs_checker;      // false: the emulator alone finds it
  cudaError_t error;
  // x, y: 256 floats each, x initialised, y not.
  cudaError_t (*run)(float* x, float* y, cudaStream_t stream);
};
const std::vector<PlantedBug>& planted_bugs();

}  // namespace limpid::cudasim
