#include <limpid/data/image.h>

#include <cmath>

#include "data_test.h"

using namespace limpid;
using namespace limpid::data;
using namespace data_test;

namespace {

Image decode(const Bytes& bytes, int channels = 3, std::int64_t max_pixels = 1 << 20) {
  return decode_image(bytes.data(), bytes.size(), "test image", {.channels = channels, .max_pixels = max_pixels});
}

int largest_difference(const Bytes& a, const Bytes& b) {
  REQUIRE(a.size() == b.size());
  int largest = 0;
  for (std::size_t i = 0; i < a.size(); i++)
    largest = std::max(largest, std::abs(static_cast<int>(a[i]) - static_cast<int>(b[i])));
  return largest;
}

std::uint8_t luma(int r, int g, int b) {
  return static_cast<std::uint8_t>((19595 * r + 38470 * g + 7471 * b + 32768) >> 16);
}

}  // namespace

TEST_CASE("png: rgb, gray, alpha and 16 bits") {
  const Bytes rgb = gradient(5, 3, 3);
  Image image = decode(encode_png(rgb.data(), 5, 3, PNG_FORMAT_RGB));
  CHECK(image.width == 5);
  CHECK(image.height == 3);
  CHECK(image.channels == 3);
  CHECK(image.pixels == rgb);

  Image gray_of_rgb = decode(encode_png(rgb.data(), 5, 3, PNG_FORMAT_RGB), 1);
  REQUIRE(gray_of_rgb.pixels.size() == 15);
  for (std::size_t i = 0; i < 15; i++) CHECK(gray_of_rgb.pixels[i] == luma(rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2]));

  const Bytes gray = gradient(4, 7, 1);
  CHECK(decode(encode_png(gray.data(), 4, 7, PNG_FORMAT_GRAY), 1).pixels == gray);
  Image rgb_of_gray = decode(encode_png(gray.data(), 4, 7, PNG_FORMAT_GRAY));
  for (std::size_t i = 0; i < gray.size(); i++)
    for (std::size_t c = 0; c < 3; c++) CHECK(rgb_of_gray.pixels[3 * i + c] == gray[i]);

  Bytes rgba;
  for (std::size_t i = 0; i < 15; i++) {
    for (std::size_t c = 0; c < 3; c++) rgba.push_back(rgb[3 * i + c]);
    rgba.push_back(static_cast<std::uint8_t>(i * 17));  // alpha is dropped, colours stay
  }
  CHECK(decode(encode_png(rgba.data(), 5, 3, PNG_FORMAT_RGBA)).pixels == rgb);

  std::vector<std::uint16_t> fine;
  Bytes coarse;
  for (int i = 0; i < 12; i++) {
    fine.push_back(static_cast<std::uint16_t>(i * 5000));
    coarse.push_back(static_cast<std::uint8_t>(std::lround(i * 5000 / 257.0)));
  }
  CHECK(largest_difference(decode(encode_png16(fine, 4, 3), 1).pixels, coarse) <= 1);
}

TEST_CASE("jpeg: rgb, gray, progressive; CMYK is refused") {
  const Bytes rgb = gradient(17, 13, 3);
  for (bool progressive : {false, true}) {
    Image image = decode(encode_jpeg(rgb, 17, 13, 3, progressive));
    CHECK(image.width == 17);
    CHECK(image.height == 13);
    CHECK(largest_difference(image.pixels, rgb) <= 12);
  }
  const Bytes gray = gradient(9, 8, 1);
  CHECK(largest_difference(decode(encode_jpeg(gray, 9, 8, 1), 1).pixels, gray) <= 6);
  Image widened = decode(encode_jpeg(gray, 9, 8, 1));
  REQUIRE(widened.pixels.size() == gray.size() * 3);
  CHECK(widened.pixels[0] == widened.pixels[2]);
  CHECK(decode(encode_jpeg(rgb, 17, 13, 3), 1).pixels.size() == 17 * 13);
  CHECK_THROWS_WITH_AS(decode(encode_jpeg(gradient(8, 8, 4), 8, 8, 4)), doctest::Contains("CMYK"), DataError);
}

