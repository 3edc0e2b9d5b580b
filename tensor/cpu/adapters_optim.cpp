// Optimizer steps from parameter tensors to the chunk tables of optim.h. 16-bit parameters are updated piece by piece
// through f32 copies on the stack; their states may be f32 or 16-bit.
#include <algorithm>
#include <vector>

#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/optim.h>
#include <limpid/tensor/raw.h>

namespace limpid::cpu {
namespace {

constexpr std::int64_t kPiece = 1024;

// The gradient in the memory order of the parameter.
Tensor matching(const Tensor& grad, const Tensor& param) {
  if (grad.strides() == param.strides() || same_dense(param, grad)) return grad;
  Tensor out = raw::empty_like(param, grad.dtype());
  copy(out, grad);
  return out;
}

void load(const Tensor& t, std::int64_t begin, std::int64_t n, float* to) {
  visit_floating(t.dtype(), "optimizer", [&]<class T>() {
    const T* from = t.data<T>() + begin;
    for (std::int64_t i = 0; i < n; i++) to[i] = static_cast<float>(from[i]);
  });
}
void save(Tensor& t, std::int64_t begin, std::int64_t n, const float* from) {
  visit_floating(t.dtype(), "optimizer", [&]<class T>() {
    T* to = const_cast<T*>(t.data<T>()) + begin;
    for (std::int64_t i = 0; i < n; i++) to[i] = static_cast<T>(from[i]);
  });
}

template <class T>
T* writable(Tensor& t) {
  return t.defined() ? t.mutable_data<T>() : nullptr;
}

// step(span of Chunk<T>) for all chunks of dtype T at once.
template <class T, class Step>
void run_dtype(std::span<OptimChunk> chunks, Step& step) {
  std::vector<Chunk<T>> table;
  std::vector<Tensor> grads;  // keeps reordered copies alive
  for (OptimChunk& chunk : chunks) {
    if (chunk.param.dtype() != dtype_of<T>) continue;
    grads.push_back(matching(chunk.grad, chunk.param));
    table.push_back({chunk.param.mutable_data<T>(), grads.back().data<T>(), writable<T>(chunk.state0),
                     writable<T>(chunk.state1), writable<T>(chunk.state2), chunk.param.numel()});
  }
  if (!table.empty()) step(std::span<const Chunk<T>>(table));
}

template <class Step>
void run_narrow(OptimChunk& chunk, Step& step) {
  Tensor grad = matching(chunk.grad, chunk.param);
  Tensor* states[3] = {&chunk.state0, &chunk.state1, &chunk.state2};
  chunk.param.raw_mutable_data();  // one version bump; the pieces write directly
  for (Tensor* state : states) {
    if (state->defined()) state->raw_mutable_data();
  }
  parallel_chunks(chunk.param.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
    float p[kPiece], g[kPiece], s[3][kPiece];
    std::int64_t n = end - begin;
    load(chunk.param, begin, n, p);
    load(grad, begin, n, g);
    for (int i = 0; i < 3; i++) {
      if (states[i]->defined()) load(*states[i], begin, n, s[i]);
    }
    Chunk<float> piece{p, g, states[0]->defined() ? s[0] : nullptr, states[1]->defined() ? s[1] : nullptr,
                       states[2]->defined() ? s[2] : nullptr, n};
    step(std::span<const Chunk<float>>(&piece, 1));
    save(chunk.param, begin, n, p);
    for (int i = 0; i < 3; i++) {
      if (states[i]->defined()) save(*states[i], begin, n, s[i]);
    }
  });
}

template <class Step>
void run(std::span<OptimChunk> chunks, Step step) {
  run_dtype<float>(chunks, step);
  run_dtype<double>(chunks, step);
  for (OptimChunk& chunk : chunks) {
    if (is_narrow(chunk.param.dtype())) run_narrow(chunk, step);
  }
}

bool is_called_off(const StepGuard& guard) { return guard.found_inf.defined() && *guard.found_inf.data<float>() != 0; }

// The number of a step among those that happened.
std::int64_t happened(std::int64_t step, const StepGuard& guard) {
  return guard.skipped.defined() ? step - *guard.skipped.data<std::int64_t>() : step;
}

}  // namespace

void sgd(std::span<OptimChunk> chunks, const SgdArgs& a) {
  if (is_called_off(a.guard)) return;
  SgdStep s{.lr = a.lr, .momentum = a.momentum, .dampening = a.dampening, .weight_decay = a.weight_decay,
            .nesterov = a.nesterov, .first_step = happened(a.step, a.guard) == 1};
  run(chunks, [&]<class T>(std::span<const Chunk<T>> table) { sgd_step<T>(table, s); });
}

