// Device memory of a test: exactly n elements, known to the access checker, between guard zones that show stray writes even
// without it. The host reads and writes them directly. 16-byte aligned, as every allocation of a device is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include <cudasim/memory_map.h>

namespace limpid::cudasim {

template <class T>
class DeviceBuffer {
 public:
  // Contents that nobody has written: 0xFF bytes, and a finding if a kernel reads them.
  explicit DeviceBuffer(std::size_t n) : n_(n), bytes_(n * sizeof(T) + 2 * kGuard + 256, kGuardByte) {
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes_.data()) + kGuard;
    offset_ = (begin + 255) / 256 * 256 - reinterpret_cast<std::uintptr_t>(bytes_.data());
    std::memset(bytes_.data() + offset_, 0xFF, n * sizeof(T));
    add_memory(data(), n * sizeof(T), Space::device, false, "test buffer");
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) { assign(values); }
  DeviceBuffer(std::initializer_list<T> values) : DeviceBuffer(std::vector<T>(values)) {}
  ~DeviceBuffer() { remove_memory(data()); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return reinterpret_cast<T*>(bytes_.data() + offset_); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + offset_); }
  std::size_t size() const { return n_; }
  T operator[](std::size_t i) const { return data()[i]; }
  void assign(const std::vector<T>& values) {  // as many as there are
    if (n_ > 0) std::memcpy(data(), values.data(), n_ * sizeof(T));
    mark_initialised(data(), n_ * sizeof(T));
  }
  std::vector<T> values() const { return std::vector<T>(data(), data() + n_); }
  // No byte around the elements has changed.
  bool intact() const {
    for (std::size_t i = 0; i < bytes_.size(); i++) {
      const bool inside = i >= offset_ && i < offset_ + n_ * sizeof(T);
      if (!inside && bytes_[i] != kGuardByte) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 128;
  static constexpr unsigned char kGuardByte = 0xA5;
  std::size_t n_;
  std::vector<unsigned char> bytes_;
  std::size_t offset_ = 0;
};

}  // namespace limpid::cudasim
