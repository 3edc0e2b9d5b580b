#include <limpid/data/transforms.h>

#include <cmath>
#include <numeric>
#include <set>

#include <limpid/base/error.h>
#include <limpid/data/synthetic.h>
#include <limpid/tensor/creation.h>

#include <doctest/doctest.h>

using namespace limpid;
using namespace limpid::data;

namespace {

std::vector<float> run(const Transform& transform, const std::vector<float>& in, const Shape& shape,
                       std::int64_t index = 0, std::int64_t epoch = 0) {
  SampleRandom random(1, epoch, index);
  std::vector<float> out(static_cast<std::size_t>(transform.output_shape(shape).numel()), -99.0f);
  transform.apply(in.data(), shape, out.data(), random);
  return out;
}

std::vector<float> ramp(std::int64_t count) {
  std::vector<float> v(static_cast<std::size_t>(count));
  std::iota(v.begin(), v.end(), 1.0f);
  return v;
}

}  // namespace

TEST_CASE("normalize: per channel and one for all") {
  auto two = normalize({1, 2}, {2, 4});
  CHECK(run(*two, {1, 3, 2, 10}, {2, 1, 2}) == std::vector<float>{0, 1, 0, 2});
  CHECK(run(*normalize({1}, {2}), {1, 3, 5, 7}, {2, 1, 2}) == std::vector<float>{0, 1, 2, 3});
  CHECK_THROWS_AS(two->output_shape({3, 2, 2}), ShapeError);
  CHECK_THROWS_AS(two->output_shape({2, 2}), ShapeError);
  CHECK_THROWS_AS(normalize({1}, {0}), ArgumentError);
  CHECK_THROWS_AS(normalize({1, 2}, {1}), ArgumentError);
  CHECK_THROWS_AS(normalize({}, {}), ArgumentError);
}

TEST_CASE("random crop: every window of the padded image, nothing else") {
  const Shape shape{2, 3, 4};
  const std::vector<float> in = ramp(24);
  auto crop = random_crop({.padding = 2, .fill = -1});
  CHECK(crop->output_shape(shape) == shape);
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (std::int64_t index = 0; index < 600; index++) {
    const std::vector<float> out = run(*crop, in, shape, index);
    bool matched = false;
    for (std::int64_t top = -2; top <= 2; top++) {
      for (std::int64_t left = -2; left <= 2; left++) {
        std::vector<float> expected;
        for (std::int64_t c = 0; c < 2; c++)
          for (std::int64_t y = top; y < top + 3; y++)
            for (std::int64_t x = left; x < left + 4; x++)
              expected.push_back(
                  y < 0 || y >= 3 || x < 0 || x >= 4 ? -1.0f : in[static_cast<std::size_t>((c * 3 + y) * 4 + x)]);
        if (expected == out) matched = true, seen.insert({top, left});
      }
    }
    CHECK(matched);
  }
  CHECK(seen.size() == 25);

  auto smaller = random_crop({.height = 2, .width = 1});
  CHECK(smaller->output_shape(shape) == Shape{2, 2, 1});
  CHECK(run(*smaller, in, shape).size() == 4);
  auto larger = random_crop({.height = 13, .width = 14, .padding = 5});  // wider than the image on both sides
  const std::vector<float> whole = run(*larger, in, shape);
  float sum = 0;
  for (float v : whole) sum += v;
  CHECK(sum == 300.0f);
  CHECK_THROWS_AS(random_crop({.height = 14, .padding = 5})->output_shape(shape), ShapeError);
  CHECK_THROWS_AS(random_crop({.padding = -1}), ArgumentError);
  CHECK_THROWS_AS(crop->output_shape({4}), ShapeError);
}

TEST_CASE("random flip: mirrored or not, in the asked share") {
  const Shape shape{1, 2, 3};
  const std::vector<float> in = ramp(6), mirrored{3, 2, 1, 6, 5, 4};
  CHECK(run(*random_horizontal_flip(1.0), in, shape) == mirrored);
  CHECK(run(*random_horizontal_flip(0.0), in, shape) == in);
  int flips = 0;
  for (std::int64_t index = 0; index < 1000; index++) {
    const auto out = run(*random_horizontal_flip(), in, shape, index);
    CHECK((out == in || out == mirrored));
    flips += out == mirrored ? 1 : 0;
  }
  CHECK((flips > 430 && flips < 570));
  CHECK_THROWS_AS(random_horizontal_flip(1.5), ArgumentError);
}

TEST_CASE("compose: in order, shapes passed on; empty copies") {
  auto both = compose({random_crop({.height = 1, .width = 2}), normalize({1}, {2}), random_horizontal_flip(1.0)});
  CHECK(both->output_shape({1, 1, 2}) == Shape{1, 1, 2});
  CHECK(run(*both, {1, 3}, {1, 1, 2}) == std::vector<float>{1, 0});
  CHECK(run(*compose({}), {1, 3}, {1, 1, 2}) == std::vector<float>{1, 3});
  CHECK(run(*compose({compose({normalize({1}, {2})})}), {1, 3}, {1, 1, 2}) == std::vector<float>{0, 1});
  CHECK_THROWS_AS(compose({nullptr}), ArgumentError);
}

TEST_CASE("sample random: keyed by seed, epoch, sample and draw") {
  SampleRandom a(1, 2, 3), b(1, 2, 3);
  std::vector<std::uint32_t> first;
  for (int i = 0; i < 9; i++) first.push_back(a.bits());
  for (int i = 0; i < 9; i++) CHECK(b.bits() == first[static_cast<std::size_t>(i)]);
  CHECK(std::set<std::uint32_t>(first.begin(), first.end()).size() == 9);
  CHECK(SampleRandom(2, 2, 3).bits() != first[0]);
  CHECK(SampleRandom(1, 3, 3).bits() != first[0]);
  CHECK(SampleRandom(1, 2, 4).bits() != first[0]);
  SampleRandom c(1, 1, 1);
  int counts[5] = {};
  for (int i = 0; i < 5000; i++) counts[c.below(5)]++;
  for (int count : counts) CHECK((count > 850 && count < 1150));
  CHECK(c.below(1) == 0);
  CHECK_THROWS_AS(c.below(0), ArgumentError);
}

TEST_CASE("channel stats: two passes agree with one") {
  SyntheticDataset dataset({.size = 20, .channels = 2, .height = 5, .width = 4});
  ChannelStats stats = channel_stats(dataset);
  REQUIRE(stats.mean.size() == 2);
  double mean = 0, squares = 0;
  for (std::int64_t i = 0; i < 20; i++)
    for (std::size_t k = 20; k < 40; k++) mean += dataset.get(i).input.to_vector<double>()[k] / 400;
  for (std::int64_t i = 0; i < 20; i++)
    for (std::size_t k = 20; k < 40; k++)
      squares += std::pow(dataset.get(i).input.to_vector<double>()[k] - mean, 2) / 400;
  CHECK(stats.mean[1] == doctest::Approx(mean));
  CHECK(stats.std[1] == doctest::Approx(std::sqrt(squares)));
  CHECK_THROWS_AS(channel_stats(dataset, 0), DataError);
}
