#include <limpid/train/layer_decisions.h>

#include <algorithm>

#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/node.h>
#include <limpid/base/error.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/dropout.h>
#include <limpid/nn/pool.h>
#include <limpid/tensor/random.h>

namespace limpid::train {
namespace {

// The places that max pooling chose: what its node keeps.
Tensor places(nn::MaxPool2d& pool, const Tensor& x) {
  GradModeGuard record(true);
  Tensor leaf = x.detach();
  leaf.requires_grad_();
  const Tensor y = pool.forward(leaf);
  Tensor indices;
  edge_to(y).node->visit_saved([&](const char*, const SavedTensor& saved) { indices = saved.peek(); });
  return indices;
}

// The mask that the layer's next use will draw; the state of the random numbers stays as it is.
Tensor kept(const nn::Dropout& layer, const Tensor& x) {
  const RandomStateScope unchanged;
  const std::uint64_t key = next_layer_key(layer.path_id());
  const Tensor ones_like = ones(x.shape(), {.dtype = x.dtype(), .device = x.device()});
  return ne(dropout(ones_like, layer.options().p, key, random_context().sample_offset), 0);
}

// What the layer gives when it chooses `choices`.
Tensor apply(DecisionKind kind, const Tensor& x, const Tensor& choices, double p) {
  switch (kind) {
    case DecisionKind::relu: return mul(x, cast(choices, x.dtype()));
    case DecisionKind::dropout: return mul(x, mul(cast(choices, x.dtype()), 1 / (1 - p)));
    case DecisionKind::max_pool: break;
  }
  const std::int64_t n = x.size(0), c = x.size(1);
  const Tensor at = reshape(contiguous(cast(choices, DType::int64)), {n, c, choices.size(2) * choices.size(3)});
  return reshape(gather(reshape(contiguous(x), {n, c, x.size(2) * x.size(3)}), 2, at), choices.shape());
}

}  // namespace

const char* to_string(DecisionKind kind) {
  switch (kind) {
    case DecisionKind::relu: return "relu";
    case DecisionKind::max_pool: return "max_pool";
    case DecisionKind::dropout: return "dropout";
  }
  return "?";
}

std::vector<Flips> flips_between(const LayerDecisions& a, const LayerDecisions& b) {
  std::vector<Flips> all;
  for (const auto& [layer, decision] : a) {
    const auto other = b.find(layer);
    LIMPID_CHECK(other != b.end() && other->second.choices.shape() == decision.choices.shape(), ShapeError,
                 "[decisions] ", layer, " chose ", decision.choices.shape(), " times in one run, in the other ",
                 other == b.end() ? Shape{0} : other->second.choices.shape());
    const auto ours = decision.choices.to_vector<std::int64_t>(), theirs = other->second.choices.to_vector<std::int64_t>();
    Flips flips{layer, decision.kind, 0, static_cast<std::int64_t>(ours.size())};
    for (std::size_t i = 0; i < ours.size(); i++) flips.flipped += ours[i] != theirs[i];
    all.push_back(std::move(flips));
  }
  return all;
}

DecisionWatch::DecisionWatch(nn::Module& model, std::int64_t samples, const LayerDecisions* replay,
                             std::vector<DecisionKind> kinds)
    : samples_(samples), replay_(replay), kinds_(std::move(kinds)) {
  model.name_tree(model.path());
  hooks_.emplace_back(&model, model.register_forward_pre_hook([this](nn::Module&, const Tensor&) {
    uses_.clear();
    return Tensor();
  }));
  for (auto& [path, module] : model.named_modules()) {
    DecisionKind kind = DecisionKind::relu;
    double p = 0;
    if (dynamic_cast<nn::MaxPool2d*>(module)) {
      kind = DecisionKind::max_pool;
    } else if (auto* layer = dynamic_cast<nn::Dropout*>(module)) {
      kind = DecisionKind::dropout;
      p = layer->options().p;
    } else if (!dynamic_cast<nn::ReLU*>(module)) {
      continue;
    }
    if (kind == DecisionKind::dropout && p == 0) continue;
    // Dropout's mask is looked at before it is drawn. The layer's own result is then replaced, where that is wanted.
    auto chosen = std::make_shared<Tensor>();
    hooks_.emplace_back(module, module->register_forward_pre_hook([this, chosen, kind, p](nn::Module& m, const Tensor& x) {
      *chosen = kind == DecisionKind::dropout && !m.training() ? Tensor() : on_layer(m, kind, p, x);
      return Tensor();
    }));
    hooks_.emplace_back(module, module->register_forward_hook([chosen](nn::Module&, const Tensor&, const Tensor&) {
      return std::exchange(*chosen, Tensor());
    }));
  }
}

DecisionWatch::~DecisionWatch() {
  for (auto& [module, id] : hooks_) module->remove_hook(id);
}

std::string DecisionWatch::next_use(const nn::Module& layer) {
  const int use = ++uses_[layer.path()];
  return use == 1 ? layer.path() : concat(layer.path(), "#", use);
}

bool DecisionWatch::replays(DecisionKind kind) const {
  return replay_ && std::find(kinds_.begin(), kinds_.end(), kind) != kinds_.end();
}

Tensor DecisionWatch::on_layer(nn::Module& layer, DecisionKind kind, double p, const Tensor& x) {
  const std::string name = next_use(layer);
  Seen& seen = seen_[name];
  seen.kind = kind;
  const std::int64_t first = seen.samples;
  seen.samples = (first + x.size(0)) % samples_;
  if (replays(kind)) {
    const Tensor choices = narrow(replay_->at(name).choices, 0, first, x.size(0));
    seen.choices.push_back(choices);
    return apply(kind, x, choices, p);
  }
  NoGradGuard no_grad;
  switch (kind) {
    case DecisionKind::relu: seen.choices.push_back(gt(x.detach(), 0)); break;
    case DecisionKind::max_pool: seen.choices.push_back(places(static_cast<nn::MaxPool2d&>(layer), x)); break;
    case DecisionKind::dropout: seen.choices.push_back(kept(static_cast<nn::Dropout&>(layer), x)); break;
  }
  return Tensor();
}

LayerDecisions DecisionWatch::decisions() const {
  LayerDecisions all;
  for (const auto& [name, seen] : seen_) {
    // The last passes that make up the batch.
    std::size_t first = seen.choices.size();
    for (std::int64_t samples = 0; first > 0 && samples < samples_;) samples += seen.choices[--first].size(0);
    std::vector<Tensor> last;
    for (std::size_t i = first; i < seen.choices.size(); i++) last.push_back(contiguous(seen.choices[i]));
    all[name] = {seen.kind, cat(last, 0)};
  }
  return all;
}

}  // namespace limpid::train
