// Element types, their sizes and PyTorch's promotion rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <limpid/base/error.h>
#include <limpid/tensor/half.h>

namespace limpid {

enum class DType : std::uint8_t { float64, float32, float16, bfloat16, int64, int32, uint8, boolean };

inline constexpr DType float64 = DType::float64;
inline constexpr DType float32 = DType::float32;
inline constexpr DType float16 = DType::float16;
inline constexpr DType bfloat16 = DType::bfloat16;
inline constexpr DType int64 = DType::int64;
inline constexpr DType int32 = DType::int32;
inline constexpr DType uint8 = DType::uint8;
inline constexpr DType boolean = DType::boolean;

inline constexpr std::size_t size_of(DType dtype) {
  constexpr std::size_t kSizes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  return kSizes[static_cast<int>(dtype)];
}
inline constexpr bool is_floating(DType dtype) { return dtype <= DType::bfloat16; }
std::string to_string(DType dtype);  // "f32", "i64", "bool"

// PyTorch's promote_types: bool < integers < floats; u8 with i32 -> i32; f16 with bf16 -> f32; int with float -> the float.
DType promote(DType a, DType b);

// A number given by the user where a tensor could stand. It keeps whether it was written as an integer, a float or a
// bool, because promotion depends on it: an int tensor times 2 stays int, times 2.0 becomes float32.
struct Scalar {
  enum class Kind : std::uint8_t { logical, integer, floating };
  Kind kind;
  double floating;
  std::int64_t integer;
  Scalar(bool v) : kind(Kind::logical), floating(v ? 1 : 0), integer(v ? 1 : 0) {}
  Scalar(int v) : Scalar(static_cast<std::int64_t>(v)) {}
  Scalar(std::int64_t v) : kind(Kind::integer), floating(static_cast<double>(v)), integer(v) {}
  Scalar(std::size_t v) : Scalar(static_cast<std::int64_t>(v)) {}
  Scalar(float v) : Scalar(static_cast<double>(v)) {}
  Scalar(double v);
  // True when `dtype` (an integer or bool) has this very value, bool counting any number; floats may lose their fraction.
  bool fits(DType dtype) const;
  template <class T>
  T as() const {
    if constexpr (std::is_integral_v<T>) {
      return kind == Kind::floating ? static_cast<T>(floating) : static_cast<T>(integer);
    } else {
      return static_cast<T>(floating);
    }
  }
};

// dtype of `tensor op scalar`: the tensor's unless the scalar is of a higher category (then float32, or int64).
DType promote(DType tensor, const Scalar& scalar);

template <class T>
struct DTypeOf;
#define LIMPID_FORALL_DTYPES(X)                                                                              \
  X(double, float64) X(float, float32) X(Half, float16) X(BFloat16, bfloat16) X(std::int64_t, int64)         \
  X(std::int32_t, int32) X(std::uint8_t, uint8) X(bool, boolean)
#define LIMPID_DTYPE_OF(T, name)                    \
  template <>                                       \
  struct DTypeOf<T> {                               \
    static constexpr DType value = DType::name;     \
  };
LIMPID_FORALL_DTYPES(LIMPID_DTYPE_OF)
#undef LIMPID_DTYPE_OF
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// Calls f.template operator()<T>() with the C++ type of `dtype`.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
#define LIMPID_CASE(T, name) \
  case DType::name: return f.template operator()<T>();
    LIMPID_FORALL_DTYPES(LIMPID_CASE)
#undef LIMPID_CASE
  }
  LIMPID_THROW(InternalError, "unknown dtype ", static_cast<int>(dtype));
}

// The same for the four floating types; DTypeError led by `op` for the others.
template <class F>
decltype(auto) visit_floating(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::float64: return f.template operator()<double>();
    case DType::float32: return f.template operator()<float>();
    case DType::float16: return f.template operator()<Half>();
    case DType::bfloat16: return f.template operator()<BFloat16>();
    default: LIMPID_THROW(DTypeError, "[", op, "] expects a floating dtype, got ", dtype);
  }
}

}  // namespace limpid
