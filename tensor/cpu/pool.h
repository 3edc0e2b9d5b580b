// Pooling on NHWC images on the CPU, float and double: max (with argmax), average, adaptive average. Backward passes
// walk the input's rows, so they need no atomics and give the same bits for any thread count. No workspace is needed.
#pragma once

#include <cstdint>

namespace limpid::cpu {

struct PoolDesc {
  std::int64_t n = 0, c = 0, h = 0, w = 0, oh = 0, ow = 0;
  std::int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dil_h = 1, dil_w = 1;
  bool count_include_pad = true;
};

// indices: h*W + w of the maximum in its image plane, [n][oh][ow][c]. NaN wins, the first maximum wins ties (PyTorch).
// indices may be null (inference).
template <class T>
void max_pool2d(const PoolDesc& desc, const T* x, T* y, std::int32_t* indices);
template <class T>
void max_pool2d_backward(const PoolDesc& desc, const T* dy, const std::int32_t* indices, T* dx);

// Divides by the window size: of the padded window if count_include_pad, else of its part inside the image.
template <class T>
void avg_pool2d(const PoolDesc& desc, const T* x, T* y);
template <class T>
void avg_pool2d_backward(const PoolDesc& desc, const T* dy, T* dx);

// Window of output i: [floor(i*h/oh), ceil((i+1)*h/oh)). Only n, c, h, w, oh, ow of the desc are read.
template <class T>
void adaptive_avg_pool2d(const PoolDesc& desc, const T* x, T* y);
template <class T>
void adaptive_avg_pool2d_backward(const PoolDesc& desc, const T* dy, T* dx);

}  // namespace limpid::cpu
