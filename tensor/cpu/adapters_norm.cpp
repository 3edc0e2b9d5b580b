// Batch norm from tensors to the kernels of norm.h; 16-bit rows go through f32 copies for the sums, some rows at a time, and
// through plain loops where one pass over the image is all.
#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/workspace_cap.h>
#include <limpid/tensor/cpu/norm.h>

namespace limpid::cpu {
namespace {

// A vector of parameters in any floating dtype: 16-bit images often have f32 parameters.
class Values {
 public:
  explicit Values(const Tensor& t) : data_(t.defined() ? t.raw_data() : nullptr), dtype_(data_ ? t.dtype() : float32) {}
  double at(std::int64_t i, double missing) const {
    if (!data_) return missing;
    switch (dtype_) {
      case DType::float64: return static_cast<const double*>(data_)[i];
      case DType::float32: return static_cast<double>(static_cast<const float*>(data_)[i]);
      case DType::float16: return static_cast<double>(static_cast<float>(static_cast<const Half*>(data_)[i]));
      default: return static_cast<double>(static_cast<float>(static_cast<const BFloat16*>(data_)[i]));
    }
  }

 private:
  const void* data_;
  DType dtype_;
};

template <class T>
const T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

constexpr std::int64_t kStrip = 64;

// strip(first channel, channels, first row, end row): what is the same for all rows is computed once a strip.
template <class Strip>
void for_strips(std::int64_t rows, std::int64_t channels, Strip strip) {
  parallel_chunks(rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(channels, 1)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t c = 0; c < channels; c += kStrip) strip(c, std::min(kStrip, channels - c), begin, end);
                  });
}

}  // namespace

namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 18;  // 1 MiB of f32

// How 16-bit rows [pixels, channels] are cut: every piece gives a part of the sums, [3, channels] f64 at most.
struct RowCut {
  RowCut(std::int64_t pixels, std::int64_t channels)
      : rows(std::clamp<std::int64_t>(kPieceElements / std::max<std::int64_t>(channels, 1), 1, std::max<std::int64_t>(pixels, 1))),
        parts((pixels + rows - 1) / rows),
        part_bytes(aligned64(static_cast<std::size_t>(std::max<std::int64_t>(parts, 1) * 3 * channels) * sizeof(double))),
        bytes(part_bytes + 2 * float_bytes(rows * channels)) {}
  std::int64_t rows, parts;
  std::size_t part_bytes, bytes;
};

std::size_t copies_bytes(std::int64_t pixels, std::int64_t channels, DType dtype) {
  return is_narrow(dtype) ? RowCut(pixels, channels).bytes : 0;
}

// Of a call of the kernel, which sees at most one piece.
std::size_t sums_workspace(std::int64_t pixels, std::int64_t channels, DType dtype, std::size_t cap) {
  return batch_norm_workspace(is_narrow(dtype) ? RowCut(pixels, channels).rows : pixels, channels, cap);
}

// What the plan left for the partial sums.
std::size_t sums_bytes(const Tensor& workspace, const Tensor& x) {
  const std::size_t copies = copies_bytes(x.shape()[0], x.shape()[1], x.dtype());
  const auto bytes = workspace.defined() ? static_cast<std::size_t>(workspace.numel()) : 0;
  return bytes - std::min(bytes, copies);
}

}  // namespace

std::size_t plan_batch_norm(std::int64_t pixels, std::int64_t channels, DType dtype) {
  const std::size_t cap = workspace_cap() > 0 ? workspace_cap() : SIZE_MAX;
  const std::size_t copies = copies_bytes(pixels, channels, dtype);
  std::size_t bytes = sums_workspace(pixels, channels, dtype, cap - std::min(cap, copies));
  if (copies > 0) bytes = aligned64(bytes) + copies;
  check_workspace_cap("batch_norm", bytes);
  return bytes;
}

void batch_norm_statistics(Tensor& stats, const Tensor& x, Tensor& workspace) {
  std::int64_t pixels = x.shape()[0], channels = x.shape()[1];
  Parts parts(workspace);
  const std::size_t cap = sums_bytes(workspace, x);
  void* work = parts.take(sums_workspace(pixels, channels, x.dtype(), cap));
  double* out = stats.mutable_data<double>();
  visit_floating(x.dtype(), "batch_norm", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      batch_norm_statistics<T>(pixels, channels, x.data<T>(), out, work, cap);
    } else {
      const RowCut cut(pixels, channels);
      auto* sums = static_cast<double*>(parts.take(cut.part_bytes));
      float* wide = parts.floats(cut.rows * channels);
      for (std::int64_t p = 0; p < cut.parts; p++) {
        const std::int64_t begin = p * cut.rows, rows = std::min(cut.rows, pixels - begin);
        convert_all(rows * channels, x.data<T>() + begin * channels, wide);
        batch_norm_statistics<float>(rows, channels, wide, sums + p * 3 * channels, work, cap);
      }
      batch_norm_combine(cut.parts, channels, sums, out);
    }
  });
}

void batch_norm_combine(Tensor& stats, const Tensor& parts) {
  batch_norm_combine(parts.shape()[0], parts.shape()[2], parts.data<double>(), stats.mutable_data<double>());
}

