#include <limpid/cuda/kernels/augment.cuh>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/image_index.cuh>

namespace limpid::cu {
namespace {

// A thread a pixel of the batch: its channels are few, and neighbours in the output.
template <class T>
__global__ void augment_kernel(ImageIndex pixels, AugmentShape s, T* out, const std::uint8_t* data,
                               const std::int64_t* index, const std::int32_t* top, const std::int32_t* left,
                               const std::uint8_t* flip) {
  for (std::int64_t i = first_position(); i < pixels.count; i += position_step()) {
    const ImagePlace at = pixels.place(i);
    const int column = flip && flip[at.image] ? pixels.width - 1 - at.x : at.x;
    const std::int64_t y = at.y + (top ? top[at.image] : 0), x = column + (left ? left[at.image] : 0);
    const bool inside = y >= 0 && y < s.height && x >= 0 && x < s.width;
    const std::uint8_t* from = data + index[at.image] * s.image_step + y * s.row_step + x * s.column_step;
    for (int c = 0; c < s.channels; c++) {
      float value = s.fill[c];
      // As on the host: three roundings, none of them contracted.
      if (inside)
        value = __fmul_rn(__fsub_rn(__fdiv_rn(static_cast<float>(from[c * s.channel_step]), 255.0f), s.mean[c]),
                          s.scale[c]);
      out[i * s.channels + c] = from_float<T>(value);
    }
  }
}

}  // namespace

cudaError_t augment(const AugmentShape& s, DType dtype, void* out, const std::uint8_t* data, const std::int64_t* index,
                    const std::int32_t* top, const std::int32_t* left, const std::uint8_t* flip, cudaStream_t stream) {
  if (s.channels > AugmentShape::kMaxChannels || dtype == DType::float64) return cudaErrorInvalidValue;
  const ImageIndex pixels(s.images, s.out_height, s.out_width, 1, 1);
  if (pixels.count * s.channels == 0) return cudaSuccess;
  return dispatch_floating(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, double>) {
      return cudaErrorInvalidValue;
    } else {
      return launch(augment_kernel<T>, grid_for(pixels.count), kBlockThreads, 0, stream, pixels, s,
                    static_cast<T*>(out), data, index, top, left, flip);
    }
  });
}

}  // namespace limpid::cu