void adam(std::span<OptimChunk> chunks, const AdamArgs& a) {
  if (is_called_off(a.guard)) return;
  AdamStep s{.lr = a.lr, .beta1 = a.beta1, .beta2 = a.beta2, .eps = a.eps, .weight_decay = a.weight_decay,
             .decoupled = a.decoupled, .amsgrad = a.amsgrad, .step = happened(a.step, a.guard)};
  run(chunks, [&]<class T>(std::span<const Chunk<T>> table) { adam_step<T>(table, s); });
}

void rmsprop(std::span<OptimChunk> chunks, const RmspropArgs& a) {
  if (is_called_off(a.guard)) return;
  RmspropStep s{.lr = a.lr, .alpha = a.alpha, .eps = a.eps, .weight_decay = a.weight_decay, .momentum = a.momentum,
                .centered = a.centered};
  run(chunks, [&]<class T>(std::span<const Chunk<T>> table) { rmsprop_step<T>(table, s); });
}

namespace {

// trust = step(Chunk<T>) for each chunk: norms are of whole tensors, so there are no pieces of 16-bit parameters.
template <class Step>
void run_whole(const char* rule, std::span<OptimChunk> chunks, const Step& step) {
  for (const OptimChunk& chunk : chunks) {
    LIMPID_CHECK(!is_narrow(chunk.param.dtype()), DTypeError, "[", rule, "] parameters are f32 or f64, got ", chunk.param);
  }
  for (OptimChunk& chunk : chunks) {
    visit_floating(chunk.param.dtype(), rule, [&]<class T>() {
      if constexpr (sizeof(T) >= 4) {
        const Tensor grad = matching(chunk.grad, chunk.param);
        chunk.trust = step(Chunk<T>{chunk.param.mutable_data<T>(), grad.data<T>(), writable<T>(chunk.state0),
                                    writable<T>(chunk.state1), nullptr, chunk.param.numel()});
      }
    });
  }
}

}  // namespace

void lamb(std::span<OptimChunk> chunks, const LambArgs& a) {
  const LambStep s{.lr = a.lr, .beta1 = a.beta1, .beta2 = a.beta2, .eps = a.eps, .weight_decay = a.weight_decay,
                   .grad_scale = a.grad_scale, .adapt = a.adapt, .trust_clip = a.trust_clip, .step = a.step};
  run_whole("lamb", chunks, [&]<class T>(const Chunk<T>& chunk) { return lamb_step<T>(chunk, s); });
}

void lars(std::span<OptimChunk> chunks, const LarsArgs& a) {
  const LarsStep s{.lr = a.lr, .momentum = a.momentum, .dampening = a.dampening, .weight_decay = a.weight_decay,
                   .trust_coefficient = a.trust_coefficient, .eps = a.eps, .nesterov = a.nesterov,
                   .first_step = a.first_step, .adapt = a.adapt, .trust_clip = a.trust_clip};
  run_whole("lars", chunks, [&]<class T>(const Chunk<T>& chunk) { return lars_step<T>(chunk, s); });
}

double sum_of_squares(std::span<const Tensor> tensors) {
  double total = 0;
  std::vector<ConstSpan<float>> singles;
  std::vector<ConstSpan<double>> doubles;
  std::vector<Tensor> kept;
  for (const Tensor& t : tensors) {
    kept.push_back(t.is_dense() ? t : raw::contiguous(t));
    const Tensor& dense = kept.back();
    if (t.dtype() == DType::float32) {
      singles.push_back({dense.data<float>(), t.numel()});
    } else if (t.dtype() == DType::float64) {
      doubles.push_back({dense.data<double>(), t.numel()});
    } else {
      visit_floating(t.dtype(), "sum_of_squares", [&]<class T>() {
        const T* x = dense.data<T>();
        double sum = 0;
        for (std::int64_t i = 0; i < t.numel(); i++) {
          double v = static_cast<double>(x[i]);
          sum += v * v;
        }
        total += sum;
      });
    }
  }
  if (!singles.empty()) total += sum_of_squares<float>(singles);
  if (!doubles.empty()) total += sum_of_squares<double>(doubles);
  return total;
}

void scale(std::span<Tensor> tensors, double factor) {
  for (Tensor& t : tensors) unary(UnaryOp::mul_scalar, t, t, {factor, 0});
}

}  // namespace limpid::cpu
