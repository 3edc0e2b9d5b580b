// Internal to tensor/cpu: the convolution's description as the kernels of conv.h take it.
#pragma once

#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/kernels.h>

namespace limpid::cpu {

inline ConvDesc direct(const Conv2dDesc& d) {
  return {.n = d.n,
          .c = d.c,
          .h = d.h,
          .w = d.w,
          .k = d.k,
          .r = d.r,
          .s = d.s,
          .stride_h = d.stride_h,
          .stride_w = d.stride_w,
          .pad_h = d.pad_h,
          .pad_w = d.pad_w,
          .dil_h = d.dil_h,
          .dil_w = d.dil_w,
          .groups = d.groups};
}

}  // namespace limpid::cpu
