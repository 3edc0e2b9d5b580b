// Internal to tensor/cpu: Winograd convolution F(4x4, 3x3), stride 1, float (Lavin and Gray, arXiv 1509.09308, with the
// points 0, 1, -1, 2, -2, infinity). 2.25 multiplications an output instead of 9; errors 10 to 30 times those of the
// direct form, so never for double. conv.cpp decides when it is used.
#pragma once

#include <cstdint>
#include <vector>

#include <limpid/tensor/cpu/conv_kernels.h>

namespace limpid::cpu {

template <class T>
struct TailTarget;  // conv_tail.h

// Tiles of 4x4 outputs over all images, each computed from 6x6 inputs.
struct WinogradGeo {
  std::int64_t n = 0, h = 0, w = 0, oh = 0, ow = 0, pad_h = 0, pad_w = 0;
  std::int64_t tiles_h() const { return (oh + 3) / 4; }
  std::int64_t tiles_w() const { return (ow + 3) / 4; }
  std::int64_t tiles() const { return n * tiles_h() * tiles_w(); }
};

// Where a tile lies: image, first output row and column.
struct WinogradTile {
  std::int64_t image, y, x;
  WinogradTile(const WinogradGeo& g, std::int64_t t) {
    const std::int64_t tw = g.tiles_w(), per_image = tw * g.tiles_h();
    image = t / per_image, y = t % per_image / tw * 4, x = t % tw * 4;
  }
};

// Serial transforms, chosen for the processor. Transformed data are 36 panel matrices, one a position: [36][panels of
// channels][rows][P], rows being tiles (row stride P, panel stride rows * P) or, for filters, input channels.
struct WinogradKernels {
  // V = B^T x B of tiles [t0, t0 + count); stride: rows of a panel.
  void (*input)(const WinogradGeo& geo, const float* x, std::int64_t channels, std::int64_t t0, std::int64_t count,
                float* v, std::int64_t stride);
  // Z = A dy A^T.
  void (*gradient)(const WinogradGeo& geo, const float* dy, std::int64_t channels, std::int64_t t0, std::int64_t count,
                   float* z, std::int64_t stride);
  // y = A^T m A + bias, channels [k0, k0 + channels) of y's `total`.
  void (*output)(const WinogradGeo& geo, const float* m, std::int64_t channels, std::int64_t t0, std::int64_t count,
                 std::int64_t stride, const float* bias, float* y, std::int64_t total);
  // One panel of filters [9][rows][P] -> [36] matrices of [rows][P], `position` elements apart: U = G g G^T.
  void (*filter)(std::int64_t rows, const float* w, float* u, std::int64_t position);
  // The way back for gradients: dw (+)= G^T u G.
  void (*filter_gradient)(std::int64_t rows, const float* u, std::int64_t position, float* dw, bool accumulate);
};
const WinogradKernels& winograd_kernels();

// How much a call works on at a time: the blocks of tiles are halved so many times, and so many slots have scratch. Other
// pieces than these change at most the order of the weight gradient's sums.
struct WinogradPieces {
  int halvings = 0;
  std::int64_t slots = 8;  // kMaxSlots
  static constexpr int kMaxHalvings = 2;
};

// Forward convolution of x (channels) with a filter matrix read through `filter` (rows (r, s, c), n outputs). The input
// gradient is the same with the filter turned around. bias may be null. With a tail the results go there, not to y.
std::int64_t winograd_forward_elements(const WinogradGeo& geo, std::int64_t channels, std::int64_t outputs,
                                       const WinogradPieces& pieces);
void winograd_forward(const WinogradGeo& geo, const FilterMap& filter, const float* x, const float* w,
                      const float* bias, float* y, float* workspace, const WinogradPieces& pieces,
                      const TailTarget<float>* tail = nullptr);
// Multiply-adds of each task, in the direct form and with its padding (tasks of conv2d_forward_tasks()).
std::vector<double> winograd_forward_tasks(const WinogradGeo& geo, std::int64_t channels, std::int64_t outputs,
                                           const WinogradPieces& pieces);
std::int64_t winograd_weight_elements(const WinogradGeo& geo, std::int64_t channels, std::int64_t outputs,
                                      const WinogradPieces& pieces);
void winograd_backward_weight(const WinogradGeo& geo, const FilterMap& filter, const float* x, const float* dy,
                              float* dw, float* workspace, const WinogradPieces& pieces);

}  // namespace limpid::cpu
