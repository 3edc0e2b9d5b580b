// Shared by the tests of data/: a folder that vanishes, small files, encoders for JPEG and PNG, seeded damage.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <png.h>
#include <unistd.h>
#include <zlib.h>

#include <doctest/doctest.h>

#include <limpid/base/error.h>
#include <limpid/tensor/random.h>

namespace data_test {

using Bytes = std::vector<std::uint8_t>;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "limpid-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (std::filesystem::path(path_) / name).string(); }
  const std::string& path() const { return path_; }
  std::string make_folder(const std::string& name) const {
    std::filesystem::create_directories(*this / name);
    return *this / name;
  }

 private:
  std::string path_;
};

inline void write_bytes(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

inline Bytes read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

inline Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes out(bytes.size() + 200 + bytes.size() / 100);
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline Bytes idx(const std::vector<std::uint32_t>& sizes, const Bytes& elements, std::uint8_t type = 8) {
  Bytes out{0, 0, type, static_cast<std::uint8_t>(sizes.size())};
  for (std::uint32_t size : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::uint8_t>(size >> shift));
  out.insert(out.end(), elements.begin(), elements.end());
  return out;
}

// format: PNG_FORMAT_*; 16-bit linear formats take two bytes a sample.
inline Bytes encode_png(const void* pixels, int width, int height, std::uint32_t format) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  png_alloc_size_t size = 0;
  REQUIRE(png_image_write_to_memory(&image, nullptr, &size, 0, pixels, 0, nullptr));
  Bytes out(size);
  REQUIRE(png_image_write_to_memory(&image, out.data(), &size, 0, pixels, 0, nullptr));
  out.resize(size);
  return out;
}

// 16-bit gray, stored as it is.
inline Bytes encode_png16(const std::vector<std::uint16_t>& pixels, int width, int height) {
  Bytes out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep data, png_size_t n) {
        auto* bytes = static_cast<Bytes*>(png_get_io_ptr(p));
        bytes->insert(bytes->end(), data, data + n);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 16, PNG_COLOR_TYPE_GRAY,
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  for (int y = 0; y < height; y++) {
    Bytes row;
    for (int x = 0; x < width; x++) {
      std::uint16_t v = pixels[static_cast<std::size_t>(y * width + x)];
      row.push_back(static_cast<std::uint8_t>(v >> 8));
      row.push_back(static_cast<std::uint8_t>(v));
    }
    png_write_row(png, row.data());
  }
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return out;
}

// components: 1 gray, 3 RGB, 4 CMYK.
inline Bytes encode_jpeg(const Bytes& pixels, int width, int height, int components, bool progressive = false) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = components;
  info.in_color_space = components == 1 ? JCS_GRAYSCALE : components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPLE*>(pixels.data()) + info.next_scanline * static_cast<std::size_t>(width * components);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  Bytes out(memory, memory + size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return out;
}

// A smooth picture: JPEG keeps it within a few levels.
inline Bytes gradient(int width, int height, int components, int phase = 0) {
  Bytes pixels;
  for (int y = 0; y < height; y++)
    for (int x = 0; x < width; x++)
      for (int c = 0; c < components; c++)
        pixels.push_back(static_cast<std::uint8_t>((phase + 40 + 4 * x + 3 * y + 25 * c) % 230));
  return pixels;
}

// Runs `read` on every prefix of `good`. Each must throw limpid::Error; the whole must be read.
inline void cut_everywhere(const Bytes& good, const std::function<void(const Bytes&)>& read) {
  CHECK_NOTHROW(read(good));
  for (std::size_t length = 0; length < good.size(); length++) {
    CAPTURE(length);
    CHECK_THROWS_AS(read(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length))), limpid::Error);
  }
}

// Damages `good` in seeded ways and reads: it may still be valid, but anything thrown must be limpid::Error. Returns
// how many were refused.
inline int damage(const Bytes& good, std::uint64_t seed, int rounds, const std::function<void(const Bytes&)>& read) {
  limpid::Generator random(seed);
  int refused = 0;
  for (int round = 0; round < rounds; round++) {
    CAPTURE(seed);
    CAPTURE(round);
    Bytes bytes = good;
    for (std::int64_t edits = 1 + random.below(4); edits > 0 && !bytes.empty(); edits--) {
      const auto at = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(bytes.size())));
      switch (random.below(5)) {
        case 0:
          bytes[at] = static_cast<std::uint8_t>(random.next());
          break;
        case 1:
          bytes[at] ^= static_cast<std::uint8_t>(1u << random.below(8));
          break;
        case 2:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::uint8_t>(random.next()));
          break;
        case 3:
          bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        default:
          bytes[at] = random.below(2) ? 0xff : 0x00;
      }
    }
    try {
      read(bytes);
    } catch (const limpid::Error&) {
      refused++;
    } catch (const std::exception& error) {
      FAIL_CHECK("an exception that is not limpid::Error: ", error.what());
    }
  }
  return refused;
}

}  // namespace data_test
