#include <limpid/cuda/error.h>

#include <atomic>

#include <limpid/cuda/libraries.h>

namespace limpid::cu {
namespace {

std::atomic<bool> sync_launches{false};

// Faults of a kernel or of the hardware: they end the device's context. Values of cudaError_t; the driver's are the
// same.
bool is_sticky(int status) {
  switch (status) {
    case 214:  // ECC error that cannot be corrected
    case 220:  // NVLink
    case 700:  // illegal address
    case 702:  // kernel ran into the watchdog
    case 710:  // device-side assertion
    case 714:  // hardware stack
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // unspecified launch failure
      return true;
    default:
      return false;
  }
}

// "cudaMalloc(&p, n)" -> "cudaMalloc"
std::string name_of_call(const char* call) {
  const std::string text = call;
  return text.substr(0, text.find('('));
}

// The last two parts of a path: what is enough to find the line.
std::string short_place(const char* file, int line) {
  std::string path = file;
  const std::size_t last = path.rfind('/');
  const std::size_t before = last == std::string::npos || last == 0 ? std::string::npos : path.rfind('/', last - 1);
  if (before != std::string::npos) path.erase(0, before + 1);
  return path + ":" + std::to_string(line);
}

[[noreturn]] LIMPID_NOINLINE void raise(const std::string& call, int status, const char* text, const char* name,
                                        bool may_be_a_kernels, const char* file, int line) {
  const bool sticky = is_sticky(status);
  std::string message = concat("[cuda] ", call, " failed: ", text ? text : "unknown error", " (", name ? name : "?",
                               ", ", status, ") at ", short_place(file, line));
  if (sticky && may_be_a_kernels) {
    message += ". A kernel that was launched earlier may have caused it: with LIMPID_CUDA_SYNC=1 it is named";
  }
  if (sticky) message += ". The GPU's state is lost: start the program again";
  CudaError error(std::move(message), call, status, sticky);
  error.set_where(concat(file, ":", line));
  throw error;
}

}  // namespace

void check_runtime(int status, const char* call, const char* file, int line) {
  if (LIMPID_LIKELY(status == kSuccess)) return;
  const RuntimeApi& api = runtime();
  api.cudaGetLastError();
  raise(name_of_call(call), status, api.cudaGetErrorString(status), api.cudaGetErrorName(status), !launch_sync(), file,
        line);
}

void check_driver(int status, const char* call, const char* file, int line) {
  if (LIMPID_LIKELY(status == kSuccess)) return;
  const char *text = nullptr, *name = nullptr;
  driver().cuGetErrorString(status, &text);
  driver().cuGetErrorName(status, &name);
  raise(name_of_call(call), status, text, name, !launch_sync(), file, line);
}

void check_launch(int status, const char* kernel, void* stream, const char* file, int line) {
  const RuntimeApi& api = runtime();
  if (status == kSuccess && launch_sync()) status = api.cudaStreamSynchronize(static_cast<StreamHandle>(stream));
  if (LIMPID_LIKELY(status == kSuccess)) return;
  api.cudaGetLastError();
  raise(kernel, status, api.cudaGetErrorString(status), api.cudaGetErrorName(status), !launch_sync(), file, line);
}

void set_launch_sync(bool on) { sync_launches.store(on, std::memory_order_relaxed); }
bool launch_sync() { return sync_launches.load(std::memory_order_relaxed); }

}  // namespace limpid::cu
