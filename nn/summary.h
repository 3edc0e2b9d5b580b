// What a model costs, layer by layer: shapes, parameters, bytes of outputs, bytes kept for backward, FLOPs.
//
// Measured, not guessed: the model runs forward in training mode with 2 and with 3 zero samples; what grows between the
// two is per sample, the rest is fixed. Outputs are those of every layer; what is kept is that of the model as it is: a
// fused one (nn/fuse.h) keeps the bytes of a chain under its first layer. Buffers, random state and modes are put back afterwards. Forward hooks do fire.
#pragma once

#include <string>
#include <vector>

#include <limpid/nn/module.h>

namespace limpid::nn {

struct LayerSummary {
  std::string name;  // path, "layer1.0.conv1"; "" for the model itself
  std::string type;  // "Conv2d"
  std::string description;
  Shape output_shape;             // of one sample, without the batch
  std::int64_t parameters = 0;    // elements of its own parameters
  std::int64_t output_bytes = 0;  // a sample, logical: numel * element size
  std::int64_t saved_bytes = 0;   // a sample: storages that this layer is the first to keep for backward; neither
                                  // parameters nor the model's input count, but a channels_last copy of it does
  std::int64_t saved_fixed = 0;   // the same, independent of the batch
  // 2 per multiply-add, a sample, forward only. Conv2d: 2 K OH OW (C/groups) R S; Linear: 2 in out per row. Others, and
  // the addition of a bias: 0.
  std::int64_t flops = 0;
};

struct ModelSummary {
  Shape input_shape;  // of one sample
  std::int64_t batch = 1;
  std::vector<LayerSummary> layers;  // in order of execution; containers appear when they compute something themselves
  std::int64_t parameters = 0;       // elements
  std::int64_t parameter_bytes = 0;
  std::int64_t buffer_bytes = 0;
  std::int64_t input_bytes = 0;   // a sample; so are the next three
  std::int64_t output_bytes = 0;  // sum over layers
  std::int64_t saved_bytes = 0;
  std::int64_t flops = 0;
  std::int64_t saved_fixed = 0;
  // Bytes kept for backward in a step of `batch` samples: batch * saved_bytes + saved_fixed.
  std::int64_t saved_total() const { return batch * saved_bytes + saved_fixed; }
};

// input_shape is one sample's (channels, height, width for images). The dtype is that of the model's first parameter.
ModelSummary summary(Module& model, const Shape& input_shape, std::int64_t batch = 1);
// A table for people; figures a sample and, where marked, for the batch.
std::string to_string(const ModelSummary& summary);

}  // namespace limpid::nn
