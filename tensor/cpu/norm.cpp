// Targets as in panel.cpp. Inner loops run over channels and are vectorised by the compiler for each target.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/norm.cpp>
#include <hwy/foreach_target.h>

#include <algorithm>

#include <limpid/tensor/cpu/norm.h>
#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/cpu/simd-inl.h>

#ifndef LIMPID_TENSOR_CPU_NORM_ONCE
#define LIMPID_TENSOR_CPU_NORM_ONCE
namespace limpid::cpu {
namespace {

template <class T>
struct NormLoops {
  // stats [3][C] of the rows: count, mean, M2.
  void (*statistics)(std::int64_t rows, std::int64_t channels, const T* x, double* stats);
  void (*reduce)(std::int64_t rows, std::int64_t channels, const T* x, const T* dy, const double* mean,
                 const double* invstd, double* sums);
  // y = (x - shift) * scale + offset, channel by channel, for `width` channels of rows `stride` apart.
  void (*apply)(std::int64_t rows, std::int64_t width, std::int64_t stride, const T* x, const T* shift, const T* scale,
                const T* offset, T* y, bool relu);
  // dx = a * dy + b * (x - shift) + c.
  void (*backward)(std::int64_t rows, std::int64_t width, std::int64_t stride, const T* x, const T* dy, const T* shift,
                   const T* a, const T* b, const T* c, T* dx);
};

constexpr std::int64_t kStrip = 64;  // channels (or repeated channels) whose sums stay in registers and L1

// Merges (count, mean, m2) into the running statistics of a channel: Chan, Golub and LeVeque, 1983.
inline void merge(double count, double mean, double m2, double& count_all, double& mean_all, double& m2_all) {
  const double total = count_all + count, delta = mean - mean_all;
  mean_all += delta * (count / total);
  m2_all += m2 + delta * delta * (count_all * count / total);
  count_all = total;
}

}  // namespace
}  // namespace limpid::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

// Rows whose sums are taken in T before they are added to doubles.
inline constexpr std::int64_t kRun = 64;

// One vector of channels at a time: sums of a run of rows in registers.
template <class T>
HWY_INLINE Vec<T> load_channels(const T* p, std::int64_t part) {
  return part == kLanes<T> ? hn::LoadU(Tag<T>(), p) : load_part(p, part);
}

// Adds the first `part` lanes, as doubles, to out.
template <class T>
HWY_INLINE void add_lanes(Vec<T> v, double* out, std::int64_t part) {
  HWY_ALIGN T lanes[kLanes<T>];
  hn::Store(v, Tag<T>(), lanes);
  if (part >= kLanes<T>) {
    for (std::int64_t j = 0; j < kLanes<T>; ++j) out[j] += static_cast<double>(lanes[j]);
  } else {
    for (std::int64_t j = 0; j < part; ++j) out[j] += static_cast<double>(lanes[j]);
  }
}

// Two passes over a run of rows that fits in the cache (mean, then deviations), runs merged in double.
template <class T>
void statistics(std::int64_t rows, std::int64_t channels, const T* x, double* stats) {
  constexpr std::int64_t L = kLanes<T>;
  const Tag<T> d;
  double* mean_all = stats + channels;
  double* m2_all = stats + 2 * channels;
  for (std::int64_t i = 0; i < 3 * channels; ++i) stats[i] = 0;
  for (std::int64_t c = 0; c < channels; ++c) stats[c] = static_cast<double>(rows);
  for (std::int64_t r0 = 0; r0 < rows; r0 += kRun) {
    const std::int64_t run = rows - r0 < kRun ? rows - r0 : kRun;
    const T* block = x + r0 * channels;
    const double n = static_cast<double>(run), before = static_cast<double>(r0);
    const double share = n / (before + n), weight = before * share, inverse_n = 1 / n;
    const auto inverse = hn::Set(d, T(1) / static_cast<T>(run));
    for (std::int64_t c = 0; c < channels; c += L) {
      const std::int64_t part = channels - c < L ? channels - c : L;
      auto s0 = hn::Zero(d), s1 = s0, q0 = s0, q1 = s0, e0 = s0, e1 = s0;
      std::int64_t r = 0;
      for (; r + 2 <= run; r += 2) {
        s0 = hn::Add(s0, load_channels(block + r * channels + c, part));
        s1 = hn::Add(s1, load_channels(block + (r + 1) * channels + c, part));
      }
      if (r < run) s0 = hn::Add(s0, load_channels(block + r * channels + c, part));
      const auto mean = hn::Mul(hn::Add(s0, s1), inverse);
      for (r = 0; r + 2 <= run; r += 2) {
        const auto v0 = hn::Sub(load_channels(block + r * channels + c, part), mean);
        const auto v1 = hn::Sub(load_channels(block + (r + 1) * channels + c, part), mean);
        q0 = hn::MulAdd(v0, v0, q0), q1 = hn::MulAdd(v1, v1, q1), e0 = hn::Add(e0, v0), e1 = hn::Add(e1, v1);
      }
      if (r < run) {
        const auto v0 = hn::Sub(load_channels(block + r * channels + c, part), mean);
        q0 = hn::MulAdd(v0, v0, q0), e0 = hn::Add(e0, v0);
      }
      // The deviations add up to the rounding error of the mean. Runs are merged after Chan, Golub and LeVeque, 1983.
      double means[kLanes<T>] = {}, squares[kLanes<T>] = {}, errors[kLanes<T>] = {};
      add_lanes<T>(mean, means, L), add_lanes<T>(hn::Add(q0, q1), squares, L), add_lanes<T>(hn::Add(e0, e1), errors, L);
      for (std::int64_t j = 0; j < L; ++j) {
        const double error = errors[j] * inverse_n, m2 = squares[j] - error * errors[j];
        means[j] += error;
        squares[j] = m2 < 0 ? 0 : m2;
      }
      for (std::int64_t j = 0; j < part; ++j) {
        const double delta = means[j] - mean_all[c + j];
        mean_all[c + j] += delta * share;
        m2_all[c + j] += squares[j] + delta * delta * weight;
      }
    }
  }
}

