// Loss scaling: unscaling gradients while looking for what is not finite, and the rule that moves the scale.
#include <atomic>
#include <cmath>

#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>

namespace limpid::cpu {
namespace {

// Whether all n elements are finite; they are multiplied by `factor` on the way.
template <class T>
bool unscale(T* x, std::int64_t n, float factor) {
  using C = compute_t<T>;
  bool finite = true;
  for (std::int64_t i = 0; i < n; i++) {
    C value = static_cast<C>(x[i]);
    finite &= value - value == C(0);  // infinity and NaN give NaN
    x[i] = static_cast<T>(factor == 1 ? value : value * static_cast<C>(factor));
  }
  return finite;
}

}  // namespace

void amp_unscale(std::span<Tensor> grads, Tensor& found_inf, const Tensor& inv_scale) {
  const float factor = *inv_scale.data<float>();
  std::atomic<bool> all_finite{true};
  for (Tensor& grad : grads) {
    visit_floating(grad.dtype(), "amp_unscale", [&]<class T>() {
      T* x = grad.mutable_data<T>();
      parallel_chunks(grad.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        if (!unscale(x + begin, end - begin, factor)) all_finite.store(false, std::memory_order_relaxed);
      });
    });
  }
  if (!all_finite) *found_inf.mutable_data<float>() = 1;
}

void amp_update(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth, double backoff,
                std::int64_t interval) {
  float& s = *scale.mutable_data<float>();
  std::int32_t& tracker = *growth_tracker.mutable_data<std::int32_t>();
  if (*found_inf.data<float>() != 0) {
    s = static_cast<float>(static_cast<double>(s) * backoff);
    tracker = 0;
  } else if (++tracker == interval) {
    const float grown = static_cast<float>(static_cast<double>(s) * growth);
    if (std::isfinite(grown)) s = grown;
    tracker = 0;
  }
}

}  // namespace limpid::cpu
