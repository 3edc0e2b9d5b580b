#include <limpid/data/transforms.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <limpid/base/error.h>

namespace limpid::data {
namespace {

constexpr std::uint64_t kAugmentStream = 0x6175676d656e74;

void check_image(const char* op, const Shape& shape) {
  LIMPID_CHECK(shape.size() == 3, ShapeError, "[", op, "] expects images [C,H,W], got ", shape);
}

class Normalize final : public Transform {
 public:
  Normalize(std::vector<double> mean, std::vector<double> std) : mean_(std::move(mean)), std_(std::move(std)) {
    LIMPID_CHECK(!mean_.empty() && mean_.size() == std_.size(), ArgumentError, "[normalize] got ", mean_.size(),
                 " means and ", std_.size(), " standard deviations");
    for (double s : std_)
      LIMPID_CHECK(s > 0 && std::isfinite(s), ArgumentError, "[normalize] a standard deviation is ", s,
                   ", expected > 0");
  }
  Shape output_shape(const Shape& input) const override {
    check_image("normalize", input);
    LIMPID_CHECK(mean_.size() == 1 || static_cast<std::int64_t>(mean_.size()) == input[0], ShapeError,
                 "[normalize] has ", mean_.size(), " channels, the images are ", input);
    return input;
  }
  void apply(const float* in, const Shape& shape, float* out, SampleRandom&) const override {
    const std::int64_t plane = shape[1] * shape[2];
    for (std::int64_t c = 0; c < shape[0]; c++) {
      const auto k = mean_.size() == 1 ? 0 : static_cast<std::size_t>(c);
      const float mean = static_cast<float>(mean_[k]), scale = static_cast<float>(1.0 / std_[k]);
      for (std::int64_t i = 0; i < plane; i++) out[c * plane + i] = (in[c * plane + i] - mean) * scale;
    }
  }

 private:
  std::vector<double> mean_, std_;
};

class RandomCrop final : public Transform {
 public:
  explicit RandomCrop(const RandomCropOptions& options) : options_(options) {
    LIMPID_CHECK(options.height >= 0 && options.width >= 0 && options.padding >= 0 && options.padding <= 65535,
                 ArgumentError, "[random_crop] height ", options.height, ", width ", options.width, " and padding ",
                 options.padding, " must not be negative");
  }
  Shape output_shape(const Shape& input) const override {
    check_image("random_crop", input);
    Shape out{input[0], options_.height ? options_.height : input[1], options_.width ? options_.width : input[2]};
    LIMPID_CHECK(out[1] <= input[1] + 2 * options_.padding && out[2] <= input[2] + 2 * options_.padding, ShapeError,
                 "[random_crop] a crop of ", out[1], "x", out[2], " does not fit images ", input, " with padding ",
                 options_.padding);
    return out;
  }
  void apply(const float* in, const Shape& shape, float* out, SampleRandom& random) const override {
    const Shape crop = output_shape(shape);
    const std::int64_t height = shape[1], width = shape[2], pad = options_.padding;
    const std::int64_t top = random.below(height + 2 * pad - crop[1] + 1) - pad;
    const std::int64_t left = random.below(width + 2 * pad - crop[2] + 1) - pad;
    const std::int64_t from = std::clamp<std::int64_t>(-left, 0, crop[2]);
    const std::int64_t to = std::max(from, std::min(crop[2], width - left));
    for (std::int64_t c = 0; c < shape[0]; c++) {
      for (std::int64_t y = 0; y < crop[1]; y++, out += crop[2]) {
        const std::int64_t row = top + y;
        if (row < 0 || row >= height) {
          std::fill(out, out + crop[2], options_.fill);
          continue;
        }
        std::fill(out, out + from, options_.fill);
        if (to > from) std::copy_n(in + (c * height + row) * width + left + from, to - from, out + from);
        std::fill(out + to, out + crop[2], options_.fill);
      }
    }
  }

 private:
  RandomCropOptions options_;
};

class RandomFlip final : public Transform {
 public:
  explicit RandomFlip(double probability) : probability_(probability) {
    LIMPID_CHECK(probability >= 0 && probability <= 1, ArgumentError, "[random_horizontal_flip] the probability is ",
                 probability, ", expected 0..1");
  }
  Shape output_shape(const Shape& input) const override {
    check_image("random_horizontal_flip", input);
    return input;
  }
  void apply(const float* in, const Shape& shape, float* out, SampleRandom& random) const override {
    const std::int64_t width = shape[2], rows = shape[0] * shape[1];
    const bool flip = static_cast<double>(random.uniform()) < probability_;
    if (!flip) {
      std::copy_n(in, rows * width, out);
      return;
    }
    for (std::int64_t r = 0; r < rows; r++) std::reverse_copy(in + r * width, in + (r + 1) * width, out + r * width);
  }

