// CUDA behind the hook of tensor/backend.h.
#include <limpid/tensor/backend.h>

#include <limpid/cuda/copies.h>
#include <limpid/cuda/cuda_memory.h>
#include <limpid/cuda/kernel_table.h>
#include <limpid/cuda/runtime.h>

namespace limpid {

const Backend& cuda_backend() {
  static constexpr Backend backend{
      .check_device = [](Device device) { cu::check_device(device.index); },
      .kernels = cu::cuda_kernels,
      .memory = [](int index) -> std::shared_ptr<memory::MemoryDevice> { return std::make_shared<cu::CudaMemory>(index); },
      .allocator = cu::allocator,
      .current_stream = [](int index) { return cu::current_stream(index).id(); },
      .copy = cu::copy,
      .pinned_allocator = cu::pinned_allocator,
      .wait_for_copies = cu::wait_for_copies,
  };
  return backend;
}

}  // namespace limpid