template <class T>
void reduce(std::int64_t rows, std::int64_t channels, const T* x, const T* dy, const double* mean, const double* invstd,
            double* sums) {
  constexpr std::int64_t L = kLanes<T>, kChunk = 512;
  const Tag<T> d;
  HWY_ALIGN T shift[kChunk + kLanes<T>] = {};
  for (std::int64_t i = 0; i < 2 * channels; ++i) sums[i] = 0;
  for (std::int64_t c0 = 0; c0 < channels; c0 += kChunk) {
    const std::int64_t width = channels - c0 < kChunk ? channels - c0 : kChunk;
    for (std::int64_t c = 0; c < width; ++c) shift[c] = static_cast<T>(mean[c0 + c]);
    for (std::int64_t r0 = 0; r0 < rows; r0 += kRun) {
      const std::int64_t run = rows - r0 < kRun ? rows - r0 : kRun;
      for (std::int64_t c = 0; c < width; c += L) {
        const std::int64_t part = width - c < L ? width - c : L;
        const auto m = hn::Load(d, shift + c);
        const T* px = x + r0 * channels + c0 + c;
        const T* pg = dy + r0 * channels + c0 + c;
        auto s0 = hn::Zero(d), s1 = s0, t0 = s0, t1 = s0;
        std::int64_t r = 0;
        for (; r + 2 <= run; r += 2, px += 2 * channels, pg += 2 * channels) {
          const auto g0 = load_channels(pg, part), g1 = load_channels(pg + channels, part);
          s0 = hn::Add(s0, g0), s1 = hn::Add(s1, g1);
          t0 = hn::MulAdd(g0, hn::Sub(load_channels(px, part), m), t0);
          t1 = hn::MulAdd(g1, hn::Sub(load_channels(px + channels, part), m), t1);
        }
        if (r < run) {
          const auto g0 = load_channels(pg, part);
          s0 = hn::Add(s0, g0);
          t0 = hn::MulAdd(g0, hn::Sub(load_channels(px, part), m), t0);
        }
        add_lanes<T>(hn::Add(s0, s1), sums + c0 + c, part);
        add_lanes<T>(hn::Add(t0, t1), sums + channels + c0 + c, part);
      }
    }
  }
  // (x - mean) was taken with the mean rounded to T: put the difference back, then scale.
  for (std::int64_t c = 0; c < channels; ++c) {
    const double rounding = static_cast<double>(static_cast<T>(mean[c])) - mean[c];
    sums[channels + c] = (sums[channels + c] + rounding * sums[c]) * invstd[c];
  }
}

template <class T>
void apply(std::int64_t rows, std::int64_t width, std::int64_t stride, const T* x, const T* shift, const T* scale,
           const T* offset, T* y, bool relu) {
  for (std::int64_t r = 0; r < rows; ++r, x += stride, y += stride) {
    if (relu) {
      for (std::int64_t c = 0; c < width; ++c) {
        const T v = (x[c] - shift[c]) * scale[c] + offset[c];
        y[c] = v < T(0) ? T(0) : v;
      }
    } else {
      for (std::int64_t c = 0; c < width; ++c) y[c] = (x[c] - shift[c]) * scale[c] + offset[c];
    }
  }
}

