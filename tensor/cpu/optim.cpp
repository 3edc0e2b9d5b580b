// Targets as in panel.cpp. The loops are memory bound and vectorised by the compiler for each target.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/optim.cpp>
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>

#include <limpid/tensor/cpu/math_loops.h>
#include <limpid/tensor/cpu/optim.h>
#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/cpu/simd-inl.h>

#ifndef LIMPID_TENSOR_CPU_OPTIM_ONCE
#define LIMPID_TENSOR_CPU_OPTIM_ONCE
namespace limpid::cpu {
namespace {

// A step on one piece of a chunk.
template <class T>
struct OptimLoops {
  void (*sgd)(const Chunk<T>& piece, const SgdStep& step);
  void (*adam)(const Chunk<T>& piece, const AdamStep& step);
  void (*rmsprop)(const Chunk<T>& piece, const RmspropStep& step);
  // Moves the moments; adds up p^2 and the squares of the update.
  void (*lamb_moments)(const Chunk<T>& piece, const LambStep& step, double& weight_squares, double& update_squares);
  void (*lamb_apply)(const Chunk<T>& piece, const LambStep& step, double trust);
  void (*lars)(const Chunk<T>& piece, const LarsStep& step, double trust);
};

}  // namespace
}  // namespace limpid::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

// g' = g + wd p; buf = g' on the first step, else mu buf + (1 - dampening) g'; d = nesterov ? g' + mu buf : buf; p -=
// lr d.
template <class T>
void sgd(const Chunk<T>& piece, const SgdStep& s) {
  T* HWY_RESTRICT p = piece.p;
  const T* HWY_RESTRICT g = piece.g;
  T* HWY_RESTRICT buffer = piece.s0;
  const T lr = static_cast<T>(s.lr), decay = static_cast<T>(s.weight_decay), mu = static_cast<T>(s.momentum);
  const T fresh = static_cast<T>(1.0 - s.dampening);
  if (s.momentum == 0) {
    for (std::int64_t i = 0; i < piece.n; ++i) p[i] -= lr * (g[i] + decay * p[i]);
  } else if (s.first_step) {
    const T factor = s.nesterov ? T(1) + mu : T(1);
    for (std::int64_t i = 0; i < piece.n; ++i) {
      const T d = g[i] + decay * p[i];
      buffer[i] = d;
      p[i] -= lr * (factor * d);
    }
  } else if (s.nesterov) {
    for (std::int64_t i = 0; i < piece.n; ++i) {
      const T d = g[i] + decay * p[i];
      const T b = mu * buffer[i] + fresh * d;
      buffer[i] = b;
      p[i] -= lr * (d + mu * b);
    }
  } else {
    for (std::int64_t i = 0; i < piece.n; ++i) {
      const T d = g[i] + decay * p[i];
      const T b = mu * buffer[i] + fresh * d;
      buffer[i] = b;
      p[i] -= lr * b;
    }
  }
}

// m += (1 - beta1)(g' - m); v = beta2 v + (1 - beta2) g'^2; p -= lr / bc1 * m / (sqrt(v) / sqrt(bc2) + eps).
template <class T, bool kAmsgrad>
HWY_INLINE void adam_loop(const Chunk<T>& piece, const AdamStep& s) {
  T* HWY_RESTRICT p = piece.p;
  const T* HWY_RESTRICT g = piece.g;
  T* HWY_RESTRICT m = piece.s0;
  T* HWY_RESTRICT v = piece.s1;
  T* HWY_RESTRICT largest = piece.s2;
  const double steps = static_cast<double>(s.step);
  const double bc1 = 1.0 - std::pow(s.beta1, steps), bc2 = 1.0 - std::pow(s.beta2, steps);
  const T rate = static_cast<T>(s.lr / bc1), root = static_cast<T>(std::sqrt(bc2)), eps = static_cast<T>(s.eps);
  const T keep = s.decoupled ? static_cast<T>(1.0 - s.lr * s.weight_decay) : T(1);
  const T decay = s.decoupled ? T(0) : static_cast<T>(s.weight_decay);
  const T fresh1 = static_cast<T>(1.0 - s.beta1), beta2 = static_cast<T>(s.beta2),
          fresh2 = static_cast<T>(1.0 - s.beta2);
  for (std::int64_t i = 0; i < piece.n; ++i) {
    const T q = p[i] * keep;
    const T d = g[i] + decay * q;
    const T first = m[i] + fresh1 * (d - m[i]);
    const T second = beta2 * v[i] + fresh2 * (d * d);
    m[i] = first;
    v[i] = second;
    T used = second;
    if constexpr (kAmsgrad) {
      used = largest[i] < second || second != second ? second : largest[i];
      largest[i] = used;
    }
    p[i] = q - rate * (first / (std::sqrt(used) / root + eps));
  }
}
template <class T>
void adam(const Chunk<T>& piece, const AdamStep& s) {
  s.amsgrad ? adam_loop<T, true>(piece, s) : adam_loop<T, false>(piece, s);
}

