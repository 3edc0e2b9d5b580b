// LayerDecisions: the yes-or-no choices that layers make in a forward pass, sample by sample: the sign before a ReLU, the
// place of the maximum in a max pooling, what dropout keeps. Two runs over the same samples can be compared choice by
// choice, and a run can be made to choose as another did. Sees modules (nn::ReLU, nn::MaxPool2d, nn::Dropout); a relu()
// called inside of a forward() is not seen.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <limpid/nn/module.h>

namespace limpid::train {

enum class DecisionKind : std::uint8_t { relu, max_pool, dropout };
const char* to_string(DecisionKind kind);

struct LayerDecision {
  DecisionKind kind = DecisionKind::relu;
  Tensor choices;  // [N,...]: bool; for max pooling i32, h*W+w
};
// By the layer's path; its second use in one pass is "path#2".
using LayerDecisions = std::map<std::string, LayerDecision>;

// How many choices of a layer differ between two runs.
struct Flips {
  std::string layer;
  DecisionKind kind = DecisionKind::relu;
  std::int64_t flipped = 0, of = 0;
};
// Layers with choices, in the order of their names. ShapeError when the runs did not have the same samples.
std::vector<Flips> flips_between(const LayerDecisions& a, const LayerDecisions& b);

// Hooks on a model while it lives. The samples of a batch come in order, in any number of passes; when they come several
// times, the last time counts.
class DecisionWatch {
 public:
  // `replay`: what the layers of `kinds` are to choose, instead of choosing themselves; null: they are only watched.
  DecisionWatch(nn::Module& model, std::int64_t samples, const LayerDecisions* replay = nullptr,
                std::vector<DecisionKind> kinds = {});
  ~DecisionWatch();
  DecisionWatch(const DecisionWatch&) = delete;
  DecisionWatch& operator=(const DecisionWatch&) = delete;

  LayerDecisions decisions() const;

 private:
  struct Seen {
    DecisionKind kind;
    std::vector<Tensor> choices;  // one a pass
    std::int64_t samples = 0;     // so far, modulo the batch
  };
  std::string next_use(const nn::Module& layer);
  bool replays(DecisionKind kind) const;
  Tensor on_layer(nn::Module& layer, DecisionKind kind, double p, const Tensor& x);

  std::int64_t samples_;
  const LayerDecisions* replay_;
  std::vector<DecisionKind> kinds_;
  std::map<std::string, Seen> seen_;
  std::map<std::string, int> uses_;  // in the current pass
  std::vector<std::pair<nn::Module*, std::uint64_t>> hooks_;
};

}  // namespace limpid::train
