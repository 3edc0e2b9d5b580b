// Elementwise kernels outside the functor tables: selection, scaled addition, finiteness.
#include <atomic>
#include <cmath>

#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>
#include <limpid/tensor/cpu/math_kernels.h>

namespace limpid::cpu {
namespace {

template <class Bits>
void where_bits(Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b) {
  Bits* y = static_cast<Bits*>(out.raw_mutable_data());
  const bool* c = condition.data<bool>();
  const Bits* pa = static_cast<const Bits*>(a.raw_data());
  const Bits* pb = static_cast<const Bits*>(b.raw_data());
  run_loop(plan_loop<4>(out.shape(), {&out.strides(), &condition.strides(), &a.strides(), &b.strides()}), kGrain,
           [&](const std::int64_t (&at)[4], const std::int64_t (&step)[4], std::int64_t n) {
             for (std::int64_t i = 0; i < n; i++) {
               y[at[0] + i * step[0]] = c[at[1] + i * step[1]] ? pa[at[2] + i * step[2]] : pb[at[3] + i * step[3]];
             }
           });
}

template <class T>
bool finite(T value) {
  if constexpr (std::is_floating_point_v<compute_t<T>>) {
    return std::isfinite(static_cast<compute_t<T>>(value));
  } else {
    return true;
  }
}

}  // namespace

void where(Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b) {
  switch (size_of(out.dtype())) {
    case 1: return where_bits<std::uint8_t>(out, condition, a, b);
    case 2: return where_bits<std::uint16_t>(out, condition, a, b);
    case 4: return where_bits<std::uint32_t>(out, condition, a, b);
    default: return where_bits<std::uint64_t>(out, condition, a, b);
  }
}

void add_scaled(Tensor& out, const Tensor& x, double alpha) {
  visit_dtype(out.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    T* y = out.mutable_data<T>();
    const T* in = x.data<T>();
    if constexpr (std::is_floating_point_v<T>) {
      if (out.numel() >= 64 && same_dense(out, x)) return axpy<T>(out.numel(), static_cast<T>(alpha), in, y);
    }
    C factor = constant<C>(alpha);
    run_loop(plan_loop<2>(out.shape(), {&out.strides(), &x.strides()}), kGrain,
             [&](const std::int64_t (&at)[2], const std::int64_t (&step)[2], std::int64_t n) {
               for (std::int64_t i = 0; i < n; i++) {
                 T& target = y[at[0] + i * step[0]];
                 target = static_cast<T>(static_cast<C>(target) + factor * static_cast<C>(in[at[1] + i * step[1]]));
               }
             });
  });
}

void is_finite(Tensor& out, const Tensor& x) {
  bool* y = out.mutable_data<bool>();
  visit_dtype(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    run_loop(plan_loop<2>(out.shape(), {&out.strides(), &x.strides()}), kGrain,
             [&](const std::int64_t (&at)[2], const std::int64_t (&step)[2], std::int64_t n) {
               for (std::int64_t i = 0; i < n; i++) {
                 T value = in[at[1] + i * step[1]];
                 y[at[0] + i * step[0]] = finite(value);
               }
             });
  });
}

bool all_finite(const Tensor& x) {
  if (!is_floating(x.dtype())) return true;
  std::atomic<bool> good{true};
  visit_floating(x.dtype(), "all_finite", [&]<class T>() {
    const T* in = x.data<T>();
    run_loop(plan_loop<1>(x.shape(), {&x.strides()}), kGrain,
             [&](const std::int64_t (&at)[1], const std::int64_t (&step)[1], std::int64_t n) {
               // 0 * value is NaN for infinities and NaN alike, and stays so in a sum.
               compute_t<T> probe = 0;
               for (std::int64_t i = 0; i < n; i++) probe += 0 * static_cast<compute_t<T>>(in[at[0] + i * step[0]]);
               if (probe != 0) good.store(false, std::memory_order_relaxed);
             });
  });
  return good.load();
}

}  // namespace limpid::cpu