// v = alpha v + (1 - alpha) g'^2; centered: a += (1 - alpha)(g' - a), v - a^2 under the root; avg = sqrt(.) + eps;
// with momentum: buf = mu buf + g' / avg, p -= lr buf; else p -= lr g' / avg.
template <class T, bool kCentered, bool kMomentum>
HWY_INLINE void rmsprop_loop(const Chunk<T>& piece, const RmspropStep& s) {
  T* HWY_RESTRICT p = piece.p;
  const T* HWY_RESTRICT g = piece.g;
  T* HWY_RESTRICT v = piece.s0;
  T* HWY_RESTRICT buffer = piece.s1;
  T* HWY_RESTRICT average = piece.s2;
  const T lr = static_cast<T>(s.lr), alpha = static_cast<T>(s.alpha), fresh = static_cast<T>(1.0 - s.alpha);
  const T eps = static_cast<T>(s.eps), decay = static_cast<T>(s.weight_decay), mu = static_cast<T>(s.momentum);
  for (std::int64_t i = 0; i < piece.n; ++i) {
    const T d = g[i] + decay * p[i];
    const T square = alpha * v[i] + fresh * (d * d);
    v[i] = square;
    T under = square;
    if constexpr (kCentered) {
      const T a = average[i] + fresh * (d - average[i]);
      average[i] = a;
      under = square - a * a;
    }
    T move = d / (std::sqrt(under) + eps);
    if constexpr (kMomentum) {
      move = mu * buffer[i] + move;
      buffer[i] = move;
    }
    p[i] -= lr * move;
  }
}
template <class T>
void rmsprop(const Chunk<T>& piece, const RmspropStep& s) {
  if (s.centered) {
    s.momentum != 0 ? rmsprop_loop<T, true, true>(piece, s) : rmsprop_loop<T, true, false>(piece, s);
  } else {
    s.momentum != 0 ? rmsprop_loop<T, false, true>(piece, s) : rmsprop_loop<T, false, false>(piece, s);
  }
}

// m += (1 - beta1)(g' - m); v = beta2 v + (1 - beta2) g'^2; u = m / bc1 / (sqrt(v) / sqrt(bc2) + eps) + wd p, where
// g' = grad_scale g. The norm of u is needed before u can be used: it is computed once to be measured, once to be applied.
template <class T>
struct LambScalars {
  explicit LambScalars(const LambStep& s)
      : bc1(static_cast<T>(1.0 - std::pow(s.beta1, static_cast<double>(s.step)))),
        root(static_cast<T>(std::sqrt(1.0 - std::pow(s.beta2, static_cast<double>(s.step))))),
        eps(static_cast<T>(s.eps)),
        decay(static_cast<T>(s.weight_decay)) {}
  T bc1, root, eps, decay;
  HWY_INLINE T update(T p, T m, T v) const { return m / bc1 / (std::sqrt(v) / root + eps) + decay * p; }
};
template <class T>
void lamb_moments(const Chunk<T>& piece, const LambStep& s, double& weight_squares, double& update_squares) {
  const LambScalars<T> scalars(s);
  const T fresh1 = static_cast<T>(1.0 - s.beta1), beta2 = static_cast<T>(s.beta2),
          fresh2 = static_cast<T>(1.0 - s.beta2), scale = static_cast<T>(s.grad_scale);
  double weights = 0, updates = 0;
  for (std::int64_t i = 0; i < piece.n; ++i) {
    const T g = scale * piece.g[i], p = piece.p[i];
    const T m = piece.s0[i] + fresh1 * (g - piece.s0[i]);
    const T v = beta2 * piece.s1[i] + fresh2 * (g * g);
    piece.s0[i] = m;
    piece.s1[i] = v;
    const double w = static_cast<double>(p), u = static_cast<double>(scalars.update(p, m, v));
    weights += w * w;
    updates += u * u;
  }
  weight_squares += weights;
  update_squares += updates;
}
template <class T>
void lamb_apply(const Chunk<T>& piece, const LambStep& s, double trust) {
  const LambScalars<T> scalars(s);
  const T rate = static_cast<T>(s.lr * trust);
  for (std::int64_t i = 0; i < piece.n; ++i) {
    piece.p[i] -= rate * scalars.update(piece.p[i], piece.s0[i], piece.s1[i]);
  }
}

