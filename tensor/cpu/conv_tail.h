// Convolution with what follows it (tensor/conv_tail.h) on the CPU, float and double. Layouts and promises as in conv.h:
// NHWC, no allocation, the same bits for any thread count. The values are those of the separate operations, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include <limpid/tensor/conv_tail.h>
#include <limpid/tensor/cpu/conv.h>

namespace limpid::cpu {

// Serial building blocks, chosen for the processor. Pixels are `*_pixel` elements apart (bits: bytes), n channels each.
template <class T>
struct TailKernels {
  // y = max(z, 0); y may be z. bits may be null.
  void (*relu)(std::int64_t pixels, std::int64_t n, const T* z, std::int64_t z_pixel, T* y, std::int64_t y_pixel,
               std::uint8_t* bits, std::int64_t bits_pixel);
  // A row of windows: z's rows are z_row apart, those of the bits bits_row.
  void (*max_pool)(std::int64_t windows, std::int64_t n, const T* z, std::int64_t z_pixel, std::int64_t z_row, T* y,
                   std::int64_t y_pixel, std::uint8_t* bits, std::int64_t bits_pixel, std::int64_t bits_row);
  // sums[c] += max(z, 0) of the pixels, one after the other.
  void (*relu_sum)(std::int64_t pixels, std::int64_t n, const T* z, std::int64_t z_pixel, T* sums, std::uint8_t* bits,
                   std::int64_t bits_pixel);
  // dz of pixel p = scale * g of pixel p / repeat where the bit is set; dz may be g.
  void (*select)(std::int64_t pixels, std::int64_t repeat, std::int64_t n, const T* g, std::int64_t g_pixel, T scale,
                 const std::uint8_t* bits, std::int64_t bits_pixel, T* dz, std::int64_t dz_pixel);
  // sums[c] += z of the pixels, those with even and with odd number by themselves first.
  void (*add_pixels)(std::int64_t pixels, std::int64_t n, const T* z, std::int64_t z_pixel, T* sums);
};
template <class T>
const TailKernels<T>& tail_kernels();

// Where the results go while a convolution makes z piece by piece.
template <class T>
struct TailTarget {
  ConvTail tail = ConvTail::relu;
  std::int64_t oh = 0, ow = 0, channels = 0;  // of z
  T* y = nullptr;
  std::uint8_t* bits = nullptr;  // null: not kept
  // Channels [n0, n0 + n) of the rectangle with its first pixel at (y0, x0) of an image; n0 is a multiple of 8. For
  // relu_max_pool y0 and x0 are even, and the rectangle ends at an even position or at the image's edge.
  void put(std::int64_t image, std::int64_t y0, std::int64_t x0, std::int64_t rows, std::int64_t cols, std::int64_t n0,
           std::int64_t n, const T* z, std::int64_t z_pixel, std::int64_t z_row) const;
  // relu_mean, as adaptive_avg_pool2d makes it: sums of each row, from its first to its last pixel, then their sum.
  // line[0..n) += the pixels from (y0, x0) on; lines [oh][channels] of a whole image give its mean.
  void add_line(std::int64_t image, std::int64_t y0, std::int64_t x0, std::int64_t cols, std::int64_t n0,
                std::int64_t n, const T* z, std::int64_t z_pixel, T* line) const;
  void finish_mean(std::int64_t image, const T* lines) const;
};

// The gradient of z, made from that of y where it is needed.
template <class T>
struct TailGradient {
  bool plain = false;  // dy is that of z itself, and there are no bits
  ConvTail tail = ConvTail::relu;
  std::int64_t oh = 0, ow = 0, channels = 0;  // of z
  const T* dy = nullptr;
  const std::uint8_t* bits = nullptr;
  // Channels [n0, n0 + n) of `pixels` of row y from x0 on; n0 is a multiple of 8, x0 even for relu_max_pool.
  void get(std::int64_t image, std::int64_t y, std::int64_t x0, std::int64_t pixels, std::int64_t n0, std::int64_t n,
           T* dz, std::int64_t dz_pixel) const;
};

// z is made some images at a time, in the workspace or (relu) in y. Where the algorithm hands its results over piece by
// piece there is no z: "thin" does, and "winograd" except for the mean.
struct ConvTailPlan {
  const char* algorithm = "direct";  // the convolution's
  std::size_t workspace_bytes = 0;
  std::int64_t images = 0;        // of a piece
  ConvPlan piece, rest;           // of a piece, and of what is left at the end
  std::size_t conv_bytes = 0;     // of the workspace, for the convolution; z comes behind it
};
ConvTailPlan plan_conv2d_tail(ConvTail tail, const ConvDesc& desc, std::size_t element_size, std::size_t cap = SIZE_MAX);

template <class T>
void conv2d_tail_forward(ConvTail tail, const ConvDesc& desc, const ConvTailPlan& plan, const T* x, const T* w,
                         const T* bias, T* y, std::uint8_t* bits, void* workspace);
// dz, all of it.
template <class T>
void conv2d_tail_backward(ConvTail tail, const ConvDesc& desc, const T* dy, const std::uint8_t* bits, T* dz);

// Gradients of weight and bias (db may be null) without a dz in between. Algorithm null: only from dz.
ConvPlan plan_conv2d_tail_weight(ConvTail tail, const ConvDesc& desc, std::size_t element_size, std::size_t cap = SIZE_MAX);
template <class T>
void conv2d_tail_weight(ConvTail tail, const ConvDesc& desc, const ConvPlan& plan, const T* x, const T* dy,
                        const std::uint8_t* bits, T* dw, T* db, void* workspace);

// Dense rows [rows][n].
template <class T>
void relu_rows(std::int64_t rows, std::int64_t n, T* y, std::uint8_t* bits);
template <class T>
void relu_rows_backward(std::int64_t rows, std::int64_t n, const T* dy, const std::uint8_t* bits, T* dz);

}  // namespace limpid::cpu
