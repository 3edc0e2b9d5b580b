// From a dtype at run time to a C++ type, and from storage types to the types that kernels compute in.
// A launcher that does not take a dtype returns cudaErrorInvalidValue: the dtypes have been checked before it is
// called.
#pragma once

#include <limpid/cuda/cuda_lang.cuh>
#include <limpid/tensor/dtype.h>
#include <limpid/tensor/strided.h>

namespace limpid::cu {

using kernel::compute_t;
using kernel::kIsNarrow;

// f.template operator()<T>() -> cudaError_t, for the four floating types.
template <class F>
cudaError_t dispatch_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float64: return f.template operator()<double>();
    case DType::float32: return f.template operator()<float>();
    case DType::float16: return f.template operator()<Half>();
    case DType::bfloat16: return f.template operator()<BFloat16>();
    default: return cudaErrorInvalidValue;
  }
}

// The same for every type but bool.
template <class F>
cudaError_t dispatch_numbers(DType dtype, F&& f) {
  switch (dtype) {
    case DType::int64: return f.template operator()<std::int64_t>();
    case DType::int32: return f.template operator()<std::int32_t>();
    case DType::uint8: return f.template operator()<std::uint8_t>();
    default: return dispatch_floating(dtype, f);
  }
}

template <class F>
cudaError_t dispatch_all(DType dtype, F&& f) {
  if (dtype == DType::boolean) return f.template operator()<bool>();
  return dispatch_numbers(dtype, f);
}

// An unsigned type of the dtype's size, for kernels that only move elements.
template <class F>
cudaError_t dispatch_size(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f.template operator()<std::uint8_t>();
    case 2: return f.template operator()<std::uint16_t>();
    case 4: return f.template operator()<std::uint32_t>();
    default: return f.template operator()<std::uint64_t>();
  }
}

// An element in the type that kernels compute in, and back. 16-bit floats by the device's own conversions.
template <class T>
LIMPID_HD LIMPID_INLINE compute_t<T> load_number(T value) {
  if constexpr (kIsNarrow<T>) {
    return to_float(value);
  } else {
    return static_cast<compute_t<T>>(value);
  }
}
template <class T, class C>
LIMPID_HD LIMPID_INLINE T store_number(C number) {
  if constexpr (kIsNarrow<T>) {
    return from_float<T>(static_cast<float>(number));
  } else {
    return kernel::convert_number<T>(number);
  }
}

}  // namespace limpid::cu
