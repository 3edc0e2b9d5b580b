#include <limpid/tensor/cpu/conv_tail.h>

#include <algorithm>
#include <cstring>

#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/cpu/winograd.h>

namespace limpid::cpu {
namespace {

constexpr std::int64_t kPieceBytes = 2 << 20;  // of z at a time: what follows finds it in the cache
constexpr std::int64_t kStrip = 64;            // channels of a task of the mean
constexpr std::int64_t kGrain = 16384;         // elements of a task

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Winograd's output transform hands its tiles over while they are in the cache: z is never stored.
bool hands_over(ConvTail tail, const ConvPlan& plan) {
  return tail != ConvTail::relu_mean && std::strcmp(plan.algorithm, "winograd") == 0;
}

// Rows of z that belong together, and their number an image; an odd last row is of no window.
std::int64_t rows_of_unit(ConvTail tail) { return tail == ConvTail::relu_max_pool ? 2 : 1; }

// y of images that follow each other, from their z.
template <class T>
void put_images(const TailTarget<T>& target, std::int64_t images, const T* z) {
  const std::int64_t unit = rows_of_unit(target.tail), units = target.oh / unit, row = target.ow * target.channels;
  parallel_chunks(images * units, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, unit * row)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t u = begin; u < end; ++u) {
                      const std::int64_t image = u / units, y0 = u % units * unit;
                      target.put(image, y0, 0, unit, target.ow, 0, target.channels,
                                 z + (image * target.oh + y0) * row, target.channels, row);
                    }
                  });
}

// The mean over the image as adaptive_avg_pool2d makes it: sums of rows, then their sum.
template <class T>
void mean_images(const TailTarget<T>& target, std::int64_t images, const T* z) {
  const TailKernels<T>& kernels = tail_kernels<T>();
  const std::int64_t strips = ceil_div(target.channels, kStrip), row_bits = bit_bytes(target.channels);
  const T inverse = T(1) / static_cast<T>(target.oh * target.ow);
  parallel_for(images * strips, [&](std::int64_t task) {
    const std::int64_t image = task / strips, n0 = task % strips * kStrip, n = std::min(kStrip, target.channels - n0);
    T total[kStrip] = {}, line[kStrip];
    for (std::int64_t y = 0; y < target.oh; ++y) {
      const std::int64_t pixel = (image * target.oh + y) * target.ow;
      kernels.relu_sum(target.ow, n, z + pixel * target.channels + n0, target.channels, line,
                       target.bits != nullptr ? target.bits + pixel * row_bits + n0 / 8 : nullptr, row_bits);
      for (std::int64_t c = 0; c < n; ++c) total[c] += line[c];
    }
    for (std::int64_t c = 0; c < n; ++c) target.y[image * target.channels + n0 + c] = total[c] * inverse;
  });
}

std::int64_t elements_of_y(ConvTail tail, const ConvDesc& d) {  // an image
  if (tail == ConvTail::relu) return d.oh() * d.ow() * d.k;
  return tail == ConvTail::relu_max_pool ? (d.oh() / 2) * (d.ow() / 2) * d.k : d.k;
}

}  // namespace

template <class T>
void TailTarget<T>::put(std::int64_t image, std::int64_t y0, std::int64_t x0, std::int64_t rows, std::int64_t cols,
                        std::int64_t n0, std::int64_t n, const T* z, std::int64_t z_pixel, std::int64_t z_row) const {
  const TailKernels<T>& kernels = tail_kernels<T>();
  const std::int64_t row_bits = bit_bytes(channels);
  const auto bits_at = [&](std::int64_t row) {
    return bits != nullptr ? bits + ((image * oh + y0 + row) * ow + x0) * row_bits + n0 / 8 : nullptr;
  };
  if (tail == ConvTail::relu) {
    for (std::int64_t i = 0; i < rows; ++i) {
      kernels.relu(cols, n, z + i * z_row, z_pixel, y + ((image * oh + y0 + i) * ow + x0) * channels + n0, channels,
                   bits_at(i), row_bits);
    }
    return;
  }
  for (std::int64_t i = 0; i + 2 <= rows; i += 2) {
    kernels.max_pool(cols / 2, n, z + i * z_row, z_pixel, z_row,
                     y + ((image * (oh / 2) + (y0 + i) / 2) * (ow / 2) + x0 / 2) * channels + n0, channels, bits_at(i),
                     row_bits, ow * row_bits);
  }
}

ConvTailPlan plan_conv2d_tail(ConvTail tail, const ConvDesc& d, std::size_t element_size, std::size_t cap) {
  ConvTailPlan plan;
  plan.images = d.n;
  plan.piece = plan_conv2d(ConvPass::forward, d, element_size, cap);
  plan.algorithm = plan.piece.algorithm;
  plan.conv_bytes = plan.workspace_bytes = plan.piece.workspace_bytes;
  if (hands_over(tail, plan.piece)) return plan;
  const std::int64_t image_bytes = d.oh() * d.ow() * d.k * static_cast<std::int64_t>(element_size);
  plan.images = std::clamp<std::int64_t>(kPieceBytes / std::max<std::int64_t>(1, image_bytes), 1, std::max<std::int64_t>(1, d.n));
  for (;; plan.images = ceil_div(plan.images, 2)) {
    const std::size_t z = tail == ConvTail::relu ? 0 : aligned(static_cast<std::size_t>(plan.images * image_bytes));
    const std::size_t room = cap - std::min(cap, z);
    ConvDesc part = d;
    part.n = std::min(plan.images, d.n);
    plan.piece = plan_conv2d(ConvPass::forward, part, element_size, room);
    part.n = d.n % plan.images;
    plan.rest = part.n > 0 ? plan_conv2d(ConvPass::forward, part, element_size, room) : plan.piece;
    plan.conv_bytes = aligned(std::max(plan.piece.workspace_bytes, plan.rest.workspace_bytes));
    plan.workspace_bytes = plan.conv_bytes + z;
    plan.algorithm = plan.piece.algorithm;
    if (plan.workspace_bytes <= cap || plan.images == 1) return plan;
  }
}

