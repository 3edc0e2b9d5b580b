// What may follow a convolution inside one fused operation, and the bits that such an operation keeps for its gradient.
//
// One bit an element of the convolution's output z [N,K,OH,OW] says whether a gradient reaches it: of ReLU where
// z > 0 (or NaN), of ReLU and max pooling where z is also its window's maximum. dL/dz is then the gradient of the
// operation's result, spread over z, where the bit is set, and 0 elsewhere. They lie as [N*OH*OW][bit_bytes(K)], bit c % 8
// of byte c / 8 for channel c; the bits beyond K are 0.
#pragma once

#include <cstdint>

namespace limpid {

enum class ConvTail : std::uint8_t {
  relu,           // y = max(z, 0)
  relu_max_pool,  // then the maximum of windows of 2x2, stride 2; an odd last row or column is dropped
  relu_mean,      // then the mean over each image: y [N,K,1,1]
};

constexpr std::int64_t bit_bytes(std::int64_t channels) { return (channels + 7) / 8; }

}  // namespace limpid
