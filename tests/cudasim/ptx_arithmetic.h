// PTX arithmetic on raw bits: what does not depend on threads or memory. `supported` turns false for a combination of
// instruction, type and modifiers that is not known; the caller reports it.
#pragma once

#include <cstdint>

#include <cudasim/ptx_program.h>

namespace limpid::cudasim::ptx {

struct Values {
  std::uint64_t a = 0, b = 0, c = 0;
};
// add, sub, mul, mad, fma, div, rem, min, max, neg, abs of i.type.
std::uint64_t arithmetic(const Instruction& i, Op op, Values v, bool& supported);
// ex2, lg2, rcp, sqrt, rsqrt, sin, cos, tanh, copysign.
std::uint64_t function_value(const Instruction& i, Values v, bool& supported);
bool compare(const Instruction& i, std::uint64_t a, std::uint64_t b, bool& supported);
// cvt; b is the lower half for packed results.
std::uint64_t convert(const Instruction& i, std::uint64_t a, std::uint64_t b, bool& supported);
// and, or, xor, not, shl, shr, shf, bfi, bfe, brev, prmt, lop3, popc, clz; d: the fourth operand of bfi and lop3.
std::uint64_t bit_operation(const Instruction& i, Values v, std::uint64_t d, bool& supported);

}  // namespace limpid::cudasim::ptx
