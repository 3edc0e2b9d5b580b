// The error of a CUDA call: which call, where, and the library's own text. LIMPID_CUDA makes a call and throws it.
#pragma once

#include <string>

#include <limpid/base/error.h>

namespace limpid::cu {

class CudaError : public DeviceError {
 public:
  CudaError(std::string message, std::string call, int code, bool sticky)
      : DeviceError(std::move(message)), call_(std::move(call)), code_(code), sticky_(sticky) {}
  const std::string& call() const noexcept { return call_; }  // "cudaMemcpyAsync", or the name of a kernel
  int code() const noexcept { return code_; }                 // cudaError_t or CUresult
  // The device's context is lost: every further call of this process fails.
  bool sticky() const noexcept { return sticky_; }

 private:
  std::string call_;
  int code_;
  bool sticky_;
};

// Status of a runtime call; throws CudaError for any but success. The runtime's record of the last error is cleared, so
// that a later check does not report it once more. `call` is the source of the call: "cudaMalloc(&p, n)".
void check_runtime(int status, const char* call, const char* file, int line);
void check_driver(int status, const char* call, const char* file, int line);

// For kernels: the status of the launch of `kernel` on `stream`. With set_launch_sync(true) it waits for the kernel
// too.
void check_launch(int status, const char* kernel, void* stream, const char* file, int line);

// Kernels run behind the program's back, so the error of one is reported by a later call. With `on`, every launch waits
// for its kernel and reports its error by name: slow, for finding faults. The command sets it from $LIMPID_CUDA_SYNC.
void set_launch_sync(bool on);
bool launch_sync();

}  // namespace limpid::cu

// LIMPID_CUDA(cudaMalloc(&p, n)): a call of the runtime; LIMPID_DRIVER(cuMemUnmap(at, n)): of the driver.
#define LIMPID_CUDA(call) ::limpid::cu::check_runtime(::limpid::cu::runtime().call, #call, __FILE__, __LINE__)
#define LIMPID_DRIVER(call) ::limpid::cu::check_driver(::limpid::cu::driver().call, #call, __FILE__, __LINE__)
