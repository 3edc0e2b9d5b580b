#include <limpid/data/image.h>

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
// jpeglib.h needs cstdio before it.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <cmath>

#include <limpid/base/error.h>
#include <limpid/base/file.h>

namespace limpid::data {
namespace {

constexpr std::uint64_t kMaxFile = std::uint64_t{256} << 20;
constexpr int kMaxScans = 200;  // of a progressive JPEG: each costs a pass over the whole image

void check_pixels(const std::string& source, std::uint64_t width, std::uint64_t height, const DecodeOptions& options) {
  LIMPID_CHECK(width > 0 && height > 0, DataError, "[decode_image] ", source, " has size ", width, "x", height);
  LIMPID_CHECK(width <= static_cast<std::uint64_t>(options.max_pixels) / height, DataError, "[decode_image] ", source,
               " has ", width, "x", height, " pixels, more than the accepted ", options.max_pixels);
}

// ---- JPEG. libjpeg reports errors by a callback that must not return: it jumps back into decode_scanlines(). No
// object with a destructor lives in the frames between, so the jump skips none.

struct JpegErrors {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void jpeg_fail(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  errors->base.format_message(info, errors->message);
  std::longjmp(errors->jump, 1);
}

// Warnings of libjpeg mean lost pixels, except these, which many cameras and editors cause.
void jpeg_message(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace
  const int code = info->err->msg_code;
  if (code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR) return;
  jpeg_fail(info);
}

void jpeg_silent(j_common_ptr) {}

void jpeg_progress(j_common_ptr info) {
  if (!info->is_decompressor) return;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans) ERREXIT(info, JERR_BAD_PROGRESSION);
}

struct JpegReader {
  jpeg_decompress_struct info{};
  JpegErrors errors{};
  jpeg_progress_mgr progress{};
  bool created = false;
  ~JpegReader() {
    if (created) jpeg_destroy_decompress(&info);
  }
};

// Both return false with errors.message set.
bool read_jpeg_header(JpegReader& reader, const std::uint8_t* bytes, std::size_t count) {
  reader.info.err = jpeg_std_error(&reader.errors.base);
  reader.errors.base.error_exit = jpeg_fail;
  reader.errors.base.emit_message = jpeg_message;
  reader.errors.base.output_message = jpeg_silent;
  if (setjmp(reader.errors.jump)) return false;
  jpeg_create_decompress(&reader.info);
  reader.created = true;
  reader.progress.progress_monitor = jpeg_progress;
  reader.info.progress = &reader.progress;
  jpeg_mem_src(&reader.info, bytes, count);
  jpeg_read_header(&reader.info, TRUE);
  return true;
}

bool read_jpeg_rows(JpegReader& reader, int channels, std::uint8_t* out) {
  if (setjmp(reader.errors.jump)) return false;
  reader.info.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  reader.info.dct_method = JDCT_ISLOW;  // the exact one, the same bits on every machine
  jpeg_start_decompress(&reader.info);
  const std::size_t stride = static_cast<std::size_t>(reader.info.output_width) * static_cast<std::size_t>(channels);
  while (reader.info.output_scanline < reader.info.output_height) {
    JSAMPROW row = out + reader.info.output_scanline * stride;
    jpeg_read_scanlines(&reader.info, &row, 1);
  }
  jpeg_finish_decompress(&reader.info);
  return true;
}

Image decode_jpeg(const std::uint8_t* bytes, std::size_t count, const std::string& source,
                  const DecodeOptions& options) {
  JpegReader reader;
  LIMPID_CHECK(read_jpeg_header(reader, bytes, count), DataError, "[decode_image] ", source,
               ": JPEG: ", static_cast<const char*>(reader.errors.message));
  const auto& info = reader.info;
  check_pixels(source, info.image_width, info.image_height, options);
  LIMPID_CHECK(info.jpeg_color_space != JCS_CMYK && info.jpeg_color_space != JCS_YCCK, DataError, "[decode_image] ",
               source, " is a CMYK JPEG; expected RGB or gray");
  Image image{
      static_cast<std::int64_t>(info.image_height), static_cast<std::int64_t>(info.image_width), options.channels, {}};
  image.pixels.resize(static_cast<std::size_t>(image.height * image.width * image.channels));
  LIMPID_CHECK(read_jpeg_rows(reader, options.channels, image.pixels.data()), DataError, "[decode_image] ", source,
               ": JPEG: ", static_cast<const char*>(reader.errors.message));
  return image;
}

// ---- PNG, by libpng's simplified interface, which catches its own jumps.

constexpr std::uint8_t kPngMagic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

// libpng stops reading once it has all rows: whether the file is whole is checked chunk by chunk here.
void check_png_whole(const std::uint8_t* bytes, std::size_t count, const std::string& source) {
  std::size_t at = sizeof kPngMagic;
  for (;;) {
    LIMPID_CHECK(count - at >= 12, DataError, "[decode_image] ", source, ": PNG is truncated: no IEND chunk");
    const std::uint8_t* p = bytes + at;
    const std::size_t length = (std::size_t{p[0]} << 24) | (std::size_t{p[1]} << 16) | (std::size_t{p[2]} << 8) | p[3];
    LIMPID_CHECK(length <= count - at - 12, DataError, "[decode_image] ", source, ": PNG is truncated: a chunk of ",
                 length, " bytes, ", count - at - 12, " are left");
    if (std::memcmp(p + 4, "IEND", 4) == 0) return;
    at += 12 + length;
  }
}

struct PngReader {
  png_image image{};
  ~PngReader() { png_image_free(&image); }
};

Image decode_png(const std::uint8_t* bytes, std::size_t count, const std::string& source,
                 const DecodeOptions& options) {
  check_png_whole(bytes, count, source);
  PngReader reader;
  reader.image.version = PNG_IMAGE_VERSION;
  LIMPID_CHECK(png_image_begin_read_from_memory(&reader.image, bytes, count), DataError, "[decode_image] ", source,
               ": PNG: ", static_cast<const char*>(reader.image.message));
  check_pixels(source, reader.image.width, reader.image.height, options);
  reader.image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // 16-bit files hold the same encoding, finer
  // RGBA keeps libpng from blending: alpha is dropped below, colours stay as stored.
  reader.image.format = PNG_FORMAT_RGBA;
  const std::size_t pixels = static_cast<std::size_t>(reader.image.width) * reader.image.height;
  std::vector<std::uint8_t> rgba(pixels * 4);
  LIMPID_CHECK(png_image_finish_read(&reader.image, nullptr, rgba.data(), 0, nullptr), DataError, "[decode_image] ",
               source, ": PNG: ", static_cast<const char*>(reader.image.message));
  Image image{static_cast<std::int64_t>(reader.image.height),
              static_cast<std::int64_t>(reader.image.width),
              options.channels,
              {}};
  image.pixels.resize(pixels * static_cast<std::size_t>(options.channels));
  std::uint8_t* out = image.pixels.data();
  for (std::size_t i = 0; i < pixels; i++) {
    const std::uint8_t* p = rgba.data() + i * 4;
    if (options.channels == 3) {
      out[0] = p[0], out[1] = p[1], out[2] = p[2];
      out += 3;
    } else {
      // ITU-R BT.601 luma in 16-bit fixed point; the weights sum to 65536, so gray stays as it is.
      *out++ = static_cast<std::uint8_t>((19595u * p[0] + 38470u * p[1] + 7471u * p[2] + 32768u) >> 16);
    }
  }
  return image;
}

// One output pixel along an axis: which input pixels, with which weights.
struct Taps {
  std::int64_t first = 0;
  std::vector<float> weights;
};

std::vector<Taps> triangle_taps(std::int64_t in, std::int64_t out) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double radius = std::max(scale, 1.0);
  std::vector<Taps> taps(static_cast<std::size_t>(out));
  for (std::int64_t o = 0; o < out; o++) {
    const double centre = (static_cast<double>(o) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(centre - radius + 0.5));
    const auto last = std::min<std::int64_t>(in, static_cast<std::int64_t>(centre + radius + 0.5));
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t i = first; i < last; i++) {
      const double distance = std::abs(static_cast<double>(i) + 0.5 - centre) / radius;
      weights.push_back(std::max(0.0, 1.0 - distance));
      sum += weights.back();
    }
    Taps& tap = taps[static_cast<std::size_t>(o)];
    tap.first = first;
    for (double w : weights) tap.weights.push_back(static_cast<float>(w / sum));
  }
  return taps;
}

}  // namespace

