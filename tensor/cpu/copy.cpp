// Filling, copying between any strides and dtypes, flipping.
#include <cstring>

#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/math_kernels.h>

namespace limpid::cpu {
namespace {

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsNarrow<To>) {
    return To(static_cast<float>(static_cast<compute_t<From>>(value)));
  } else {
    return kernel::convert_number<To>(static_cast<compute_t<From>>(value));
  }
}

template <class To, class From>
void copy_cast(Tensor& out, const Tensor& x) {
  To* y = out.mutable_data<To>();
  const From* in = x.data<From>();
  run_loop(plan_loop<2>(out.shape(), {&out.strides(), &x.strides()}), kGrain,
           [&](const std::int64_t (&at)[2], const std::int64_t (&step)[2], std::int64_t n) {
             To* to = y + at[0];
             const From* from = in + at[1];
             if (step[0] == 1 && step[1] == 1) {
               if constexpr ((kIsNarrow<To> && std::is_same_v<From, float>) || (kIsNarrow<From> && std::is_same_v<To, float>)) {
                 convert_run(n, from, to);
               } else {
                 for (std::int64_t i = 0; i < n; i++) to[i] = convert<To>(from[i]);
               }
             } else {
               for (std::int64_t i = 0; i < n; i++) to[i * step[0]] = convert<To>(from[i * step[1]]);
             }
           });
}

// out is walked in its memory order, x jumps: both sides are cut into tiles that stay in the first-level cache.
constexpr std::int64_t kTile = 16;

template <class Bits>
void copy_bits(Tensor& out, const Tensor& x) {
  Bits* y = static_cast<Bits*>(out.raw_mutable_data());
  const Bits* in = static_cast<const Bits*>(x.raw_data());
  Loop<2> loop = plan_loop<2>(out.shape(), {&out.strides(), &x.strides()});
  int fast = -1;  // the dim in which x is dense
  for (int i = 1; i < loop.rank; i++) {
    if (loop.stride[1][i] == 1 && loop.extent[i] >= kTile / 2) fast = i;
  }
  if (fast > 0 && loop.stride[1][0] > 1 && loop.extent[0] >= kTile / 2 && loop.numel >= 256) {
    // Dims 0 and `fast` form the tile plane; the others, and the tiles, are tasks.
    std::int64_t tiles0 = (loop.extent[0] + kTile - 1) / kTile;
    std::int64_t rest = loop.numel / (loop.extent[0] * loop.extent[fast]);
    std::int64_t per_task = std::max<std::int64_t>(1, kGrain / (kTile * loop.extent[fast]));
    parallel_chunks(rest * tiles0, per_task, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; task++) {
        std::int64_t first0 = task % tiles0 * kTile, last0 = std::min(loop.extent[0], first0 + kTile);
        Bits* to = y;
        const Bits* from = in;
        std::int64_t index = task / tiles0;
        for (int i = 1; i < loop.rank; i++) {
          if (i == fast) continue;
          std::int64_t at = index % loop.extent[i];
          index /= loop.extent[i];
          to += at * loop.stride[0][i];
          from += at * loop.stride[1][i];
        }
        const std::int64_t y0 = loop.stride[0][0], x0 = loop.stride[1][0], y1 = loop.stride[0][fast];
        for (std::int64_t first1 = 0; first1 < loop.extent[fast]; first1 += kTile) {
          std::int64_t last1 = std::min(loop.extent[fast], first1 + kTile);
          for (std::int64_t j = first1; j < last1; j++) {
            for (std::int64_t i = first0; i < last0; i++) to[i * y0 + j * y1] = from[i * x0 + j];
          }
        }
      }
    });
    return;
  }
  run_loop(loop, kGrain, [&](const std::int64_t (&at)[2], const std::int64_t (&step)[2], std::int64_t n) {
    Bits* to = y + at[0];
    const Bits* from = in + at[1];
    if (step[0] == 1 && step[1] == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(Bits));
    } else {
      for (std::int64_t i = 0; i < n; i++) to[i * step[0]] = from[i * step[1]];
    }
  });
}

