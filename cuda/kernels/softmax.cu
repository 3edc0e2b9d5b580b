#include <limpid/cuda/kernels/softmax.cuh>

#include <cmath>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/indexing.cuh>
#include <limpid/cuda/kernels/reduce_block.cuh>
#include <limpid/cuda/kernels/row_blocks.cuh>

namespace limpid::cu {
namespace {

// The largest logit of a row and sum exp(x - largest), for every thread. A NaN in the row makes both NaN.
template <int threads, class T>
__device__ void row_exponents(const T* x, std::int64_t n, accumulate_t<T>& largest, accumulate_t<T>& total) {
  using Acc = accumulate_t<T>;
  largest = static_cast<Acc>(-INFINITY);
  for (std::int64_t i = threadIdx.x; i < n; i += threads) largest = JoinMax()(largest, to_float(x[i]));
  largest = block_reduce<threads>(largest, static_cast<Acc>(-INFINITY), JoinMax());
  total = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += threads) total += std::exp(to_float(x[i]) - largest);
  total = block_reduce<threads>(total, Acc(0), JoinSum());
}

template <class T, int threads>
__global__ void __launch_bounds__(threads)
    softmax_kernel(bool log, T* y, const T* x, std::int64_t rows, std::int64_t n) {
  using Acc = accumulate_t<T>;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * n;
    T* out = y + row * n;
    Acc largest, total;
    row_exponents<threads>(in, n, largest, total);
    const Acc log_total = std::log(total), factor = Acc(1) / total;
    for (std::int64_t i = threadIdx.x; i < n; i += threads) {
      const Acc shifted = to_float(in[i]) - largest;
      out[i] = from_float<T>(log ? shifted - log_total : std::exp(shifted) * factor);
    }
  }
}

template <class T, int threads>
__global__ void __launch_bounds__(threads)
    softmax_backward_kernel(bool log, T* dx, const T* dy, const T* y, std::int64_t rows, std::int64_t n) {
  using Acc = accumulate_t<T>;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* grad = dy + row * n;
    const T* result = y + row * n;
    T* out = dx + row * n;
    Acc sum = 0;
    for (std::int64_t i = threadIdx.x; i < n; i += threads)
      sum += log ? to_float(grad[i]) : to_float(grad[i]) * to_float(result[i]);
    sum = block_reduce<threads>(sum, Acc(0), JoinSum());
    for (std::int64_t i = threadIdx.x; i < n; i += threads) {
      const Acc g = to_float(grad[i]), p = to_float(result[i]);
      out[i] = from_float<T>(log ? g - std::exp(p) * sum : p * (g - sum));
    }
  }
}

template <class T>
__device__ LIMPID_INLINE accumulate_t<T> class_weight_of(const T* weight, std::int64_t c) {
  return weight ? to_float(weight[c]) : accumulate_t<T>(1);
}

template <class T, int threads>
__global__ void __launch_bounds__(threads)
    cross_entropy_kernel(LossDesc d, accumulate_t<T>* losses, accumulate_t<T>* row_weights,
                         accumulate_t<T>* log_sum_exp, const T* logits, const std::int64_t* labels, const T* weight) {
  using Acc = accumulate_t<T>;
  for (std::int64_t row = blockIdx.x; row < d.rows; row += gridDim.x) {
    const T* x = logits + row * d.classes;
    Acc largest, total, spread = 0;
    row_exponents<threads>(x, d.classes, largest, total);
    const Acc log_total = std::log(total);
    if (d.label_smoothing != 0) {
      for (std::int64_t c = threadIdx.x; c < d.classes; c += threads) {
        spread += class_weight_of(weight, c) * (log_total - (to_float(x[c]) - largest));
      }
      spread = block_reduce<threads>(spread, Acc(0), JoinSum());
    }
    if (threadIdx.x != 0) continue;
    log_sum_exp[row] = d.classes > 0 ? largest + log_total : log_total;
    const std::int64_t label = labels[row];
    Acc loss = 0, own = 0;
    if (label < 0 || label >= d.classes) {
      if (label != d.ignore_index) loss = own = static_cast<Acc>(NAN);
    } else if (label != d.ignore_index) {
      // The difference to the largest logit first, so that large logits lose nothing.
      own = class_weight_of(weight, label);
      loss = static_cast<Acc>(1 - d.label_smoothing) * own * (log_total - (to_float(x[label]) - largest));
      if (d.label_smoothing != 0) loss += static_cast<Acc>(d.label_smoothing / static_cast<double>(d.classes)) * spread;
    }
    losses[row] = loss;
    row_weights[row] = own;
  }
}

