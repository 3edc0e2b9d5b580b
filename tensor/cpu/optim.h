// Fused optimizer steps over a table of parameter chunks, on the CPU, float and double. Update equations are PyTorch's
// single-tensor paths; scalars are computed in double and rounded to T once. Chunks are cut into fixed pieces for the
// thread pool; sums have a fixed order.
#pragma once

#include <cstdint>
#include <span>

namespace limpid::cpu {

// One parameter: n elements; states are null where the rule needs none.
template <class T>
struct Chunk {
  T* p = nullptr;
  const T* g = nullptr;
  T* s0 = nullptr;
  T* s1 = nullptr;
  T* s2 = nullptr;
  std::int64_t n = 0;
};

struct SgdStep {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, first_step = false;  // first_step: the momentum buffer takes the gradient as it is
};
struct AdamStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false, amsgrad = false;  // decoupled = AdamW
  std::int64_t step = 1;                    // counts from 1
};
struct RmspropStep {
  double lr = 0, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false;
};
struct LambStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0, grad_scale = 1;
  bool adapt = false, trust_clip = false;
  std::int64_t step = 1;
};
struct LarsStep {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0, trust_coefficient = 1e-3, eps = 1e-8;
  bool nesterov = false, first_step = false, adapt = false, trust_clip = false;
};

// s0: momentum buffer (if momentum != 0).
template <class T>
void sgd_step(std::span<const Chunk<T>> chunks, const SgdStep& step);
// s0: first moment, s1: second moment, s2: largest second moment (if amsgrad).
template <class T>
void adam_step(std::span<const Chunk<T>> chunks, const AdamStep& step);
// s0: square average, s1: momentum buffer (if momentum != 0), s2: gradient average (if centered).
template <class T>
void rmsprop_step(std::span<const Chunk<T>> chunks, const RmspropStep& step);
// Rules with a trust ratio, which they return; one tensor a call. s0: first moment, s1: second moment.
template <class T>
double lamb_step(const Chunk<T>& chunk, const LambStep& step);
// s0: momentum buffer (if momentum != 0).
template <class T>
double lars_step(const Chunk<T>& chunk, const LarsStep& step);

template <class T>
struct ConstSpan {
  const T* data = nullptr;
  std::int64_t n = 0;
};
template <class T>
struct MutableSpan {
  T* data = nullptr;
  std::int64_t n = 0;
};
// Sum of squares over all tensors, in double, fixed order.
template <class T>
double sum_of_squares(std::span<const ConstSpan<T>> tensors);
// x *= factor, in place.
template <class T>
void scale_tensors(std::span<const MutableSpan<T>> tensors, double factor);
// x = min(max(x, low), high), in place; NaN stays NaN.
template <class T>
void clamp_tensors(std::span<const MutableSpan<T>> tensors, double low, double high);

}  // namespace limpid::cpu