 private:
  double probability_;
};

class Composed final : public Transform {
 public:
  explicit Composed(std::vector<TransformPtr> transforms) : transforms_(std::move(transforms)) {
    for (const TransformPtr& t : transforms_)
      LIMPID_CHECK(t != nullptr, ArgumentError, "[compose] a transform is empty");
  }
  Shape output_shape(const Shape& input) const override {
    Shape shape = input;
    for (const TransformPtr& t : transforms_) shape = t->output_shape(shape);
    return shape;
  }
  void apply(const float* in, const Shape& shape, float* out, SampleRandom& random) const override {
    if (transforms_.empty()) {
      std::copy_n(in, shape.numel(), out);
      return;
    }
    std::vector<float> held, next;
    Shape current = shape;
    for (std::size_t i = 0; i < transforms_.size(); i++) {
      const Shape after = transforms_[i]->output_shape(current);
      const bool last = i + 1 == transforms_.size();
      if (!last) next.resize(static_cast<std::size_t>(after.numel()));
      transforms_[i]->apply(in, current, last ? out : next.data(), random);
      held.swap(next);
      in = held.data();
      current = after;
    }
  }

 private:
  std::vector<TransformPtr> transforms_;
};

}  // namespace

SampleRandom::SampleRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t index)
    : key_(mix_key(mix_key(mix_key(seed, kAugmentStream), static_cast<std::uint64_t>(epoch)),
                   static_cast<std::uint64_t>(index))) {}

std::uint32_t SampleRandom::bits() {
  if (counter_ % 4 == 0) block_ = philox(key_, counter_ / 4);
  return block_.v[counter_++ % 4];
}

std::int64_t SampleRandom::below(std::int64_t bound) {
  LIMPID_CHECK(bound > 0 && bound <= INT64_C(0xffffffff), ArgumentError, "[sample_random] the bound is ", bound);
  const auto range = static_cast<std::uint32_t>(bound);
  const std::uint32_t threshold = (0u - range) % range;  // Lemire 2019, unbiased
  for (;;) {
    const std::uint64_t product = std::uint64_t{bits()} * range;
    if (static_cast<std::uint32_t>(product) >= threshold) return static_cast<std::int64_t>(product >> 32);
  }
}

TransformPtr normalize(std::vector<double> mean, std::vector<double> std) {
  return std::make_shared<Normalize>(std::move(mean), std::move(std));
}
TransformPtr random_crop(const RandomCropOptions& options) { return std::make_shared<RandomCrop>(options); }
TransformPtr random_horizontal_flip(double probability) { return std::make_shared<RandomFlip>(probability); }
TransformPtr compose(std::vector<TransformPtr> transforms) { return std::make_shared<Composed>(std::move(transforms)); }

ChannelStats channel_stats(const Dataset& dataset, std::int64_t count) {
  const ExampleSpec spec = dataset.spec();
  check_image("channel_stats", spec.input_shape);
  LIMPID_CHECK(spec.input_dtype == DType::float32, DTypeError, "[channel_stats] expects f32 images, got ",
               spec.input_dtype);
  count = std::min(count, dataset.size());
  LIMPID_CHECK(count > 0 && spec.input_shape.numel() > 0, DataError, "[channel_stats] there are no pixels");
  const std::int64_t channels = spec.input_shape[0], plane = spec.input_shape[1] * spec.input_shape[2];
  std::vector<float> image(static_cast<std::size_t>(spec.input_shape.numel()));
  std::vector<char> target(spec.target_bytes());
  std::vector<double> sum(static_cast<std::size_t>(channels)), squares(static_cast<std::size_t>(channels));
  for (std::int64_t i = 0; i < count; i++) {
    dataset.write(i, spec, image.data(), target.data());
    for (std::int64_t c = 0; c < channels; c++) {
      const float* p = image.data() + c * plane;
      double s = 0, q = 0;
      for (std::int64_t k = 0; k < plane; k++) s += p[k], q += static_cast<double>(p[k]) * p[k];
      sum[static_cast<std::size_t>(c)] += s, squares[static_cast<std::size_t>(c)] += q;
    }
  }
  ChannelStats stats;
  const double n = static_cast<double>(count) * static_cast<double>(plane);
  for (std::size_t c = 0; c < sum.size(); c++) {
    const double mean = sum[c] / n;
    stats.mean.push_back(mean);
    stats.std.push_back(std::sqrt(std::max(0.0, squares[c] / n - mean * mean)));
  }
  return stats;
}

}  // namespace limpid::data