template <class T>
void conv2d_tail_forward(ConvTail tail, const ConvDesc& d, const ConvTailPlan& plan, const T* x, const T* w,
                         const T* bias, T* y, std::uint8_t* bits, void* workspace) {
  TailTarget<T> target{.tail = tail, .oh = d.oh(), .ow = d.ow(), .channels = d.k, .y = y, .bits = bits};
  const std::int64_t pixels = target.oh * target.ow, image_bits = pixels * bit_bytes(d.k);
  const bool drops = tail == ConvTail::relu_max_pool && (target.oh % 2 != 0 || target.ow % 2 != 0);
  if (bits != nullptr && drops) std::fill(bits, bits + d.n * image_bits, std::uint8_t{0});
  if constexpr (sizeof(T) == sizeof(float)) {
    if (hands_over(tail, plan.piece)) return conv2d_winograd_tail(d, plan.piece, x, w, bias, target, workspace);
  }
  for (std::int64_t n0 = 0; n0 < d.n; n0 += plan.images) {
    ConvDesc part = d;
    part.n = std::min(plan.images, d.n - n0);
    T* z = tail == ConvTail::relu ? target.y : reinterpret_cast<T*>(static_cast<char*>(workspace) + plan.conv_bytes);
    conv2d_forward(part, part.n == plan.images ? plan.piece : plan.rest, x + n0 * d.c * d.h * d.w, w, bias, z, workspace);
    (tail == ConvTail::relu_mean ? mean_images<T> : put_images<T>)(target, part.n, z);
    target.y += part.n * elements_of_y(tail, d);
    if (bits != nullptr) target.bits += part.n * image_bits;
  }
}

template <class T>
void conv2d_tail_backward(ConvTail tail, const ConvDesc& d, const T* dy, const std::uint8_t* bits, T* dz) {
  const TailKernels<T>& kernels = tail_kernels<T>();
  const std::int64_t oh = d.oh(), ow = d.ow(), row_bits = bit_bytes(d.k);
  const T scale = tail == ConvTail::relu_mean ? T(1) / static_cast<T>(oh * ow) : T(1);
  const std::int64_t repeat = tail == ConvTail::relu ? 1 : tail == ConvTail::relu_max_pool ? 2 : ow;
  parallel_chunks(d.n * oh, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, ow * d.k)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      const std::int64_t image = row / oh, y = row % oh;
                      T* to = dz + row * ow * d.k;
                      std::int64_t from = row * ow, count = ow;  // pixel of dy, pixels of z that have one
                      if (tail == ConvTail::relu_mean) from = image;
                      if (tail == ConvTail::relu_max_pool) {
                        from = (image * (oh / 2) + y / 2) * (ow / 2);
                        count = y / 2 < oh / 2 ? ow / 2 * 2 : 0;
                      }
                      kernels.select(count, repeat, d.k, dy + from * d.k, d.k, scale, bits + row * ow * row_bits, row_bits,
                                     to, d.k);
                      std::fill(to + count * d.k, to + ow * d.k, T(0));
                    }
                  });
}

template <class T>
void relu_rows(std::int64_t rows, std::int64_t n, T* y, std::uint8_t* bits) {
  const TailKernels<T>& kernels = tail_kernels<T>();
  const std::int64_t row_bits = bit_bytes(n);
  parallel_chunks(rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, n)), [&](std::int64_t begin, std::int64_t end) {
    kernels.relu(end - begin, n, y + begin * n, n, y + begin * n, n, bits != nullptr ? bits + begin * row_bits : nullptr,
                 row_bits);
  });
}

template <class T>
void relu_rows_backward(std::int64_t rows, std::int64_t n, const T* dy, const std::uint8_t* bits, T* dz) {
  const TailKernels<T>& kernels = tail_kernels<T>();
  const std::int64_t row_bits = bit_bytes(n);
  parallel_chunks(rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, n)), [&](std::int64_t begin, std::int64_t end) {
    kernels.select(end - begin, 1, n, dy + begin * n, n, T(1), bits + begin * row_bits, row_bits, dz + begin * n, n);
  });
}

#define LIMPID_INSTANTIATE(T)                                                                                       \
  template struct TailTarget<T>;                                                                                    \
  template void conv2d_tail_forward<T>(ConvTail, const ConvDesc&, const ConvTailPlan&, const T*, const T*, const T*, \
                                       T*, std::uint8_t*, void*);                                                    \
  template void conv2d_tail_backward<T>(ConvTail, const ConvDesc&, const T*, const std::uint8_t*, T*);               \
  template void relu_rows<T>(std::int64_t, std::int64_t, T*, std::uint8_t*);                                         \
  template void relu_rows_backward<T>(std::int64_t, std::int64_t, const T*, const std::uint8_t*, T*);
LIMPID_INSTANTIATE(float)
LIMPID_INSTANTIATE(double)
#undef LIMPID_INSTANTIATE

}  // namespace limpid::cpu
