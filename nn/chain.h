// A run of neighbouring children of a container that is computed as one operation (nn/fuse.h decides which). Children keep
// their names, parameters and places; a chain points at them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <limpid/autograd/fused.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/norm.h>

namespace limpid::nn {

struct Chain {
  std::size_t first = 0;                    // position in the container
  std::vector<Module*> parts;               // owned by the container
  const char* function = "";                // "conv2d_relu_max_pool2d"
  Conv2d* conv = nullptr;                   // one of the three is what the chain begins with
  Linear* linear = nullptr;
  BatchNorm* norm = nullptr;
  ConvTail tail = ConvTail::relu;           // of a convolution

  std::size_t count() const { return parts.size(); }
  // The first part with hooks, which would not be called; null: none. The parts then run one by one.
  const Module* hooked() const;
  // residual: added before the activation behind a batch norm; undefined: nothing.
  Tensor forward(const Tensor& x, const Tensor& residual = Tensor()) const;
};

}  // namespace limpid::nn
