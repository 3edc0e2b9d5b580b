// Strided operands of a launcher: device memory and strides in elements. The shape is given once for all of them.
#pragma once

#include <limpid/tensor/dtype.h>
#include <limpid/tensor/shape.h>

namespace limpid::cu {

struct Input {
  const void* data = nullptr;  // of the first element; null where an op does not read the operand
  Strides strides;             // 0 where the operand is broadcast
};
struct Output {
  void* data = nullptr;
  Strides strides;
  operator Input() const { return {data, strides}; }
};

}  // namespace limpid::cu
