#include <limpid/tensor/cpu/conv_tail.h>

#include <algorithm>
#include <cstring>

#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/cpu/thin_conv.h>
#include <limpid/tensor/cpu/winograd.h>

namespace limpid::cpu {
namespace {

constexpr std::int64_t kPieceBytes = 2 << 20;  // of z at a time: what follows finds it in the cache
constexpr std::int64_t kStrip = 64;            // channels of a task of the mean
constexpr std::int64_t kGrain = 16384;         // elements of a task

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

bool is(const ConvPlan& plan, const char* algorithm) { return std::strcmp(plan.algorithm, algorithm) == 0; }

// Winograd's output transform hands its tiles over while they are in the cache: z is never stored.
bool hands_over_tiles(ConvTail tail, const ConvPlan& plan) {
  return tail != ConvTail::relu_mean && is(plan, "winograd");
}
std::size_t thin_bytes(ConvTail tail, const ConvDesc& d, std::size_t element_size) {
  const std::int64_t size = static_cast<std::int64_t>(element_size);
  return aligned(static_cast<std::size_t>(thin_forward_elements(d, &tail, 64 / size, kMaxSlots) * size));
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

template <class T>
void mean_images(const TailTarget<T>& target, std::int64_t images, const T* z) {
  const std::int64_t strips = ceil_div(target.channels, kStrip);
  const T inverse = T(1) / static_cast<T>(target.oh * target.ow);
  parallel_for(images * strips, [&](std::int64_t task) {
    const std::int64_t image = task / strips, n0 = task % strips * kStrip, n = std::min(kStrip, target.channels - n0);
    T total[kStrip] = {}, line[kStrip];
    for (std::int64_t y = 0; y < target.oh; ++y) {
      const std::int64_t pixel = (image * target.oh + y) * target.ow;
      std::fill(line, line + n, T(0));
      target.add_line(image, y, 0, target.ow, n0, n, z + pixel * target.channels + n0, target.channels, line);
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

template <class T>
void TailTarget<T>::add_line(std::int64_t image, std::int64_t y0, std::int64_t x0, std::int64_t cols, std::int64_t n0,
                             std::int64_t n, const T* z, std::int64_t z_pixel, T* line) const {
  const std::int64_t row_bits = bit_bytes(channels);
  tail_kernels<T>().relu_sum(cols, n, z, z_pixel, line,
                             bits != nullptr ? bits + ((image * oh + y0) * ow + x0) * row_bits + n0 / 8 : nullptr,
                             row_bits);
}

template <class T>
void TailTarget<T>::finish_mean(std::int64_t image, const T* lines) const {
  const T inverse = T(1) / static_cast<T>(oh * ow);
  for (std::int64_t c = 0; c < channels; ++c) {
    T total = T(0);
    for (std::int64_t row = 0; row < oh; ++row) total += lines[row * channels + c];
    y[image * channels + c] = total * inverse;
  }
}

template <class T>
void TailGradient<T>::get(std::int64_t image, std::int64_t row, std::int64_t x0, std::int64_t pixels, std::int64_t n0,
                          std::int64_t n, T* dz, std::int64_t dz_pixel) const {
  const std::int64_t pixel = (image * oh + row) * ow + x0;
  if (plain) {
    for (std::int64_t p = 0; p < pixels; ++p, dz += dz_pixel) {
      const T* from = dy + (pixel + p) * channels + n0;
      std::copy(from, from + n, dz);
    }
    return;
  }
  std::int64_t from = pixel, count = pixels, repeat = 1;  // pixel of dy, pixels of z that have one
  T scale = T(1);
  if (tail == ConvTail::relu_mean) {
    from = image, repeat = ow, scale = T(1) / static_cast<T>(oh * ow);
  } else if (tail == ConvTail::relu_max_pool) {
    from = (image * (oh / 2) + row / 2) * (ow / 2) + x0 / 2, repeat = 2;
    count = row / 2 < oh / 2 ? std::min(pixels, ow / 2 * 2 - x0) : 0;
  }
  const std::int64_t row_bits = bit_bytes(channels);
  tail_kernels<T>().select(count, repeat, n, dy + from * channels + n0, channels, scale, bits + pixel * row_bits + n0 / 8,
                           row_bits, dz, dz_pixel);
  for (std::int64_t p = count; p < pixels; ++p) std::fill(dz + p * dz_pixel, dz + p * dz_pixel + n, T(0));
}

ConvTailPlan plan_conv2d_tail(ConvTail tail, const ConvDesc& d, std::size_t element_size, std::size_t cap) {
  ConvTailPlan plan;
  plan.images = d.n;
  plan.piece = plan_conv2d(ConvPass::forward, d, element_size, cap);
  plan.algorithm = plan.piece.algorithm;
  plan.conv_bytes = plan.workspace_bytes = plan.piece.workspace_bytes;
  if (hands_over_tiles(tail, plan.piece)) return plan;
  if (is(plan.piece, "thin") && thin_bytes(tail, d, element_size) <= cap) {
    plan.conv_bytes = 0;  // one piece of memory for all
    plan.workspace_bytes = thin_bytes(tail, d, element_size);
    return plan;
  }
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
    if (hands_over_tiles(tail, plan.piece)) return conv2d_winograd_tail(d, plan.piece, x, w, bias, target, workspace);
  }
  if (plan.conv_bytes == 0 && is(plan.piece, "thin"))
    return thin_forward<T>(d, kMaxSlots, x, w, bias, nullptr, &target, static_cast<T*>(workspace));
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
  const std::int64_t oh = d.oh(), ow = d.ow();
  const TailGradient<T> source{.tail = tail, .oh = oh, .ow = ow, .channels = d.k, .dy = dy, .bits = bits};
  parallel_chunks(d.n * oh, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, ow * d.k)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row)
                      source.get(row / oh, row % oh, 0, ow, 0, d.k, dz + row * ow * d.k, d.k);
                  });
}

ConvPlan plan_conv2d_tail_weight(ConvTail, const ConvDesc& d, std::size_t element_size, std::size_t cap) {
  ConvPlan plan = plan_conv2d(ConvPass::backward_weight, d, element_size, cap);
  if (!is(plan, "thin")) plan.algorithm = nullptr, plan.workspace_bytes = 0;
  return plan;
}

template <class T>
void conv2d_tail_weight(ConvTail tail, const ConvDesc& d, const ConvPlan& plan, const T* x, const T* dy,
                        const std::uint8_t* bits, T* dw, T* db, void* workspace) {
  const TailGradient<T> dz{.tail = tail, .oh = d.oh(), .ow = d.ow(), .channels = d.k, .dy = dy, .bits = bits};
  thin_backward_weight<T>(d, plan.pieces.parts, x, dz, dw, db, static_cast<T*>(workspace));
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
  template struct TailGradient<T>;                                                                                   \
  template void conv2d_tail_weight<T>(ConvTail, const ConvDesc&, const ConvPlan&, const T*, const T*,                \
                                      const std::uint8_t*, T*, T*, void*);                                           \
  template void conv2d_tail_forward<T>(ConvTail, const ConvDesc&, const ConvTailPlan&, const T*, const T*, const T*, \
                                       T*, std::uint8_t*, void*);                                                    \
  template void conv2d_tail_backward<T>(ConvTail, const ConvDesc&, const T*, const std::uint8_t*, T*);               \
  template void relu_rows<T>(std::int64_t, std::int64_t, T*, std::uint8_t*);                                         \
  template void relu_rows_backward<T>(std::int64_t, std::int64_t, const T*, const std::uint8_t*, T*);
LIMPID_INSTANTIATE(float)
LIMPID_INSTANTIATE(double)
#undef LIMPID_INSTANTIATE

}  // namespace limpid::cpu
