// The fake's driver library: what is not in fake_memory.cpp.
#include <cstdio>

#include "fake_state.h"

using namespace limpid::cudasim::fake;
namespace cu = limpid::cu;

extern "C" {

int cuInit(unsigned) {
  const Lock guard = lock();
  return gate({.api = "cuInit"});
}
int cuDriverGetVersion(int* version) {
  *version = config().driver_version;
  return 0;
}
int cuGetErrorName(int status, const char** text) {
  *text = status == 1 ? "CUDA_ERROR_INVALID_VALUE" : status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuGetErrorString(int status, const char** text) {
  *text = status == 1 ? "invalid argument" : status == 2 ? "out of memory" : "unknown error";
  return 0;
}
int cuDeviceGetName(char* text, int bytes, int device) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuDeviceGetName"})) return failure;
  if (device < 0 || device >= config().devices) return 101;  // CUDA_ERROR_INVALID_DEVICE
  std::snprintf(text, static_cast<std::size_t>(bytes), "Simulated GPU %d", device);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuDeviceGetAttribute"})) return failure;
  *value = attribute == cu::kVirtualMemorySupported ? config().virtual_memory : 0;
  return 0;
}

}  // extern "C"
