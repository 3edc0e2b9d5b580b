// Changes to images on their way into the batch: normalise, random crop, random flip. Images are float32 [C,H,W].
// Random numbers are counted, keyed (seed, epoch, sample index, draw): the same for every number of loader threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <limpid/data/dataset.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/shape.h>

namespace limpid::data {

// The random numbers of one sample in one epoch.
class SampleRandom {
 public:
  SampleRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t index);
  float uniform() { return uniform_from_bits(bits()); }  // [0, 1)
  std::int64_t below(std::int64_t bound);                // [0, bound), bound < 2^32
  std::uint32_t bits();

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
  Philox4 block_{};
};

class Transform {
 public:
  virtual ~Transform() = default;
  // Shape after the transform; ShapeError when it cannot take this one.
  virtual Shape output_shape(const Shape& input) const { return input; }
  // `in` has `shape`, `out` has output_shape(shape); they do not overlap. Called from several threads at once.
  virtual void apply(const float* in, const Shape& shape, float* out, SampleRandom& random) const = 0;
};
using TransformPtr = std::shared_ptr<const Transform>;

// (x - mean[c]) / std[c]. One value stands for all channels. ArgumentError when a std is not positive.
TransformPtr normalize(std::vector<double> mean, std::vector<double> std);

struct RandomCropOptions {
  std::int64_t height = 0;  // 0 = the image's own
  std::int64_t width = 0;
  std::int64_t padding = 0;  // added on every side before the crop
  float fill = 0.0f;         // value of the padding
};
TransformPtr random_crop(const RandomCropOptions& options);
TransformPtr random_horizontal_flip(double probability = 0.5);
// One after the other.
TransformPtr compose(std::vector<TransformPtr> transforms);

// Mean and standard deviation of each channel over (at most) the first `count` examples; float32 [C,H,W] inputs.
struct ChannelStats {
  std::vector<double> mean;
  std::vector<double> std;
};
ChannelStats channel_stats(const Dataset& dataset, std::int64_t count = INT64_MAX);

}  // namespace limpid::data
