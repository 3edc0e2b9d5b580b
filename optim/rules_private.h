// What the update rules share: checks of their options, and flags among the options. Internal to optim/.
#pragma once

#include <cmath>

#include <limpid/optim/optimizer.h>

namespace limpid::optim {

inline void check_not_negative(const char* rule, const char* option, double value) {
  LIMPID_CHECK(value >= 0 && std::isfinite(value), ArgumentError, "[", rule, "] ", option,
               " must be finite and not negative, got ", value);
}

inline void check_fraction(const char* rule, const char* option, double value) {
  LIMPID_CHECK(value >= 0 && value < 1, ArgumentError, "[", rule, "] ", option, " must be in [0, 1), got ", value);
}

inline Device device_of(std::span<OptimChunk> chunks) { return chunks[0].param.device(); }

// A flag seen as 0 or 1 by an option visitor.
void visit_flag(const char* name, bool& flag, const auto& visit) {
  double value = flag ? 1 : 0;
  visit(name, value);
  flag = value != 0;
}

}  // namespace limpid::optim
