// JPEG and PNG decoding and resizing. Decoders get hostile files: sizes are checked before memory is taken, a truncated
// or corrupt image is a DataError with the file's name. CMYK JPEG and colour profiles are not supported.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace limpid::data {

// Bytes in rows of interleaved pixels: pixels[(row * width + column) * channels + channel].
struct Image {
  std::int64_t height = 0;
  std::int64_t width = 0;
  int channels = 0;
  std::vector<std::uint8_t> pixels;
};

struct DecodeOptions {
  int channels = 3;  // 3 = RGB, 1 = gray (luma of ITU-R BT.601); the file's own kind is converted, alpha is dropped
  std::int64_t max_pixels = std::int64_t{64} << 20;
};

// The kind is told by the first bytes, not by the name. `source` stands in errors.
Image decode_image(const std::uint8_t* bytes, std::size_t count, const std::string& source,
                   const DecodeOptions& options = {});
Image decode_image(const std::string& path, const DecodeOptions& options = {});

// Bilinear with a triangle filter that widens when the image shrinks, so that nothing is skipped (as Pillow's BILINEAR
// and torchvision's antialias); pixel centres at half. Writes float32 [channels,height,width] in [0,1]; equal sizes
// copy.
void resize_to_planes(const Image& image, std::int64_t height, std::int64_t width, float* out);

}  // namespace limpid::data
