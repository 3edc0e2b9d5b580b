// Internal to tensor/cpu: the serial building blocks of direct convolution, chosen for the processor at run time:
// packing of image patches and filters into panels (panel.h), and depthwise rows. conv.cpp drives them.
#pragma once

#include <cstdint>

namespace limpid::cpu {

// A grid of patches of NHWC images: patch (i, j) of an image takes, for each tap (r, s), the cn channels of pixel
//   y = i * sy + ty0 + r * dty,  x = j * sx + tx0 + s * dtx,
// zeros outside the image. Columns of the patch matrix are ordered (r, s, channel). Forward convolution, weight
// gradient and (per stride phase) input gradient are all products with such a matrix.
struct PatchMap {
  std::int64_t gh = 0, gw = 0;  // patches an image
  std::int64_t ih = 0, iw = 0;  // image size
  std::int64_t ct = 0, cn = 0;  // channels of the image, and how many of them are taken
  std::int64_t sy = 1, sx = 1, ty0 = 0, tx0 = 0, dty = 1, dtx = 1;
  std::int64_t nr = 0, ns = 0;  // taps
  std::int64_t depth() const { return nr * ns * cn; }
};

// A filter bank as a matrix [depth][n] read from weights with the given element strides; rows ordered (r, s, channel).
struct FilterMap {
  std::int64_t nr = 0, ns = 0, cn = 0, n = 0;
  std::int64_t stride_r = 0, stride_s = 0, stride_c = 0, stride_n = 0;
  std::int64_t depth() const { return nr * ns * cn; }
};

struct DepthwiseDesc {
  std::int64_t c, h, w, oh, ow, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w;
};

template <class T>
struct ConvKernels {
  // Columns [k0, k0 + kn) of patches [p0, p0 + count) into panels of stride count * P. k0 is a multiple of P.
  // x: first image, first taken channel. Patches are numbered over images, rows, columns.
  void (*pack_patches)(const PatchMap& map, const T* x, std::int64_t p0, std::int64_t count, std::int64_t k0,
                       std::int64_t kn, T* dst);
  // One panel (columns [panel * P, ...)) of the filter matrix: dst[depth][P].
  void (*pack_filter)(const FilterMap& map, const T* w, std::int64_t panel, T* dst);
  // The inverse: w = sum over parts of src + q * part_stride, each [depth][P].
  void (*unpack_filter)(const FilterMap& map, const T* src, std::int64_t parts, std::int64_t part_stride,
                        std::int64_t panel, T* w);
  // Depthwise: one row of one image; taps [r * s][c].
  void (*depthwise_forward_row)(const DepthwiseDesc& d, const T* image, const T* taps, const T* bias, std::int64_t row,
                                T* y);
  void (*depthwise_input_row)(const DepthwiseDesc& d, const T* dy_image, const T* taps, std::int64_t row, T* dx);
  void (*depthwise_weight_row)(const DepthwiseDesc& d, const T* image, const T* dy, std::int64_t row, T* taps);
};

template <class T>
const ConvKernels<T>& conv_kernels();

}  // namespace limpid::cpu
