// Helpers of the tensor tests: inputs in every layout, and element access that uses no kernel.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <limpid/tensor/raw.h>

namespace tensor_test {

using namespace limpid;

inline const std::vector<DType> kFloats{float64, float32, float16, bfloat16};
inline const std::vector<DType> kIntegers{int64, int32, uint8};
inline const std::vector<DType> kNumbers{float64, float32, float16, bfloat16, int64, int32, uint8};
inline const std::vector<DType> kAll{float64, float32, float16, bfloat16, int64, int32, uint8, boolean};

// Relative tolerance of one rounding in the dtype, with some room for the mathematics of float.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::float64: return 1e-12;
    case DType::float32: return 4e-6;
    case DType::float16: return 1.2e-3;
    case DType::bfloat16: return 9e-3;
    default: return 0;
  }
}

// Memory offsets of the elements in logical order.
inline std::vector<std::int64_t> offsets(const Tensor& t) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < t.numel(); i++) {
    std::int64_t rest = i, offset = 0;
    for (int d = t.dim() - 1; d >= 0; d--) {
      offset += rest % t.shape()[d] * t.strides()[d];
      rest /= t.shape()[d];
    }
    out.push_back(offset);
  }
  return out;
}

// The elements in logical order, read through the strides.
inline std::vector<double> values(const Tensor& t) {
  std::vector<double> out;
  visit_dtype(t.dtype(), [&]<class T>() {
    const T* data = t.data<T>();
    for (std::int64_t at : offsets(t)) out.push_back(static_cast<double>(data[at]));
  });
  return out;
}

inline void assign(Tensor& t, const std::vector<double>& numbers) {
  visit_dtype(t.dtype(), [&]<class T>() {
    T* data = t.mutable_data<T>();
    std::size_t i = 0;
    for (std::int64_t at : offsets(t)) {
      double v = numbers[i++];
      if constexpr (std::is_same_v<T, bool>) {
        data[at] = v != 0;
      } else if constexpr (std::is_integral_v<T>) {
        data[at] = static_cast<T>(static_cast<std::int64_t>(v));
      } else {
        data[at] = static_cast<T>(v);
      }
    }
  });
}

inline Tensor from(const std::vector<double>& numbers, const Shape& shape, DType dtype = float64) {
  Tensor t = raw::empty(shape, dtype, kCpu);
  assign(t, numbers);
  return t;
}

inline std::vector<double> random_numbers(std::int64_t n, double low, double high, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> distribution(low, high);
  std::vector<double> out;
  for (std::int64_t i = 0; i < n; i++) out.push_back(distribution(engine));
  return out;
}

// The numbers in a tensor of the given layout: "plain", "reversed" (dims stored in reverse order), "narrowed" (a window
// of a larger tensor), "last" (channels_last, rank 4).
inline Tensor in_layout(const std::string& layout, const std::vector<double>& numbers, const Shape& shape, DType dtype) {
  Tensor t;
  if (layout == "reversed") {
    std::vector<std::int64_t> order;
    Shape stored;
    for (int d = shape.size() - 1; d >= 0; d--) {
      stored.push_back(shape[d]);
      order.push_back(d);
    }
    t = raw::permute(raw::empty(stored, dtype, kCpu), order);
  } else if (layout == "narrowed" && shape.size() > 0) {
    Shape larger = shape;
    for (std::int64_t& d : larger) d += 3;
    t = raw::empty(larger, dtype, kCpu);
    for (int d = 0; d < shape.size(); d++) t = raw::narrow(t, d, 2, shape[d]);
  } else if (layout == "last" && shape.size() == 4) {
    t = raw::empty(shape, dtype, kCpu, MemoryFormat::channels_last);
  } else {
    t = raw::empty(shape, dtype, kCpu);
  }
  assign(t, numbers);
  return t;
}
inline const std::vector<std::string> kLayouts{"plain", "reversed", "narrowed", "last"};

inline bool close(double got, double expected, double relative, double absolute) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return got == expected;
  return std::fabs(got - expected) <= absolute + relative * std::fabs(expected);
}

// Compares all elements; reports the first difference.
inline void check_close(const std::vector<double>& got, const std::vector<double>& expected, double relative,
                        double absolute, const std::string& what) {
  REQUIRE_MESSAGE(got.size() == expected.size(), what);
  for (std::size_t i = 0; i < got.size(); i++) {
    if (close(got[i], expected[i], relative, absolute)) continue;
    CHECK_MESSAGE(false, what, ": element ", i, " is ", got[i], ", expected ", expected[i]);
    return;
  }
}

// The message of the error that f throws.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.message();
  }
  return "no error";
}

}  // namespace tensor_test