Image decode_image(const std::uint8_t* bytes, std::size_t count, const std::string& source,
                   const DecodeOptions& options) {
  LIMPID_CHECK(options.channels == 1 || options.channels == 3, ArgumentError, "[decode_image] channels is ",
               options.channels, ", expected 1 or 3");
  LIMPID_CHECK(options.max_pixels > 0, ArgumentError, "[decode_image] max_pixels is ", options.max_pixels);
  if (count >= sizeof kPngMagic && std::memcmp(bytes, kPngMagic, sizeof kPngMagic) == 0)
    return decode_png(bytes, count, source, options);
  if (count >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff)
    return decode_jpeg(bytes, count, source, options);
  LIMPID_THROW(DataError, "[decode_image] ", source, " is neither JPEG nor PNG (", count, " bytes)");
}

Image decode_image(const std::string& path, const DecodeOptions& options) {
  std::vector<std::uint8_t> bytes = read_file(path, kMaxFile);
  return decode_image(bytes.data(), bytes.size(), path, options);
}

void resize_to_planes(const Image& image, std::int64_t height, std::int64_t width, float* out) {
  LIMPID_CHECK(height > 0 && width > 0 && image.height > 0 && image.width > 0, ArgumentError, "[resize] from ",
               image.height, "x", image.width, " to ", height, "x", width);
  const std::int64_t channels = image.channels, in_width = image.width;
  const auto at = [&](std::int64_t y, std::int64_t x, std::int64_t c) {
    return static_cast<float>(image.pixels[static_cast<std::size_t>((y * in_width + x) * channels + c)]);
  };
  if (height == image.height && width == image.width) {
    for (std::int64_t c = 0; c < channels; c++)
      for (std::int64_t y = 0; y < height; y++)
        for (std::int64_t x = 0; x < width; x++) *out++ = at(y, x, c) / 255.0f;
    return;
  }
  const std::vector<Taps> across = triangle_taps(in_width, width), down = triangle_taps(image.height, height);
  std::vector<float> rows(static_cast<std::size_t>(image.height * width));
  for (std::int64_t c = 0; c < channels; c++) {
    for (std::int64_t y = 0; y < image.height; y++) {
      for (std::int64_t x = 0; x < width; x++) {
        const Taps& tap = across[static_cast<std::size_t>(x)];
        float sum = 0;
        for (std::size_t k = 0; k < tap.weights.size(); k++)
          sum += tap.weights[k] * at(y, tap.first + static_cast<std::int64_t>(k), c);
        rows[static_cast<std::size_t>(y * width + x)] = sum;
      }
    }
    for (std::int64_t y = 0; y < height; y++) {
      const Taps& tap = down[static_cast<std::size_t>(y)];
      for (std::int64_t x = 0; x < width; x++) {
        float sum = 0;
        for (std::size_t k = 0; k < tap.weights.size(); k++)
          sum +=
              tap.weights[k] * rows[static_cast<std::size_t>((tap.first + static_cast<std::int64_t>(k)) * width + x)];
        *out++ = sum / 255.0f;
      }
    }
  }
}

}  // namespace limpid::data
