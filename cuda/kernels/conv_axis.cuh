// One image axis (height or width) of a convolution as its kernels see it: which source position a result position and
// a tap (a place of the filter) read. Forward, the results are outputs and the source is x; backward to the input, the
// results are inputs of one residue class modulo the stride, and the source is dy: only the taps that meet the class
// count, so a stride costs no multiplications by zero.
//
//   source position = i * scale + origin + t * tap_step       i: result of the class, t: counts the taps that meet it
//   tap             = first_tap + t * tap_stride
//   result position = first_result + i * result_step
#pragma once

#include <limpid/base/macros.h>

namespace limpid::cu {

struct ConvAxis {
  int results, scale, origin, tap_step, taps, first_tap, tap_stride, source_size, first_result, result_step;
};

// The geometry of one axis of a Conv2dDesc.
struct AxisSizes {
  int input, output, kernel, stride, pad, dilation;
};

LIMPID_HD inline ConvAxis forward_axis(const AxisSizes& a) {
  return {a.output, a.stride, -a.pad, a.dilation, a.kernel, 0, 1, a.input, 0, 1};
}

// Input position i of class `residue`, i = residue + stride * j, meets tap r at the output (i + pad - r * dilation) /
// stride where that has no remainder.
LIMPID_HD inline ConvAxis backward_axis(const AxisSizes& a, int residue) {
  int tap_stride = 1;  // the taps that meet one class are this far apart
  while (tap_stride * a.dilation % a.stride != 0) tap_stride++;
  int first = 0;
  while (first < tap_stride && (residue + a.pad - first * a.dilation) % a.stride != 0) first++;
  const int taps = first < tap_stride && first < a.kernel ? (a.kernel - first + tap_stride - 1) / tap_stride : 0;
  const int results = residue < a.input ? (a.input - residue + a.stride - 1) / a.stride : 0;
  return {results,
          1,
          (residue + a.pad - first * a.dilation) / a.stride,
          -(tap_stride * a.dilation / a.stride),
          taps,
          first,
          tap_stride,
          a.output,
          residue,
          a.stride};
}

}  // namespace limpid::cu
