// The update rules SGD, Adam, RMSprop, and those with a trust ratio.
#include <limpid/cuda/kernels/optim.cuh>

#include <cmath>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/multi_tensor.cuh>
#include <limpid/cuda/kernels/reduce_block.cuh>

namespace limpid::cu {
namespace {

// ---- update rules. Scalars are computed in double and rounded to C once, as on the CPU. `prepare` runs once a thread;
// `corrections` once a block, since it takes powers in double.

template <class C>
struct SgdRule {
  C lr, momentum, fresh, decay;
  bool has_momentum, nesterov;
  bool first = false;  // the momentum buffer takes the gradient as it is
  explicit SgdRule(const SgdArgs& a)
      : lr(static_cast<C>(a.lr)),
        momentum(static_cast<C>(a.momentum)),
        fresh(static_cast<C>(1.0 - a.dampening)),
        decay(static_cast<C>(a.weight_decay)),
        has_momentum(a.momentum != 0),
        nesterov(a.nesterov) {}
  __device__ void corrections(std::int64_t, double (&)[2]) const {}
  __device__ void prepare(std::int64_t step, const double (&)[2]) { first = step == 1; }
  __device__ LIMPID_INLINE void update(C& p, C g, C (&s)[3]) const {
    const C d = g + decay * p;
    if (!has_momentum) {
      p -= lr * d;
      return;
    }
    const C buffer = first ? d : momentum * s[0] + fresh * d;
    s[0] = buffer;
    p -= lr * (nesterov ? d + momentum * buffer : buffer);
  }
};

template <class C>
struct AdamRule {
  double lr64, beta1_64, beta2_64;
  C keep, decay, fresh1, beta2, fresh2, eps;
  bool amsgrad;
  C rate = 0, root = 0;
  explicit AdamRule(const AdamArgs& a)
      : lr64(a.lr),
        beta1_64(a.beta1),
        beta2_64(a.beta2),
        keep(a.decoupled ? static_cast<C>(1.0 - a.lr * a.weight_decay) : C(1)),
        decay(a.decoupled ? C(0) : static_cast<C>(a.weight_decay)),
        fresh1(static_cast<C>(1.0 - a.beta1)),
        beta2(static_cast<C>(a.beta2)),
        fresh2(static_cast<C>(1.0 - a.beta2)),
        eps(static_cast<C>(a.eps)),
        amsgrad(a.amsgrad) {}
  __device__ void corrections(std::int64_t step, double (&out)[2]) const {
    out[0] = 1.0 - std::pow(beta1_64, static_cast<double>(step));
    out[1] = 1.0 - std::pow(beta2_64, static_cast<double>(step));
  }
  __device__ void prepare(std::int64_t, const double (&correction)[2]) {
    rate = static_cast<C>(lr64 / correction[0]), root = static_cast<C>(std::sqrt(correction[1]));
  }
  __device__ LIMPID_INLINE void update(C& p, C g, C (&s)[3]) const {
    const C q = p * keep;
    const C d = g + decay * q;
    const C first = s[0] + fresh1 * (d - s[0]);
    const C second = beta2 * s[1] + fresh2 * (d * d);
    s[0] = first, s[1] = second;
    C used = second;
    if (amsgrad) {
      used = s[2] < second || second != second ? second : s[2];
      s[2] = used;
    }
    p = q - rate * (first / (std::sqrt(used) / root + eps));
  }
};

template <class C>
struct RmspropRule {
  C lr, alpha, fresh, eps, decay, momentum;
  bool centered, has_momentum;
  explicit RmspropRule(const RmspropArgs& a)
      : lr(static_cast<C>(a.lr)),
        alpha(static_cast<C>(a.alpha)),
        fresh(static_cast<C>(1.0 - a.alpha)),
        eps(static_cast<C>(a.eps)),
        decay(static_cast<C>(a.weight_decay)),
        momentum(static_cast<C>(a.momentum)),
        centered(a.centered),
        has_momentum(a.momentum != 0) {}
  __device__ void corrections(std::int64_t, double (&)[2]) const {}
  __device__ void prepare(std::int64_t, const double (&)[2]) {}
  __device__ LIMPID_INLINE void update(C& p, C g, C (&s)[3]) const {
    const C d = g + decay * p;
    const C square = alpha * s[0] + fresh * (d * d);
    s[0] = square;
    C under = square;
    if (centered) {
      const C average = s[2] + fresh * (d - s[2]);
      s[2] = average;
      under = square - average * average;
    }
    C move = d / (std::sqrt(under) + eps);
    if (has_momentum) {
      move = momentum * s[1] + move;
      s[1] = move;
    }
    p -= lr * move;
  }
};

// ---- one pass over the parameters with any rule of elements

// width elements from `at` on of a parameter P with states of type S.
template <int width, class P, class S, class Rule>
__device__ LIMPID_INLINE void update_group(const OptimTensor& t, std::int64_t at, const Rule& rule) {
  using C = compute_t<P>;
  P* param = static_cast<P*>(t.param) + at;
  Vector<P, width> p = load_vector<width>(static_cast<const P*>(param));
  const Vector<P, width> g = load_vector<width>(static_cast<const P*>(t.grad) + at);
  Vector<S, width> s[3] = {};
#pragma unroll
  for (int i = 0; i < 3; i++) {
    if (t.states[i] != nullptr) s[i] = load_vector<width>(static_cast<const S*>(t.states[i]) + at);
  }
#pragma unroll
  for (int k = 0; k < width; k++) {
    C value = load_number(p.values[k]);
    C states[3] = {static_cast<C>(load_number(s[0].values[k])), static_cast<C>(load_number(s[1].values[k])),
                   static_cast<C>(load_number(s[2].values[k]))};
    rule.update(value, load_number(g.values[k]), states);
    p.values[k] = store_number<P>(value);
#pragma unroll
    for (int i = 0; i < 3; i++) s[i].values[k] = store_number<S>(states[i]);
  }
  store_vector(param, p);
#pragma unroll
  for (int i = 0; i < 3; i++) {
    if (t.states[i] != nullptr) store_vector(static_cast<S*>(t.states[i]) + at, s[i]);
  }
}

template <class P, class S, class Rule>
__device__ LIMPID_INLINE void update_piece(const OptimTensor& t, const Piece& piece, const Rule& rule) {
  constexpr int width = kPieceWidth<P>;
  const bool aligned = is_piece_aligned<P>(t.param) && is_piece_aligned<P>(t.grad) &&
                       is_piece_aligned<S>(t.states[0]) && is_piece_aligned<S>(t.states[1]) &&
                       is_piece_aligned<S>(t.states[2]);
  const std::int64_t groups_end = aligned ? piece.begin + (piece.end - piece.begin) / width * width : piece.begin;
  for (std::int64_t i = piece.begin + static_cast<std::int64_t>(threadIdx.x) * width; i < groups_end;
       i += kPieceThreads * width) {
    update_group<width, P, S>(t, i, rule);
  }
  for (std::int64_t i = groups_end + threadIdx.x; i < piece.end; i += kPieceThreads) update_group<1, P, S>(t, i, rule);
}

template <class P, class S, class Rule>
__global__ void __launch_bounds__(kPieceThreads)
    step_kernel(TensorTable table, Rule rule, std::int64_t step, Guard guard) {
  if (guard.found_inf != nullptr && *guard.found_inf != 0.0f) return;
  LIMPID_SHARED_ARRAY(double, shared, 2);
  if (guard.skipped != nullptr) step -= *guard.skipped;
  if (threadIdx.x == 0) {
    double values[2] = {1, 1};
    rule.corrections(step, values);
    shared[0] = values[0], shared[1] = values[1];
  }
  __syncthreads();
  const double corrections[2] = {shared[0], shared[1]};
  rule.prepare(step, corrections);
  const Piece piece = table.piece(blockIdx.x);
  update_piece<P, S>(table.tensors[piece.tensor], piece, rule);
}

// Rule<compute type> on parameters P with states S.
template <template <class> class Rule, class P, class S, class Args>
cudaError_t run(std::span<const OptimTensor> tensors, const Args& args, std::int64_t step, Guard guard,
                cudaStream_t stream) {
  using R = Rule<compute_t<P>>;
  return for_tensors(tensors, [&](const TensorTable& table, std::size_t) {
    return launch(step_kernel<P, S, R>, table.blocks, kPieceThreads, 0, stream, table, R(args), step, guard);
  });
}

template <template <class> class Rule, class Args>
cudaError_t run_any(std::span<const OptimTensor> tensors, OptimTypes types, const Args& args, std::int64_t step,
                    Guard guard, cudaStream_t stream) {
  return dispatch_floating(types.param, [&]<class P>() -> cudaError_t {
    if (types.state == types.param) return run<Rule, P, P>(tensors, args, step, guard, stream);
    if constexpr (kIsNarrow<P>) {
      if (types.state == float32) return run<Rule, P, float>(tensors, args, step, guard, stream);
    }
    return cudaErrorInvalidValue;
  });
}

// ---- rules with a trust ratio: norms, ratios, update

template <class T>
struct LambRule {  // the update; CPU: LambScalars
  T correction1, root, eps, decay, fresh1, beta2, fresh2, scale;
  explicit LambRule(const LambArgs& a)
      : correction1(static_cast<T>(1.0 - std::pow(a.beta1, static_cast<double>(a.step)))),
        root(static_cast<T>(std::sqrt(1.0 - std::pow(a.beta2, static_cast<double>(a.step))))),
        eps(static_cast<T>(a.eps)),
        decay(static_cast<T>(a.weight_decay)),
        fresh1(static_cast<T>(1.0 - a.beta1)),
        beta2(static_cast<T>(a.beta2)),
        fresh2(static_cast<T>(1.0 - a.beta2)),
        scale(static_cast<T>(a.grad_scale)) {}
  __device__ LIMPID_INLINE T update(T p, T m, T v) const {
    return m / correction1 / (std::sqrt(v) / root + eps) + decay * p;
  }
};

// Partial sums of a piece, one a block, in an order that the block's threads fix.
__device__ LIMPID_INLINE void store_squares(Squares mine, Squares* partial) {
  mine.weight = block_reduce<kPieceThreads>(mine.weight, 0.0, JoinSum());
  mine.other = block_reduce<kPieceThreads>(mine.other, 0.0, JoinSum());
  if (threadIdx.x == 0) partial[blockIdx.x] = mine;
}

template <class T>
__global__ void __launch_bounds__(kPieceThreads)
    lamb_moments_kernel(TensorTable table, LambRule<T> rule, Squares* partial) {
  const Piece piece = table.piece(blockIdx.x);
  const OptimTensor& t = table.tensors[piece.tensor];
  T* first = static_cast<T*>(t.states[0]);
  T* second = static_cast<T*>(t.states[1]);
  Squares mine{0, 0};
  for (std::int64_t i = piece.begin + threadIdx.x; i < piece.end; i += kPieceThreads) {
    const T g = rule.scale * static_cast<const T*>(t.grad)[i], p = static_cast<const T*>(t.param)[i];
    const T m = first[i] + rule.fresh1 * (g - first[i]);
    const T v = rule.beta2 * second[i] + rule.fresh2 * (g * g);
    first[i] = m, second[i] = v;
    const double w = static_cast<double>(p), u = static_cast<double>(rule.update(p, m, v));
    mine.weight += w * w;
    mine.other += u * u;
  }
  store_squares(mine, partial);
}

template <class T>
__global__ void __launch_bounds__(kPieceThreads) norms_kernel(TensorTable table, Squares* partial) {
  const Piece piece = table.piece(blockIdx.x);
  const OptimTensor& t = table.tensors[piece.tensor];
  Squares mine{0, 0};
  for (std::int64_t i = piece.begin + threadIdx.x; i < piece.end; i += kPieceThreads) {
    const double p = static_cast<double>(static_cast<const T*>(t.param)[i]),
                 g = static_cast<double>(static_cast<const T*>(t.grad)[i]);
    mine.weight += p * p;
    mine.other += g * g;
  }
  store_squares(mine, partial);
}

// How the ratio comes from the norms: LAMB |p| / |u|, at most 1 with a clip; LARS c |p| / (|g| + decay |p| + eps), with
// a clip at most lr.
struct TrustRule {
  bool lamb, adapt, clip;
  double coefficient, decay, eps, lr;
};

// A block a tensor.
__global__ void __launch_bounds__(kPieceThreads)
    trust_kernel(TensorTable table, TrustRule rule, const Squares* partial, double* trust) {
  const unsigned t = blockIdx.x;
  Squares sum{0, 0};
  for (unsigned b = table.first_block[t] + threadIdx.x; b < table.first_block[t + 1]; b += kPieceThreads) {
    sum.weight += partial[b].weight;
    sum.other += partial[b].other;
  }
  const double weight = std::sqrt(block_reduce<kPieceThreads>(sum.weight, 0.0, JoinSum()));
  const double other = std::sqrt(block_reduce<kPieceThreads>(sum.other, 0.0, JoinSum()));
  if (threadIdx.x != 0) return;
  double ratio = 1;
  if (rule.adapt) {
    if (weight > 0 && other > 0)
      ratio = rule.lamb ? weight / other : rule.coefficient * weight / (other + weight * rule.decay + rule.eps);
    if (rule.clip) {
      if (!rule.lamb) ratio /= rule.lr;
      if (ratio > 1.0) ratio = 1.0;
    }
  }
  trust[t] = ratio;
}

template <class T>
__global__ void __launch_bounds__(kPieceThreads)
    lamb_apply_kernel(TensorTable table, LambRule<T> rule, double lr, const double* trust) {
  const Piece piece = table.piece(blockIdx.x);
  const OptimTensor& t = table.tensors[piece.tensor];
  const T rate = static_cast<T>(lr * trust[piece.tensor]);
  T* param = static_cast<T*>(t.param);
  for (std::int64_t i = piece.begin + threadIdx.x; i < piece.end; i += kPieceThreads) {
    param[i] -=
        rate * rule.update(param[i], static_cast<const T*>(t.states[0])[i], static_cast<const T*>(t.states[1])[i]);
  }
}

// d = trust (g + decay p), then the steps of SGD.
template <class T>
struct LarsRule {
  T lr, decay, momentum, keep, fresh;
  bool has_momentum, nesterov;
  T ratio = 1;
  explicit LarsRule(const LarsArgs& a)
      : lr(static_cast<T>(a.lr)),
        decay(static_cast<T>(a.weight_decay)),
        momentum(static_cast<T>(a.momentum)),
        keep(a.first_step ? T(0) : static_cast<T>(a.momentum)),
        fresh(a.first_step ? T(1) : static_cast<T>(1.0 - a.dampening)),
        has_momentum(a.momentum != 0),
        nesterov(a.nesterov) {}
  __device__ LIMPID_INLINE void update(T& p, T g, T (&s)[3]) const {
    const T d = (g + decay * p) * ratio;
    T move = d;
    if (has_momentum) {
      const T buffer = keep * s[0] + fresh * d;
      s[0] = buffer;
      move = nesterov ? d + momentum * buffer : buffer;
    }
    p -= lr * move;
  }
};

template <class T>
__global__ void __launch_bounds__(kPieceThreads)
    lars_apply_kernel(TensorTable table, LarsRule<T> rule, const double* trust) {
  const Piece piece = table.piece(blockIdx.x);
  rule.ratio = static_cast<T>(trust[piece.tensor]);
  update_piece<T, T>(table.tensors[piece.tensor], piece, rule);
}

// norms(table, partial), trust, apply(table, trust), for each table with its part of the workspace.
template <class Norms, class Apply>
cudaError_t run_trust(std::span<const OptimTensor> tensors, const TrustRule& rule, void* workspace, cudaStream_t stream,
                      const Norms& norms, const Apply& apply) {
  double* trust = static_cast<double*>(workspace);
  auto* partial = reinterpret_cast<Squares*>(trust + tensors.size() + tensors.size() % 2);
  return for_tensors(tensors, [&](const TensorTable& table, std::size_t first) {
    cudaError_t error = norms(table, partial);
    if (error == cudaSuccess) {
      error = launch(trust_kernel, static_cast<unsigned>(table.count), kPieceThreads, 0, stream, table, rule,
                     static_cast<const Squares*>(partial), trust + first);
    }
    if (error == cudaSuccess) error = apply(table, static_cast<const double*>(trust + first));
    partial += table.blocks;
    return error;
  });
}

// f32 and f64 only.
template <class F>
cudaError_t dispatch_wide(DType dtype, F&& f) {
  if (dtype == float32) return f.template operator()<float>();
  if (dtype == float64) return f.template operator()<double>();
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t sgd(std::span<const OptimTensor> tensors, OptimTypes types, const SgdArgs& args, Guard guard,
                cudaStream_t stream) {
  return run_any<SgdRule>(tensors, types, args, args.step, guard, stream);
}
cudaError_t adam(std::span<const OptimTensor> tensors, OptimTypes types, const AdamArgs& args, Guard guard,
                 cudaStream_t stream) {
  return run_any<AdamRule>(tensors, types, args, args.step, guard, stream);
}
cudaError_t rmsprop(std::span<const OptimTensor> tensors, OptimTypes types, const RmspropArgs& args, Guard guard,
                    cudaStream_t stream) {
  return run_any<RmspropRule>(tensors, types, args, 1, guard, stream);
}

std::size_t trust_workspace_bytes(std::span<const OptimTensor> tensors) {
  std::int64_t pieces = 0;
  for (const OptimTensor& t : tensors) pieces += pieces_of(t.n);
  return trust_bytes(static_cast<std::int64_t>(tensors.size()), pieces);
}

cudaError_t lamb(std::span<const OptimTensor> tensors, DType dtype, const LambArgs& args, void* workspace,
                 cudaStream_t stream) {
  return dispatch_wide(dtype, [&]<class T>() {
    const LambRule<T> rule(args);
    const TrustRule trust{.lamb = true,
                          .adapt = args.adapt,
                          .clip = args.trust_clip,
                          .coefficient = 1,
                          .decay = 0,
                          .eps = 0,
                          .lr = args.lr};
    return run_trust(
        tensors, trust, workspace, stream,
        [&](const TensorTable& table, Squares* partial) {
          return launch(lamb_moments_kernel<T>, table.blocks, kPieceThreads, 0, stream, table, rule, partial);
        },
        [&](const TensorTable& table, const double* ratios) {
          return launch(lamb_apply_kernel<T>, table.blocks, kPieceThreads, 0, stream, table, rule, args.lr, ratios);
        });
  });
}

cudaError_t lars(std::span<const OptimTensor> tensors, DType dtype, const LarsArgs& args, void* workspace,
                 cudaStream_t stream) {
  return dispatch_wide(dtype, [&]<class T>() {
    const TrustRule trust{.lamb = false,
                          .adapt = args.adapt,
                          .clip = args.trust_clip,
                          .coefficient = args.trust_coefficient,
                          .decay = args.weight_decay,
                          .eps = args.eps,
                          .lr = args.lr};
    return run_trust(
        tensors, trust, workspace, stream,
        [&](const TensorTable& table, Squares* partial) {
          return launch(norms_kernel<T>, table.blocks, kPieceThreads, 0, stream, table, partial);
        },
        [&](const TensorTable& table, const double* ratios) {
          return launch(lars_apply_kernel<T>, table.blocks, kPieceThreads, 0, stream, table, LarsRule<T>(args), ratios);
        });
  });
}

}  // namespace limpid::cu