template <class T>
void backward(std::int64_t rows, std::int64_t width, std::int64_t stride, const T* x, const T* dy, const T* shift,
              const T* a, const T* b, const T* c0, T* dx) {
  for (std::int64_t r = 0; r < rows; ++r, x += stride, dy += stride, dx += stride) {
    for (std::int64_t c = 0; c < width; ++c) dx[c] = a[c] * dy[c] + b[c] * (x[c] - shift[c]) + c0[c];
  }
}

template <class T>
inline constexpr NormLoops<T> kNormLoops = {&statistics<T>, &reduce<T>, &apply<T>, &backward<T>};

const void* norm_loops_float() { return &kNormLoops<float>; }
const void* norm_loops_double() { return &kNormLoops<double>; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
namespace {

HWY_EXPORT(norm_loops_float);
HWY_EXPORT(norm_loops_double);

template <class T>
const NormLoops<T>& norm_loops() {
  if constexpr (sizeof(T) == 4) {
    return *static_cast<const NormLoops<T>*>(HWY_DYNAMIC_DISPATCH(norm_loops_float)());
  } else {
    return *static_cast<const NormLoops<T>*>(HWY_DYNAMIC_DISPATCH(norm_loops_double)());
  }
}

constexpr std::int64_t kGrain = 32768;  // elements a task

std::size_t part_bytes(std::int64_t channels) { return static_cast<std::size_t>(3 * channels) * sizeof(double); }

std::int64_t reduction_parts(std::int64_t pixels, std::int64_t channels, std::size_t cap) {
  const std::int64_t parts =
      std::clamp<std::int64_t>(std::min(pixels * channels / kGrain, pixels / 64), 1, 2 * kMaxSlots);
  if (channels == 0) return parts;
  return std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::min<std::size_t>(cap / part_bytes(channels), 2 * kMaxSlots)), 1, parts);
}

// kParams arrays of per-channel values for a strip, repeated `group` times, on the stack of the task.
template <class T, int kParams>
struct StripParams {
  alignas(64) T values[kParams][4 * kStrip];
};

// Cuts [pixels][channels] into tasks of pixels. Few channels are repeated so that one inner loop covers several pixels.
// param(channel, values) gives the parameters; run(params, offset, rows, width, stride) does the work.
template <class T, int kParams, class Param, class Run>
void run_strips(std::int64_t pixels, std::int64_t channels, const Param& param, const Run& run) {
  if (pixels <= 0 || channels <= 0) return;
  const auto rows_task = [&](std::int64_t begin, std::int64_t end) {
    StripParams<T, kParams> params;
    if (channels <= 2 * kStrip) {
      // Whole pixels, several at a time.
      const std::int64_t group = std::max<std::int64_t>(1, std::min(4 * kStrip / channels, end - begin));
      for (std::int64_t c = 0; c < channels; ++c) {
        T values[kParams];
        param(c, values);
        for (int q = 0; q < kParams; ++q) {
          for (std::int64_t g = 0; g < group; ++g) params.values[q][g * channels + c] = values[q];
        }
      }
      const std::int64_t rows = (end - begin) / group, rest = (end - begin) % group;
      run(params, begin * channels, rows, group * channels, group * channels);
      if (rest > 0) run(params, (begin + rows * group) * channels, std::int64_t{1}, rest * channels, rest * channels);
      return;
    }
    for (std::int64_t c0 = 0; c0 < channels; c0 += 4 * kStrip) {
      const std::int64_t width = std::min(4 * kStrip, channels - c0);
      for (std::int64_t c = 0; c < width; ++c) {
        T values[kParams];
        param(c0 + c, values);
        for (int q = 0; q < kParams; ++q) params.values[q][c] = values[q];
      }
      run(params, begin * channels + c0, end - begin, width, channels);
    }
  };
  if (pixels * channels <= 2 * kGrain) {
    rows_task(0, pixels);
  } else {
    parallel_chunks(pixels, std::max<std::int64_t>(1, kGrain / channels), rows_task);
  }
}

}  // namespace

std::size_t batch_norm_workspace(std::int64_t pixels, std::int64_t channels, std::size_t cap) {
  return static_cast<std::size_t>(reduction_parts(pixels, channels, cap)) * part_bytes(channels);
}

template <class T>
void batch_norm_statistics(std::int64_t pixels, std::int64_t channels, const T* x, double* stats, void* workspace,
                           std::size_t cap) {
  const NormLoops<T>& loops = norm_loops<T>();
  double* parts = static_cast<double*>(workspace);
  const std::int64_t count = reduction_parts(pixels, channels, cap), step = ceil_div(pixels, count);
  parallel_for(count, [&](std::int64_t q) {
    const std::int64_t begin = std::min(pixels, q * step), end = std::min(pixels, begin + step);
    loops.statistics(end - begin, channels, x + begin * channels, parts + q * 3 * channels);
  });
  batch_norm_combine(count, channels, parts, stats);
}

