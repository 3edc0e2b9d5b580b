#include <limpid/tensor/dtype.h>

#include <algorithm>
#include <cmath>

namespace limpid {

std::string to_string(DType dtype) {
  static const char* const kNames[] = {"f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool"};
  return kNames[static_cast<int>(dtype)];
}

namespace {
int category(DType dtype) { return dtype == DType::boolean ? 0 : is_floating(dtype) ? 2 : 1; }
}  // namespace

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (category(a) != category(b)) return category(a) > category(b) ? a : b;
  if (is_floating(a)) {
    bool halves = size_of(a) == 2 && size_of(b) == 2;  // f16 with bf16: neither holds the other
    if (halves) return DType::float32;
  }
  return size_of(a) > size_of(b) ? a : b;
}

Scalar::Scalar(double v) : kind(Kind::floating), floating(v), integer(0) {
  if (std::isfinite(v) && std::fabs(v) < 9.2e18) integer = static_cast<std::int64_t>(v);
}

bool Scalar::fits(DType dtype) const {
  if (is_floating(dtype) || dtype == DType::boolean) return true;
  if (kind == Kind::floating && !(std::fabs(floating) < 9.2e18)) return false;  // NaN too
  switch (dtype) {
    case DType::uint8: return integer >= 0 && integer <= UINT8_MAX;
    case DType::int32: return integer >= INT32_MIN && integer <= INT32_MAX;
    default: return true;
  }
}

DType promote(DType tensor, const Scalar& scalar) {
  int wanted = static_cast<int>(scalar.kind);
  if (category(tensor) >= wanted) return tensor;
  return scalar.kind == Scalar::Kind::floating ? DType::float32 : DType::int64;
}

}  // namespace limpid