// [n][c][h*w] <-> [n][h*w][c] of f32 and f64 has its own vector loops.
template <class T>
bool copy_layout(Tensor& out, const Tensor& x) {
  if (out.dim() != 4 || out.numel() < 1024) return false;
  std::int64_t n = out.shape()[0], c = out.shape()[1], hw = out.shape()[2] * out.shape()[3];
  if (x.is_contiguous() && out.is_contiguous(MemoryFormat::channels_last)) {
    nchw_to_nhwc<T>(n, c, hw, x.data<T>(), out.mutable_data<T>());
    return true;
  }
  if (x.is_contiguous(MemoryFormat::channels_last) && out.is_contiguous()) {
    nhwc_to_nchw<T>(n, c, hw, x.data<T>(), out.mutable_data<T>());
    return true;
  }
  return false;
}

void copy_same(Tensor& out, const Tensor& x) {
  std::size_t bytes = x.nbytes();
  if (same_dense(out, x)) {
    char* to = static_cast<char*>(out.raw_mutable_data());
    const char* from = static_cast<const char*>(x.raw_data());
    if (to == from) return;
    constexpr std::int64_t kBytesGrain = 4 * kGrain;
    if (static_cast<std::int64_t>(bytes) <= kBytesGrain) {
      std::memmove(to, from, bytes);
    } else {
      parallel_chunks(static_cast<std::int64_t>(bytes), kBytesGrain, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
      });
    }
    return;
  }
  if (out.dtype() == DType::float32 && copy_layout<float>(out, x)) return;
  if (out.dtype() == DType::float64 && copy_layout<double>(out, x)) return;
  switch (size_of(out.dtype())) {
    case 1: return copy_bits<std::uint8_t>(out, x);
    case 2: return copy_bits<std::uint16_t>(out, x);
    case 4: return copy_bits<std::uint32_t>(out, x);
    default: return copy_bits<std::uint64_t>(out, x);
  }
}

template <class Bits>
void flip_bits(Tensor& out, const Tensor& x, std::uint32_t dims_mask) {
  Bits* y = static_cast<Bits*>(out.raw_mutable_data());
  const Bits* in = static_cast<const Bits*>(x.raw_data());
  // A flipped dim is walked backwards from its last element.
  Strides strides = x.strides();
  for (int d = 0; d < x.dim(); d++) {
    if (!(dims_mask >> d & 1u)) continue;
    in += (x.shape()[d] - 1) * strides[d];
    strides[d] = -strides[d];
  }
  run_loop(plan_loop<2>(out.shape(), {&out.strides(), &strides}), kGrain,
           [&](const std::int64_t (&at)[2], const std::int64_t (&step)[2], std::int64_t n) {
             for (std::int64_t i = 0; i < n; i++) y[at[0] + i * step[0]] = in[at[1] + i * step[1]];
           });
}

}  // namespace

void fill(Tensor& out, const Scalar& value) {
  visit_dtype(out.dtype(), [&]<class T>() {
    T number;
    if constexpr (std::is_same_v<T, bool>) {
      number = value.kind == Scalar::Kind::floating ? value.floating != 0 : value.integer != 0;
    } else if constexpr (std::is_integral_v<T>) {
      number = value.kind == Scalar::Kind::floating ? convert<T>(value.floating) : static_cast<T>(value.integer);
    } else {
      number = static_cast<T>(value.floating);
    }
    T* y = out.mutable_data<T>();
    run_loop(plan_loop<1>(out.shape(), {&out.strides()}), kGrain,
             [&](const std::int64_t (&at)[1], const std::int64_t (&step)[1], std::int64_t n) {
               if (step[0] == 1) {
                 std::fill(y + at[0], y + at[0] + n, number);
               } else {
                 for (std::int64_t i = 0; i < n; i++) y[at[0] + i * step[0]] = number;
               }
             });
  });
}

void copy(Tensor& out, const Tensor& x) {
  if (out.numel() == 0) return;
  if (out.dtype() == x.dtype()) return copy_same(out, x);
  visit_dtype(out.dtype(), [&]<class To>() {
    visit_dtype(x.dtype(), [&]<class From>() {
      if constexpr (!std::is_same_v<To, From>) copy_cast<To, From>(out, x);
    });
  });
}

void flip(Tensor& out, const Tensor& x, std::uint32_t dims_mask) {
  if (out.numel() == 0) return;
  switch (size_of(out.dtype())) {
    case 1: return flip_bits<std::uint8_t>(out, x, dims_mask);
    case 2: return flip_bits<std::uint16_t>(out, x, dims_mask);
    case 4: return flip_bits<std::uint32_t>(out, x, dims_mask);
    default: return flip_bits<std::uint64_t>(out, x, dims_mask);
  }
}

}  // namespace limpid::cpu