void batch_norm_combine(std::int64_t n_parts, std::int64_t channels, const double* parts, double* stats) {
  for (std::int64_t c = 0; c < channels; ++c) {
    double count = 0, mean = 0, m2 = 0;
    for (std::int64_t q = 0; q < n_parts; ++q) {
      const double* part = parts + q * 3 * channels;
      if (part[c] > 0) merge(part[c], part[channels + c], part[2 * channels + c], count, mean, m2);
    }
    stats[c] = count, stats[channels + c] = mean, stats[2 * channels + c] = m2;
  }
}

template <class T>
void batch_norm_apply(std::int64_t pixels, std::int64_t channels, const T* x, const double* mean, const double* invstd,
                      const T* weight, const T* bias, T* y, bool relu) {
  const NormLoops<T>& loops = norm_loops<T>();
  run_strips<T, 3>(
      pixels, channels,
      [&](std::int64_t c, T* v) {
        // The rounding of the mean to T is moved into the offset.
        const double scale = invstd[c] * (weight != nullptr ? static_cast<double>(weight[c]) : 1.0);
        v[0] = static_cast<T>(mean[c]), v[1] = static_cast<T>(scale);
        v[2] = static_cast<T>((bias != nullptr ? static_cast<double>(bias[c]) : 0.0) +
                              (static_cast<double>(v[0]) - mean[c]) * scale);
      },
      [&](const auto& p, std::int64_t at, std::int64_t rows, std::int64_t width, std::int64_t stride) {
        loops.apply(rows, width, stride, x + at, p.values[0], p.values[1], p.values[2], y + at, relu);
      });
}

template <class T>
void batch_norm_backward_reduce(std::int64_t pixels, std::int64_t channels, const T* x, const T* dy, const double* mean,
                                const double* invstd, double* sums, void* workspace, std::size_t cap) {
  const NormLoops<T>& loops = norm_loops<T>();
  double* parts = static_cast<double*>(workspace);
  const std::int64_t count = reduction_parts(pixels, channels, cap), step = ceil_div(pixels, count);
  parallel_for(count, [&](std::int64_t q) {
    const std::int64_t begin = std::min(pixels, q * step), end = std::min(pixels, begin + step);
    loops.reduce(end - begin, channels, x + begin * channels, dy + begin * channels, mean, invstd,
                 parts + q * 2 * channels);
  });
  for (std::int64_t i = 0; i < 2 * channels; ++i) {
    double total = 0;
    for (std::int64_t q = 0; q < count; ++q) total += parts[q * 2 * channels + i];
    sums[i] = total;
  }
}

template <class T>
void batch_norm_backward_apply(std::int64_t pixels, std::int64_t channels, const T* x, const T* dy, const double* mean,
                               const double* invstd, const T* weight, const double* sums, double count, T* dx) {
  const NormLoops<T>& loops = norm_loops<T>();
  run_strips<T, 4>(
      pixels, channels,
      [&](std::int64_t c, T* v) {
        const double a = invstd[c] * (weight != nullptr ? static_cast<double>(weight[c]) : 1.0);
        const double per = count > 0 ? a / count : 0.0;
        v[0] = static_cast<T>(mean[c]), v[1] = static_cast<T>(a);
        v[2] = static_cast<T>(-per * sums[channels + c] * invstd[c]);
        v[3] = static_cast<T>(-per * sums[c]);
      },
      [&](const auto& p, std::int64_t at, std::int64_t rows, std::int64_t width, std::int64_t stride) {
        loops.backward(rows, width, stride, x + at, dy + at, p.values[0], p.values[1], p.values[2], p.values[3],
                       dx + at);
      });
}

#define LIMPID_INSTANTIATE(T)                                                                                     \
  template void batch_norm_statistics<T>(std::int64_t, std::int64_t, const T*, double*, void*, std::size_t);      \
  template void batch_norm_apply<T>(std::int64_t, std::int64_t, const T*, const double*, const double*, const T*, \
                                    const T*, T*, bool);                                                          \
  template void batch_norm_backward_reduce<T>(std::int64_t, std::int64_t, const T*, const T*, const double*,      \
                                              const double*, double*, void*, std::size_t);                        \
  template void batch_norm_backward_apply<T>(std::int64_t, std::int64_t, const T*, const T*, const double*,       \
                                             const double*, const T*, const double*, double, T*);
LIMPID_INSTANTIATE(float)
LIMPID_INSTANTIATE(double)
#undef LIMPID_INSTANTIATE

}  // namespace limpid::cpu
#endif
