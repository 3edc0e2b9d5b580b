// What the adapters share: from tensors to operands, and the place where a kernel is queued. Needs CUDA's headers.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/cuda/error.h>
#include <limpid/cuda/kernels/operands.cuh>
#include <limpid/cuda/libraries.h>
#include <limpid/cuda/runtime.h>
#include <limpid/tensor/raw.h>

namespace limpid::cu {

inline Input input(const Tensor& x) { return x.defined() ? Input{x.raw_data(), x.strides()} : Input{}; }
inline Output output(Tensor& x) { return {x.raw_mutable_data(), x.strides()}; }
inline const void* data_or_null(const Tensor& x) { return x.defined() ? x.raw_data() : nullptr; }
inline void* data_or_null(Tensor& x) { return x.defined() ? x.raw_mutable_data() : nullptr; }

// The tensor's device is current, and work goes to its current stream.
class Queue {
 public:
  explicit Queue(const Tensor& on) : Queue(on.device()) {}
  explicit Queue(Device device) : guard_(device.index), stream_(current_stream(device.index)) {}
  cudaStream_t stream() const { return stream_.handle; }
  operator cudaStream_t() const { return stream_.handle; }
  Stream handle() const { return stream_; }
  // Copies bytes to the host behind the queued work, and waits. IndexError when that work met a bad index.
  void read_back(void* to, const void* from, std::size_t bytes) const {
    LIMPID_CUDA(cudaMemcpyAsync(to, from, bytes, kDeviceToHost, stream_.handle));
    stream_.synchronize();
  }

 private:
  DeviceGuard guard_;
  Stream stream_;
};

}  // namespace limpid::cu

// Queues a kernel: LIMPID_LAUNCH("relu", queue, unary(..., queue)). CudaError that names it.
#define LIMPID_LAUNCH(name, queue, call) \
  ::limpid::cu::check_launch(static_cast<int>(call), name, (queue).stream(), __FILE__, __LINE__)
