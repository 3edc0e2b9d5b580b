// A run of neighbouring children of a container that is computed as one operation (nn/fuse.h decides which). Children keep
// their names, parameters and places; a chain points at them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <limpid/autograd/fused.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/linear.h>

namespace limpid::nn {

struct Chain {
  std::size_t first = 0;                    // position in the container
  std::vector<Module*> parts;               // owned by the container
  const char* function = "";                // "conv2d_relu_max_pool2d"
  Conv2d* conv = nullptr;                   // one of the two is what the chain begins with
  Linear* linear = nullptr;
  ConvTail tail = ConvTail::relu;           // of a convolution

  std::size_t count() const { return parts.size(); }
  // The first part with hooks, which would not be called; null: none. The parts then run one by one.
  const Module* hooked() const;
  Tensor forward(const Tensor& x) const;
};

}  // namespace limpid::nn
