// Spread: repeated measurements of one duration as median and quartiles; means are moved by one interruption, these are not.
// Header only, no clocks: what was measured is given.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <limpid/base/error.h>

namespace limpid::train {

// A measurement whose quartiles are further apart than this share of its median is flagged: compare it with care.
inline constexpr double kNoisy = 0.05;

// Most repetitions of a sweep: each is kept until its quartiles are known.
inline constexpr std::int64_t kMostTimings = 1'000'000;

struct Spread {
  double median = 0, low = 0, high = 0;  // quartiles, between the values by straight lines
  std::int64_t count = 0;
  double iqr() const { return median > 0 ? (high - low) / median : 0; }  // share of the median
  bool noisy() const { return iqr() > kNoisy; }
};

inline Spread spread_of(std::vector<double> values) {
  LIMPID_CHECK(!values.empty(), ArgumentError, "[spread] there is nothing to describe");
  std::sort(values.begin(), values.end());
  auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1), whole = std::floor(place);
    const std::size_t i = static_cast<std::size_t>(whole);
    return i + 1 < values.size() ? values[i] + (place - whole) * (values[i + 1] - values[i]) : values[i];
  };
  return {at(0.5), at(0.25), at(0.75), static_cast<std::int64_t>(values.size())};
}

}  // namespace limpid::train
