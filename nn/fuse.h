// Fusion as a visible rewrite of a model: runs of children of Sequential and Residual become one operation each.
//
//   nn::fuse(*model);            // Conv2d + ReLU [+ MaxPool2d(2) | AdaptiveAvgPool2d(1)], Linear + ReLU,
//                                // BatchNorm2d + ReLU, and in Residual BatchNorm2d + the addition + ReLU
//   nn::unfuse(*model);          // back to one operation a layer
//
// Names, parameters, state_dict() and the numbers stay what they were; what changes is what is computed at once and what
// is kept for the gradient (autograd/fused.h). Modules of other types than these, also derived ones, and members of
// modules of the user's own are left alone.
#pragma once

#include <string>
#include <vector>

#include <limpid/nn/module.h>

namespace limpid::nn {

struct ChainRun {
  std::vector<std::string> parts;  // paths: "conv2", "relu2", "pool"
  std::string function;            // "conv2d_relu_max_pool2d"
  // Why its parts run one by one all the same: a hook on one of them (it would never be called), a dtype or a device
  // without fused kernels, autocast. Empty: they run as one.
  std::string composed;
};

// Marks the chains of the whole tree, the longest first; those of an earlier call are forgotten. The list is chain_runs().
std::vector<ChainRun> fuse(Module& model);
void unfuse(Module& model);
// The chains of a fused model, as they would run now.
std::vector<ChainRun> chain_runs(Module& model);
// "conv1 + relu1: conv2d_relu", a line a chain.
std::string to_string(const std::vector<ChainRun>& runs);

}  // namespace limpid::nn