void batch_norm_apply(Tensor& y, const Tensor& x, const Tensor& mean, const Tensor& invstd, const Tensor& weight,
                      const Tensor& bias) {
  std::int64_t pixels = x.shape()[0], channels = x.shape()[1];
  const double* m = mean.data<double>();
  const double* inv = invstd.data<double>();
  visit_floating(x.dtype(), "batch_norm", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      batch_norm_apply<T>(pixels, channels, x.data<T>(), m, inv, data_or_null<T>(weight), data_or_null<T>(bias),
                          y.mutable_data<T>());
    } else {
      const T* in = x.data<T>();
      T* out = y.mutable_data<T>();
      Values w(weight), b(bias);
      for_strips(pixels, channels, [&](std::int64_t c, std::int64_t n, std::int64_t begin, std::int64_t end) {
        float centre[kStrip], slope[kStrip], offset[kStrip], value[kStrip];
        for (std::int64_t i = 0; i < n; i++) {
          centre[i] = static_cast<float>(m[c + i]);
          slope[i] = static_cast<float>(inv[c + i] * w.at(c + i, 1));
          offset[i] = static_cast<float>(b.at(c + i, 0) + (static_cast<double>(centre[i]) - m[c + i]) * inv[c + i] * w.at(c + i, 1));
        }
        for (std::int64_t r = begin; r < end; r++) {
          convert_run(n, in + r * channels + c, value);
          for (std::int64_t i = 0; i < n; i++) value[i] = (value[i] - centre[i]) * slope[i] + offset[i];
          convert_run(n, value, out + r * channels + c);
        }
      });
    }
  });
}

void batch_norm_backward_reduce(Tensor& sums, const Tensor& x, const Tensor& dy, const Tensor& mean,
                                const Tensor& invstd, Tensor& workspace) {
  std::int64_t pixels = x.shape()[0], channels = x.shape()[1];
  Parts parts(workspace);
  const std::size_t cap = sums_bytes(workspace, x);
  void* work = parts.take(sums_workspace(pixels, channels, x.dtype(), cap));
  double* out = sums.mutable_data<double>();
  const double* m = mean.data<double>();
  const double* inv = invstd.data<double>();
  visit_floating(x.dtype(), "batch_norm", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      batch_norm_backward_reduce<T>(pixels, channels, x.data<T>(), dy.data<T>(), m, inv, out, work, cap);
    } else {
      const RowCut cut(pixels, channels);
      auto* part = static_cast<double*>(parts.take(cut.part_bytes));
      float* wide_x = parts.floats(cut.rows * channels);
      float* wide_dy = parts.floats(cut.rows * channels);
      std::fill(out, out + 2 * channels, 0.0);
      for (std::int64_t p = 0; p < cut.parts; p++) {
        const std::int64_t begin = p * cut.rows, rows = std::min(cut.rows, pixels - begin);
        convert_all(rows * channels, x.data<T>() + begin * channels, wide_x);
        convert_all(rows * channels, dy.data<T>() + begin * channels, wide_dy);
        batch_norm_backward_reduce<float>(rows, channels, wide_x, wide_dy, m, inv, part, work, cap);
        for (std::int64_t i = 0; i < 2 * channels; i++) out[i] += part[i];
      }
    }
  });
}

void batch_norm_backward_apply(Tensor& dx, const Tensor& x, const Tensor& dy, const Tensor& mean, const Tensor& invstd,
                               const Tensor& weight, const Tensor& sums, double count) {
  std::int64_t pixels = x.shape()[0], channels = x.shape()[1];
  const double* m = mean.data<double>();
  const double* inv = invstd.data<double>();
  const double* sum = sums.defined() ? sums.data<double>() : nullptr;
  visit_floating(x.dtype(), "batch_norm", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      batch_norm_backward_apply<T>(pixels, channels, x.data<T>(), dy.data<T>(), m, inv, data_or_null<T>(weight), sum,
                                   count, dx.mutable_data<T>());
    } else {
      const T* in = x.data<T>();
      const T* g = dy.data<T>();
      T* out = dx.mutable_data<T>();
      Values w(weight);
      for_strips(pixels, channels, [&](std::int64_t c, std::int64_t n, std::int64_t begin, std::int64_t end) {
        // dx = slope * (g - mean_g - (x - mean) * tilt), tilt = invstd * mean(g xhat)
        float centre[kStrip], slope[kStrip], mean_g[kStrip], tilt[kStrip], value[kStrip], grad[kStrip];
        for (std::int64_t i = 0; i < n; i++) {
          centre[i] = static_cast<float>(m[c + i]);
          slope[i] = static_cast<float>(inv[c + i] * w.at(c + i, 1));
          mean_g[i] = count > 0 ? static_cast<float>(sum[c + i] / count) : 0.0f;
          tilt[i] = count > 0 ? static_cast<float>(inv[c + i] * sum[channels + c + i] / count) : 0.0f;
        }
        for (std::int64_t r = begin; r < end; r++) {
          convert_run(n, in + r * channels + c, value);
          convert_run(n, g + r * channels + c, grad);
          for (std::int64_t i = 0; i < n; i++) grad[i] = slope[i] * (grad[i] - mean_g[i] - (value[i] - centre[i]) * tilt[i]);
          convert_run(n, grad, out + r * channels + c);
        }
      });
    }
  });
}

}  // namespace limpid::cpu
