// Batches of images from a data set that lies on the device as bytes: gathered, cropped, flipped, scaled to [0, 1] and
// normalised in one pass. The numbers are those of the host's transforms (data/transforms.h), in f32 to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/tensor/dtype.h>

namespace limpid::cu {

struct AugmentShape {
  static constexpr int kMaxChannels = 16;
  std::int64_t images = 0;                           // of the batch
  std::int64_t channels = 0, height = 0, width = 0;  // of the data set's images
  std::int64_t out_height = 0, out_width = 0;
  std::int64_t image_step = 0, channel_step = 0, row_step = 0,
               column_step = 0;  // of the data set, in bytes: any layout
  float mean[kMaxChannels] = {};
  float scale[kMaxChannels] = {};  // 1 / std
  float fill[kMaxChannels] = {};   // outside of the image, after normalisation
};

// out[i][y][x][c] (channels_last, dtype f32, f16 or bf16) = (byte / 255 - mean[c]) * scale[c] of image index[i] at row
// top[i] + y and column left[i] + x, or left[i] + out_width - 1 - x where flip[i] is not 0 (crop first, then flip).
// index i64, the caller has checked it; top, left i32, may be negative (padding); null: 0. flip u8; null: none. All
// [images]. cudaErrorInvalidValue for more than kMaxChannels channels and for other dtypes.
cudaError_t augment(const AugmentShape& shape, DType dtype, void* out, const std::uint8_t* data,
                    const std::int64_t* index, const std::int32_t* top, const std::int32_t* left,
                    const std::uint8_t* flip, cudaStream_t stream);

}  // namespace limpid::cu