// d = trust (g + wd p), then the steps of SGD.
template <class T>
void lars(const Chunk<T>& piece, const LarsStep& s, double trust) {
  const T lr = static_cast<T>(s.lr), decay = static_cast<T>(s.weight_decay), mu = static_cast<T>(s.momentum);
  const T ratio = static_cast<T>(trust);
  const T keep = s.first_step ? T(0) : mu, fresh = s.first_step ? T(1) : static_cast<T>(1.0 - s.dampening);
  for (std::int64_t i = 0; i < piece.n; ++i) {
    const T d = (piece.g[i] + decay * piece.p[i]) * ratio;
    T move = d;
    if (s.momentum != 0) {
      const T b = keep * piece.s0[i] + fresh * d;
      piece.s0[i] = b;
      move = s.nesterov ? d + mu * b : b;
    }
    piece.p[i] -= lr * move;
  }
}

template <class T>
inline constexpr OptimLoops<T> kOptimLoops = {&sgd<T>,          &adam<T>,       &rmsprop<T>,
                                              &lamb_moments<T>, &lamb_apply<T>, &lars<T>};

const void* optim_loops_float() { return &kOptimLoops<float>; }
const void* optim_loops_double() { return &kOptimLoops<double>; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
namespace {

HWY_EXPORT(optim_loops_float);
HWY_EXPORT(optim_loops_double);

template <class T>
const OptimLoops<T>& optim_loops() {
  if constexpr (sizeof(T) == 4) {
    return *static_cast<const OptimLoops<T>*>(HWY_DYNAMIC_DISPATCH(optim_loops_float)());
  } else {
    return *static_cast<const OptimLoops<T>*>(HWY_DYNAMIC_DISPATCH(optim_loops_double)());
  }
}

constexpr std::int64_t kPiece = 16384;  // elements a task

// Calls fn(index of the tensor, begin, end) for all pieces of tensors of the given lengths.
template <class Length, class Fn>
void for_pieces(std::int64_t count, const Length& length, const Fn& fn) {
  std::int64_t pieces = 0, total = 0;
  for (std::int64_t t = 0; t < count; ++t) {
    pieces += ceil_div(length(t), kPiece);
    total += length(t);
  }
  if (total <= 2 * kPiece) {
    for (std::int64_t t = 0; t < count; ++t) fn(t, std::int64_t{0}, length(t));
    return;
  }
  parallel_for(pieces, [&](std::int64_t piece) {
    std::int64_t t = 0;
    for (std::int64_t here; piece >= (here = ceil_div(length(t), kPiece)); ++t) piece -= here;
    fn(t, piece * kPiece, std::min(length(t), (piece + 1) * kPiece));
  });
}

template <class T>
Chunk<T> piece_of(const Chunk<T>& c, std::int64_t begin, std::int64_t end) {
  const auto at = [&](T* s) { return s != nullptr ? s + begin : nullptr; };
  return {c.p + begin, c.g + begin, at(c.s0), at(c.s1), at(c.s2), end - begin};
}

template <class T, class Step>
void step_all(std::span<const Chunk<T>> chunks, void (*loop)(const Chunk<T>&, const Step&), const Step& step) {
  for_pieces(
      static_cast<std::int64_t>(chunks.size()), [&](std::int64_t t) { return chunks[static_cast<std::size_t>(t)].n; },
      [&](std::int64_t t, std::int64_t begin, std::int64_t end) {
        loop(piece_of(chunks[static_cast<std::size_t>(t)], begin, end), step);
      });
}

}  // namespace

template <class T>
void sgd_step(std::span<const Chunk<T>> chunks, const SgdStep& step) {
  step_all(chunks, optim_loops<T>().sgd, step);
}
template <class T>
void adam_step(std::span<const Chunk<T>> chunks, const AdamStep& step) {
  step_all(chunks, optim_loops<T>().adam, step);
}
template <class T>
void rmsprop_step(std::span<const Chunk<T>> chunks, const RmspropStep& step) {
  step_all(chunks, optim_loops<T>().rmsprop, step);
}

namespace {

// part(begin, end) adds to its two sums; at most kParts parts of equal length, added in order.
struct Sums {
  double first = 0, second = 0;
};
template <class Part>
Sums sum_parts(std::int64_t n, const Part& part) {
  constexpr std::int64_t kParts = 64;
  const std::int64_t parts = std::clamp<std::int64_t>(n / (2 * kPiece), 1, kParts), length = ceil_div(n, parts);
  Sums partial[kParts];
  parallel_for(parts, [&](std::int64_t q) {
    const std::int64_t begin = std::min(n, q * length);
    part(begin, std::min(n, begin + length), partial[q]);
  });
  Sums total;
  for (std::int64_t q = 0; q < parts; ++q) {
    total.first += partial[q].first;
    total.second += partial[q].second;
  }
  return total;
}

}  // namespace

template <class T>
double lamb_step(const Chunk<T>& chunk, const LambStep& step) {
  const OptimLoops<T>& loops = optim_loops<T>();
  const Sums squares = sum_parts(chunk.n, [&](std::int64_t begin, std::int64_t end, Sums& sums) {
    loops.lamb_moments(piece_of(chunk, begin, end), step, sums.first, sums.second);
  });
  double trust = 1;
  if (step.adapt && squares.first > 0 && squares.second > 0) trust = std::sqrt(squares.first) / std::sqrt(squares.second);
  if (step.trust_clip) trust = std::min(trust, 1.0);
  for_pieces(
      1, [&](std::int64_t) { return chunk.n; },
      [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        loops.lamb_apply(piece_of(chunk, begin, end), step, trust);
      });
  return trust;
}

template <class T>
double lars_step(const Chunk<T>& chunk, const LarsStep& step) {
  double trust = 1;
  if (step.adapt) {
    const MathLoops<T>& loops = math_loops<T>();
    const Sums squares = sum_parts(chunk.n, [&](std::int64_t begin, std::int64_t end, Sums& sums) {
      sums.first = loops.sum_squares(end - begin, chunk.p + begin);
      sums.second = loops.sum_squares(end - begin, chunk.g + begin);
    });
    const double weight = std::sqrt(squares.first), gradient = std::sqrt(squares.second);
    if (weight > 0 && gradient > 0)
      trust = step.trust_coefficient * weight / (gradient + weight * step.weight_decay + step.eps);
    if (step.trust_clip) trust = std::min(trust / step.lr, 1.0);
  }
  for_pieces(
      1, [&](std::int64_t) { return chunk.n; },
      [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        optim_loops<T>().lars(piece_of(chunk, begin, end), step, trust);
      });
  return trust;
}

template <class T>
double sum_of_squares(std::span<const ConstSpan<T>> tensors) {
  const MathLoops<T>& loops = math_loops<T>();
  double total = 0;
  for (const ConstSpan<T>& t : tensors) {
    total += sum_parts(t.n, [&](std::int64_t begin, std::int64_t end, Sums& sums) {
               sums.first = loops.sum_squares(end - begin, t.data + begin);
             }).first;
  }
  return total;
}

template <class T>
void scale_tensors(std::span<const MutableSpan<T>> tensors, double factor) {
  const MathLoops<T>& loops = math_loops<T>();
  for_pieces(
      static_cast<std::int64_t>(tensors.size()), [&](std::int64_t t) { return tensors[static_cast<std::size_t>(t)].n; },
      [&](std::int64_t t, std::int64_t begin, std::int64_t end) {
        T* x = tensors[static_cast<std::size_t>(t)].data + begin;
        loops.scale(end - begin, x, static_cast<T>(factor), x);
      });
}

template <class T>
void clamp_tensors(std::span<const MutableSpan<T>> tensors, double low, double high) {
  const MathLoops<T>& loops = math_loops<T>();
  for_pieces(
      static_cast<std::int64_t>(tensors.size()), [&](std::int64_t t) { return tensors[static_cast<std::size_t>(t)].n; },
      [&](std::int64_t t, std::int64_t begin, std::int64_t end) {
        loops.clamp(end - begin, static_cast<T>(low), static_cast<T>(high),
                    tensors[static_cast<std::size_t>(t)].data + begin);
      });
}

#define LIMPID_INSTANTIATE(T)                                                   \
  template void sgd_step<T>(std::span<const Chunk<T>>, const SgdStep&);         \
  template void adam_step<T>(std::span<const Chunk<T>>, const AdamStep&);       \
  template void rmsprop_step<T>(std::span<const Chunk<T>>, const RmspropStep&); \
  template double lamb_step<T>(const Chunk<T>&, const LambStep&);               \
  template double lars_step<T>(const Chunk<T>&, const LarsStep&);               \
  template double sum_of_squares<T>(std::span<const ConstSpan<T>>);             \
  template void scale_tensors<T>(std::span<const MutableSpan<T>>, double);      \
  template void clamp_tensors<T>(std::span<const MutableSpan<T>>, double, double);
LIMPID_INSTANTIATE(float)
LIMPID_INSTANTIATE(double)
#undef LIMPID_INSTANTIATE

}  // namespace limpid::cpu
#endif
