// Reading golden files in tests, and comparing with them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <limpid/tensor/safetensors.h>

namespace golden {

using Tensors = std::map<std::string, limpid::Tensor>;

inline Tensors load(const std::string& name) {
  return limpid::load_safetensors(std::string(LIMPID_TEST_DATA) + "/nn/" + name + ".safetensors");
}

// Entries "PREFIX.rest" as "rest".
inline Tensors below(const Tensors& all, const std::string& prefix) {
  Tensors found;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(prefix + ".")) found.emplace(name.substr(prefix.size() + 1), tensor);
  return found;
}

// Largest |a - b| / max(1, |b|); infinity when the shapes differ or a value is NaN.
inline double difference(const limpid::Tensor& a, const limpid::Tensor& b) {
  if (!a.defined() || !b.defined() || a.shape() != b.shape()) return INFINITY;
  std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); i++) {
    double d = std::abs(x[i] - y[i]) / std::max(1.0, std::abs(y[i]));
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
  }
  return worst;
}

}  // namespace golden
