// Between 16-bit storage and the float workspaces of the CPU kernels. Internal to tensor/cpu.
#pragma once

#include <cstddef>
#include <cstdint>

#include <limpid/tensor/cpu/half_loops.h>
#include <limpid/tensor/cpu/loop.h>

namespace limpid::cpu {

inline constexpr bool is_narrow(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

// Parts of a workspace start at multiples of 64 bytes.
inline constexpr std::size_t aligned64(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
inline constexpr std::size_t float_bytes(std::int64_t count) {
  return aligned64(static_cast<std::size_t>(count) * sizeof(float));
}

// Hands out the parts of a workspace in order.
class Parts {
 public:
  explicit Parts(Tensor& workspace)
      : at_(workspace.defined() ? static_cast<char*>(workspace.raw_mutable_data()) : nullptr) {}
  void* take(std::size_t bytes) {
    void* part = at_;
    at_ += aligned64(bytes);
    return part;
  }
  float* floats(std::int64_t count) { return static_cast<float*>(take(float_bytes(count))); }

 private:
  char* at_;
};

template <class To, class From>
void convert_all(std::int64_t n, const From* from, To* to) {
  parallel_chunks(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    convert_run(end - begin, from + begin, to + begin);
  });
}

// Elements of 16-bit storage that elementwise loops widen at a time, on the stack.
inline constexpr std::int64_t kBlock = 512;

}  // namespace limpid::cpu
