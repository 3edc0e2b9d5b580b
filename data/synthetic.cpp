#include <limpid/data/synthetic.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include <limpid/base/error.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/random.h>

namespace limpid::data {
namespace {

constexpr std::int64_t kGrid = 5;      // a pattern is a kGrid x kGrid map of random numbers, interpolated
constexpr std::int64_t kMaxShift = 2;  // pixels
constexpr std::int64_t kMaxPatternPixels = std::int64_t{1} << 28;  // of all classes: 1 GiB

std::uint64_t stream(std::uint64_t seed, std::uint64_t kind, std::uint64_t number) {
  return mix_key(mix_key(seed, kind), number);
}
enum : std::uint64_t { kPattern = 1, kTrainExample = 2, kTestExample = 3 };

// Bilinear value at (v, u) of a grid, coordinates in [0, kGrid-1].
float interpolate(const float* grid, float v, float u) {
  const auto y = std::min(static_cast<std::int64_t>(v), kGrid - 2),
             x = std::min(static_cast<std::int64_t>(u), kGrid - 2);
  const float dy = v - static_cast<float>(y), dx = u - static_cast<float>(x);
  const float* p = grid + y * kGrid + x;
  return (1 - dy) * ((1 - dx) * p[0] + dx * p[1]) + dy * ((1 - dx) * p[kGrid] + dx * p[kGrid + 1]);
}

}  // namespace

SyntheticDataset::SyntheticDataset(const SyntheticOptions& options) : options_(options) {
  LIMPID_CHECK(options.size > 0, ArgumentError, "[synthetic] size is ", options.size, ", expected at least 1");
  LIMPID_CHECK(options.channels > 0 && options.height > 0 && options.width > 0 && options.channels <= 1024 &&
                   options.height <= 16384 && options.width <= 16384,
               ArgumentError, "[synthetic] the image size is ", options.channels, "x", options.height, "x",
               options.width, ", expected 1x1x1 to 1024x16384x16384");
  LIMPID_CHECK(options.classes > 0 && options.classes <= 10000, ArgumentError, "[synthetic] the class count is ",
               options.classes, ", expected 1 to 10000");
  const std::int64_t pixels = options.classes * options.channels * options.height * options.width;
  LIMPID_CHECK(pixels <= kMaxPatternPixels, ArgumentError, "[synthetic] the patterns of ", options.classes,
               " classes of ", options.channels, "x", options.height, "x", options.width, " have ", pixels,
               " numbers, more than the accepted ", kMaxPatternPixels);
  LIMPID_CHECK(options.noise >= 0 && std::isfinite(options.noise), ArgumentError, "[synthetic] the noise is ",
               options.noise);
  const std::int64_t height = options.height, width = options.width;
  patterns_.resize(static_cast<std::size_t>(options.classes * options.channels * height * width));
  float* out = patterns_.data();
  for (std::int64_t plane = 0; plane < options.classes * options.channels; plane++) {
    Generator random(stream(options.seed, kPattern, static_cast<std::uint64_t>(plane)));
    float grid[kGrid * kGrid];
    for (float& g : grid) g = static_cast<float>(random.uniform());
    for (std::int64_t y = 0; y < height; y++)
      for (std::int64_t x = 0; x < width; x++)
        *out++ =
            interpolate(grid, height > 1 ? static_cast<float>(y * (kGrid - 1)) / static_cast<float>(height - 1) : 0.0f,
                        width > 1 ? static_cast<float>(x * (kGrid - 1)) / static_cast<float>(width - 1) : 0.0f);
  }
}

ExampleSpec SyntheticDataset::spec() const {
  return {{options_.channels, options_.height, options_.width}, DType::float32, {}, DType::int64};
}

void SyntheticDataset::write(std::int64_t index, const ExampleSpec&, void* input, void* target) const {
  LIMPID_CHECK(index >= 0 && index < size(), IndexError, "[synthetic] example ", index, " of a data set of ", size());
  const std::uint64_t key =
      stream(options_.seed, options_.train ? kTrainExample : kTestExample, static_cast<std::uint64_t>(index));
  Philox4 choice = philox(key, 0);
  const std::int64_t label =
      static_cast<std::int64_t>((std::uint64_t{choice.v[0]} * static_cast<std::uint64_t>(options_.classes)) >> 32);
  const std::int64_t height = options_.height, width = options_.width;
  const auto shift = [](std::uint32_t bits) {
    return static_cast<std::int64_t>(bits % (2 * kMaxShift + 1)) - kMaxShift;
  };
  const std::int64_t down = shift(choice.v[1]), right = shift(choice.v[2]);
  const float contrast = 0.6f + 0.4f * uniform_from_bits(choice.v[3]);
  const float noise = static_cast<float>(options_.noise);
  const float* pattern = patterns_.data() + label * options_.channels * height * width;
  float* out = static_cast<float*>(input);
  float normal[4];
  std::uint64_t drawn = 0;
  for (std::int64_t c = 0; c < options_.channels; c++) {
    for (std::int64_t y = 0; y < height; y++) {
      const std::int64_t from_y = std::clamp<std::int64_t>(y - down, 0, height - 1);
      for (std::int64_t x = 0; x < width; x++, drawn++) {
        if (drawn % 4 == 0) {  // Box-Muller, two pairs a Philox block
          Philox4 p = philox(key, 1 + drawn / 4);
          for (int k = 0; k < 4; k += 2) {
            const float radius = std::sqrt(-2.0f * std::log(1.0f - uniform_from_bits(p.v[k])));
            const float angle = 2.0f * std::numbers::pi_v<float> * uniform_from_bits(p.v[k + 1]);
            normal[k] = radius * std::cos(angle), normal[k + 1] = radius * std::sin(angle);
          }
        }
        const std::int64_t from_x = std::clamp<std::int64_t>(x - right, 0, width - 1);
        const float value =
            0.5f + contrast * (pattern[(c * height + from_y) * width + from_x] - 0.5f) + noise * normal[drawn % 4];
        *out++ = std::clamp(value, 0.0f, 1.0f);
      }
    }
  }
  std::memcpy(target, &label, sizeof label);
}

Example SyntheticDataset::get(std::int64_t index) const {
  Example example{empty(spec().input_shape, {.role = memory::Role::io}), 0, {}};
  write(index, spec(), example.input.raw_mutable_data(), &example.label);
  return example;
}

std::vector<std::string> SyntheticDataset::class_names() const {
  std::vector<std::string> names;
  for (std::int64_t c = 0; c < options_.classes; c++) names.push_back(concat("class ", c));
  return names;
}

}  // namespace limpid::data