// d loss / d x_c = p_c ((1-e) w[y] + e/C sum w) - (1-e) w[y] [c = y] - e/C w[c]
template <class T, int threads>
__global__ void __launch_bounds__(threads)
    cross_entropy_backward_kernel(LossDesc d, T* dx, const accumulate_t<T>* row_scale, const T* logits,
                                  const std::int64_t* labels, const T* weight, const accumulate_t<T>* log_sum_exp) {
  using Acc = accumulate_t<T>;
  Acc weight_sum = static_cast<Acc>(d.classes);
  if (weight && d.label_smoothing != 0) {
    weight_sum = 0;
    for (std::int64_t c = threadIdx.x; c < d.classes; c += threads) weight_sum += to_float(weight[c]);
    weight_sum = block_reduce<threads>(weight_sum, Acc(0), JoinSum());
  }
  const Acc spread = static_cast<Acc>(d.label_smoothing / static_cast<double>(d.classes));
  for (std::int64_t row = blockIdx.x; row < d.rows; row += gridDim.x) {
    const T* x = logits + row * d.classes;
    T* out = dx + row * d.classes;
    const std::int64_t label = labels[row];
    const bool ignored = label == d.ignore_index, known = label >= 0 && label < d.classes;
    const Acc own =
        !known ? static_cast<Acc>(NAN) : static_cast<Acc>(1 - d.label_smoothing) * class_weight_of(weight, label);
    const Acc factor = row_scale[row], share = factor * (own + spread * weight_sum), lse = log_sum_exp[row];
    for (std::int64_t c = threadIdx.x; c < d.classes; c += threads) {
      Acc g = 0;
      if (!ignored) {
        g = share * std::exp(to_float(x[c]) - lse);
        if (d.label_smoothing != 0) g -= factor * spread * class_weight_of(weight, c);
        if (c == label) g -= factor * own;
      }
      out[c] = from_float<T>(g);
    }
  }
}

}  // namespace

cudaError_t softmax(DType dtype, bool log, void* y, const void* x, std::int64_t rows, std::int64_t n,
                    cudaStream_t stream) {
  if (rows * n == 0) return cudaSuccess;
  return dispatch_floating(dtype, [&]<class T>() {
    return over_row_blocks(n, [&]<int threads>() {
      return launch(softmax_kernel<T, threads>, row_grid(rows), threads, 0, stream, log, static_cast<T*>(y),
                    static_cast<const T*>(x), rows, n);
    });
  });
}

cudaError_t softmax_backward(DType dtype, bool log, void* dx, const void* dy, const void* y, std::int64_t rows,
                             std::int64_t n, cudaStream_t stream) {
  if (rows * n == 0) return cudaSuccess;
  return dispatch_floating(dtype, [&]<class T>() {
    return over_row_blocks(n, [&]<int threads>() {
      return launch(softmax_backward_kernel<T, threads>, row_grid(rows), threads, 0, stream, log, static_cast<T*>(dx),
                    static_cast<const T*>(dy), static_cast<const T*>(y), rows, n);
    });
  });
}

cudaError_t cross_entropy(DType dtype, const LossDesc& d, void* losses, void* row_weights, void* log_sum_exp,
                          const void* logits, const std::int64_t* labels, const void* class_weight,
                          cudaStream_t stream) {
  if (d.rows == 0) return cudaSuccess;
  return dispatch_floating(dtype, [&]<class T>() {
    using S = accumulate_t<T>;
    return over_row_blocks(d.classes, [&]<int threads>() {
      return launch(cross_entropy_kernel<T, threads>, row_grid(d.rows), threads, 0, stream, d, static_cast<S*>(losses),
                    static_cast<S*>(row_weights), static_cast<S*>(log_sum_exp), static_cast<const T*>(logits), labels,
                    static_cast<const T*>(class_weight));
    });
  });
}

cudaError_t cross_entropy_backward(DType dtype, const LossDesc& d, void* dx, const void* row_scale, const void* logits,
                                   const std::int64_t* labels, const void* class_weight, const void* log_sum_exp,
                                   cudaStream_t stream) {
  if (d.rows * d.classes == 0) return cudaSuccess;
  return dispatch_floating(dtype, [&]<class T>() {
    using S = accumulate_t<T>;
    return over_row_blocks(d.classes, [&]<int threads>() {
      return launch(cross_entropy_backward_kernel<T, threads>, row_grid(d.rows), threads, 0, stream, d,
                    static_cast<T*>(dx), static_cast<const S*>(row_scale), static_cast<const T*>(logits), labels,
                    static_cast<const T*>(class_weight), static_cast<const S*>(log_sum_exp));
    });
  });
}

}  // namespace limpid::cu
