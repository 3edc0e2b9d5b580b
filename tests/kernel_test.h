// Shared by the kernel tests: guarded buffers, random fill, comparison with a reference, bits for several thread
// counts.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/tensor/cpu/parallel.h>

namespace kernel_test {

// n elements, 64-byte aligned, between guard zones of a known pattern. Fresh contents are NaN-like garbage.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t n) : n_(n), bytes_(static_cast<std::size_t>(n) * sizeof(T) + 2 * kGuard + 64, 0xA5) {
    auto address = reinterpret_cast<std::uintptr_t>(bytes_.data()) + kGuard;
    offset_ = static_cast<std::size_t>((address + 63) / 64 * 64 - reinterpret_cast<std::uintptr_t>(bytes_.data()));
    std::memset(bytes_.data() + offset_, 0xFF, static_cast<std::size_t>(n) * sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data() + offset_); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + offset_); }
  T& operator[](std::int64_t i) { return data()[i]; }
  const T& operator[](std::int64_t i) const { return data()[i]; }
  std::int64_t size() const { return n_; }
  bool intact() const {
    const std::size_t end = offset_ + static_cast<std::size_t>(n_) * sizeof(T);
    for (std::size_t i = 0; i < offset_; ++i) {
      if (bytes_[i] != 0xA5) return false;
    }
    for (std::size_t i = end; i < bytes_.size(); ++i) {
      if (bytes_[i] != 0xA5) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 128;
  std::int64_t n_;
  std::size_t offset_ = 0;
  std::vector<unsigned char> bytes_;
};

// Small deterministic generator (xorshift), values in [-1, 1).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  double next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<double>(state_ >> 11) / 4503599627370496.0 - 1.0;
  }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>((next() + 1) / 2 * static_cast<double>(n)) % n;
  }
  template <class T>
  void fill(Guarded<T>& x) {
    for (std::int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(next());
  }

 private:
  std::uint64_t state_;
};

template <class T>
double tolerance(double terms) {
  return (sizeof(T) == 4 ? 2e-6 : 2e-15) * (1 + std::sqrt(terms));
}

// Largest |x - want| over the largest |want| (at least 1); NaN anywhere unexpected gives infinity.
template <class T>
double error_of(const Guarded<T>& x, const std::vector<double>& want) {
  double scale = 1, worst = 0;
  for (double v : want) scale = std::max(scale, std::isfinite(v) ? std::fabs(v) : 0.0);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double a = static_cast<double>(x[i]), b = want[static_cast<std::size_t>(i)];
    if (std::isnan(a) && std::isnan(b)) continue;
    const double e = std::fabs(a - b);
    if (!(e <= 1e300)) return INFINITY;
    worst = std::max(worst, e);
  }
  return worst / scale;
}

template <class T>
bool same_bits(const Guarded<T>& a, const Guarded<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0;
}

// Restores the thread count at the end of a test.
struct Threads {
  int before = limpid::cpu::num_threads();
  ~Threads() { limpid::cpu::set_num_threads(before); }
};

// Runs fn(output) with 1, 2 and 3 threads into fresh outputs; checks guards and that the bits agree. Returns the
// output.
template <class T, class Fn>
Guarded<T> run_all_threads(std::int64_t n, const Fn& fn) {
  Threads restore;
  limpid::cpu::set_num_threads(1);
  Guarded<T> first(n);
  fn(first);
  CHECK(first.intact());
  for (int threads : {2, 3}) {
    limpid::cpu::set_num_threads(threads);
    Guarded<T> other(n);
    fn(other);
    CHECK(other.intact());
    CHECK(same_bits(first, other));
  }
  return first;
}

}  // namespace kernel_test
