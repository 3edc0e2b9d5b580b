// A CPU tensor copied to the emulator's device memory, and back: same strides, guarded on both sides, known to the
// access checker.
#pragma once

#include <cstring>
#include <vector>

#include <cudasim/device_buffer.h>
#include <cudasim/orders.h>

#include <limpid/cuda/kernels/operands.cuh>
#include <limpid/tensor/raw.h>

namespace limpid::cudasim {

class DeviceTensor {
 public:
  // written: false leaves the memory as an allocation finds it, so that reading it before writing is a finding.
  explicit DeviceTensor(const Tensor& host, bool written = true) : host_(host), bytes_(host.storage()->bytes()) {
    if (!written || bytes_.size() == 0) return;
    const auto* from = static_cast<const unsigned char*>(host.storage()->data());
    bytes_.assign(std::vector<unsigned char>(from, from + bytes_.size()));
  }
  void* data() { return bytes_.data() + static_cast<std::size_t>(host_.impl()->offset) * size_of(host_.dtype()); }
  template <class T>
  T* data_as() {
    return static_cast<T*>(data());
  }
  const Shape& shape() const { return host_.shape(); }
  DType dtype() const { return host_.dtype(); }
  operator cu::Input() { return {data(), host_.strides()}; }
  operator cu::Output() { return {data(), host_.strides()}; }
  bool intact() const { return bytes_.intact(); }
  // A new CPU tensor with what is on the device.
  Tensor read() const {
    const Shape flat{static_cast<std::int64_t>(bytes_.size() / size_of(host_.dtype()))};
    Tensor all = raw::empty(flat, host_.dtype(), kCpu);
    if (bytes_.size() > 0) std::memcpy(all.raw_mutable_data(), bytes_.data(), bytes_.size());
    return raw::as_strided(all, host_.shape(), host_.strides(), host_.impl()->offset);
  }

 private:
  Tensor host_;
  DeviceBuffer<unsigned char> bytes_;
};

}  // namespace limpid::cudasim