TEST_CASE("image: sizes are checked before memory is taken") {
  const Bytes rgb = gradient(20, 10, 3);
  CHECK_THROWS_WITH_AS(decode(encode_png(rgb.data(), 20, 10, PNG_FORMAT_RGB), 3, 199), doctest::Contains("20x10"),
                       DataError);
  CHECK_THROWS_WITH_AS(decode(encode_jpeg(rgb, 20, 10, 3), 3, 199), doctest::Contains("20x10"), DataError);
  CHECK_NOTHROW(decode(encode_jpeg(rgb, 20, 10, 3), 3, 200));
  // A JPEG whose frame header claims 60909 x 60909.
  Bytes lying = encode_jpeg(rgb, 20, 10, 3);
  for (std::size_t i = 0; i + 8 < lying.size(); i++)
    if (lying[i] == 0xff && lying[i + 1] == 0xc0) lying[i + 5] = lying[i + 6] = lying[i + 7] = lying[i + 8] = 0xed;
  CHECK_THROWS_WITH_AS(decode(lying), doctest::Contains("more than the accepted"), DataError);
}

TEST_CASE("image: what is neither format, bad options") {
  CHECK_THROWS_WITH_AS(decode({}), doctest::Contains("neither JPEG nor PNG (0 bytes)"), DataError);
  CHECK_THROWS_AS(decode({'G', 'I', 'F', '8', '9', 'a', 0, 0, 0}), DataError);
  CHECK_THROWS_AS(decode(encode_jpeg(gradient(8, 8, 3), 8, 8, 3), 2), ArgumentError);
  CHECK_THROWS_AS(decode_image("/no/such/image.png"), IoError);
}

TEST_CASE("image: cut at every length, damaged") {
  const Bytes rgb = gradient(16, 16, 3);
  const Bytes files[] = {encode_png(rgb.data(), 16, 16, PNG_FORMAT_RGB), encode_jpeg(rgb, 16, 16, 3),
                         encode_jpeg(rgb, 16, 16, 3, true)};
  for (const Bytes& file : files) {
    cut_everywhere(file, [](const Bytes& bytes) { decode(bytes); });
    CHECK(damage(file, 7, 400, [](const Bytes& bytes) { decode(bytes); }) > 50);
  }
}

TEST_CASE("long: image: many damaged files") {
  const Bytes rgb = gradient(33, 18, 3);
  const Bytes files[] = {encode_png(rgb.data(), 33, 18, PNG_FORMAT_RGB), encode_jpeg(rgb, 33, 18, 3),
                         encode_jpeg(rgb, 33, 18, 3, true)};
  for (const Bytes& file : files) damage(file, 8, 20000, [](const Bytes& bytes) { decode(bytes); });
}

TEST_CASE("resize: copies, averages, keeps constants and ramps") {
  Image image{2, 2, 1, {0, 255, 255, 0}};
  float out[16];
  resize_to_planes(image, 2, 2, out);
  CHECK(out[0] == 0.0f);
  CHECK(out[1] == 1.0f);
  resize_to_planes(image, 1, 1, out);
  CHECK(out[0] == doctest::Approx(0.5));

  Image constant{7, 5, 3, Bytes(105, 51)};
  std::vector<float> planes(3 * 3 * 11);
  resize_to_planes(constant, 3, 11, planes.data());
  for (float v : planes) CHECK(v == doctest::Approx(0.2).epsilon(1e-5));

  // Twice as wide: the triangle filter of Pillow gives 1, 0.75, 0.25, 0 of a step.
  Image step{1, 2, 1, {255, 0}};
  resize_to_planes(step, 1, 4, out);
  CHECK(out[0] == doctest::Approx(1.0));
  CHECK(out[1] == doctest::Approx(0.75));
  CHECK(out[2] == doctest::Approx(0.25));
  CHECK(out[3] == doctest::Approx(0.0));
  // Planes, not pixels: channel 1 of an RGB image is the second plane.
  Image colours{1, 1, 3, {51, 102, 153}};
  resize_to_planes(colours, 2, 2, planes.data());
  CHECK(planes[0] == doctest::Approx(0.2));
  CHECK(planes[4] == doctest::Approx(0.4));
  CHECK(planes[11] == doctest::Approx(0.6));
  CHECK_THROWS_AS(resize_to_planes(image, 0, 1, out), ArgumentError);
}
