#include <limpid/train/batch_norm_modes.h>

#include <algorithm>
#include <numeric>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/tensor/random.h>

namespace limpid::train {
namespace {

// The gradients that are there, set aside while passes that only collect make their own.
class GradientsAside {
 public:
  explicit GradientsAside(const nn::Module& model) : parameters_(model.parameters()) {
    for (Tensor& p : parameters_) {
      gradients_.push_back(p.grad());
      p.set_grad(Tensor());
    }
  }
  ~GradientsAside() {
    for (std::size_t i = 0; i < parameters_.size(); i++) parameters_[i].set_grad(std::move(gradients_[i]));
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

 private:
  std::vector<Tensor> parameters_, gradients_;
};

// Where the pass ended; null when it ran through.
BatchNormShared* run_until_stop(const ExactBatchNorm::Pass& pass, std::size_t micro_batch) {
  try {
    pass(micro_batch);
    return nullptr;
  } catch (const BatchNormShared::Stop& stop) {
    return stop.at;
  }
}

// Modes and hooks, as they were when this goes out of scope.
class ProbeGuard {
 public:
  explicit ProbeGuard(nn::Module& model) {
    for (auto& [path, module] : model.named_modules()) modes_.emplace_back(module, module->training());
    model.eval();
  }
  ~ProbeGuard() {
    for (auto& [module, id] : hooks_) module->remove_hook(id);
    for (auto& [module, mode] : modes_) module->train(mode);  // parents first
  }
  ProbeGuard(const ProbeGuard&) = delete;
  ProbeGuard& operator=(const ProbeGuard&) = delete;
  void add(nn::Module* module, nn::Module::ForwardPreHook hook) {
    hooks_.emplace_back(module, module->register_forward_pre_hook(std::move(hook)));
  }

 private:
  std::vector<std::pair<nn::Module*, bool>> modes_;
  std::vector<std::pair<nn::Module*, std::uint64_t>> hooks_;
};

std::string samples_text(std::int64_t n) { return concat(n, n == 1 ? " sample" : " samples"); }

}  // namespace

const char* to_string(BatchNormMode mode) {
  switch (mode) {
    case BatchNormMode::micro: return "micro";
    case BatchNormMode::frozen: return "frozen";
    case BatchNormMode::exact: return "exact";
  }
  return "?";
}

BatchNormMode batch_norm_mode_named(const std::string& name) {
  for (BatchNormMode mode : {BatchNormMode::micro, BatchNormMode::frozen, BatchNormMode::exact})
    if (name == to_string(mode)) return mode;
  LIMPID_THROW(ArgumentError, "[batch_norm] the modes are micro, frozen and exact, got ", name);
}

std::vector<std::pair<std::string, nn::BatchNorm*>> batch_norm_layers(nn::Module& model) {
  std::vector<std::pair<std::string, nn::BatchNorm*>> layers;
  for (auto& [path, module] : model.named_modules())
    if (auto* layer = dynamic_cast<nn::BatchNorm*>(module)) layers.emplace_back(path, layer);
  return layers;
}

bool has_batch_norm(nn::Module& model) {
  const auto layers = batch_norm_layers(model);
  return std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return !layer.second->frozen(); });
}

void set_batch_norm_mode(nn::Module& model, BatchNormMode mode) {
  for (auto& [path, layer] : batch_norm_layers(model)) layer->set_frozen(mode == BatchNormMode::frozen);
}

void set_micro_batches(nn::Module& model, std::int64_t count) {
  for (auto& [path, layer] : batch_norm_layers(model)) layer->set_micro_batches(count);
}

// ---- exact

ExactCost ExactBatchNorm::cost(const std::vector<std::int64_t>& micro_batches) const {
  ExactCost cost;
  for (auto& [path, layer] : batch_norm_layers(model_)) cost.layers += layer->uses_batch();
  cost.micro_batches = static_cast<std::int64_t>(micro_batches.size());
  cost.samples = std::accumulate(micro_batches.begin(), micro_batches.end(), std::int64_t{0});
  cost.forward_sweeps = 2 * cost.layers + 1;
  cost.backward_sweeps = cost.layers + 1;
  cost.forward_samples = cost.forward_sweeps * cost.samples;
  cost.backward_samples = cost.backward_sweeps * cost.samples;
  return cost;
}

std::string to_string(const ExactCost& c) {
  return concat("exact batch norm over ", c.layers, c.layers == 1 ? " layer" : " layers", " and ", c.micro_batches,
                " micro-batches: ", c.forward_sweeps, " forward and ", c.backward_sweeps, " backward sweeps over ",
                samples_text(c.samples), " a step instead of 1 and 1 (", format_count(static_cast<std::uint64_t>(c.forward_samples)),
                " samples forward, ", format_count(static_cast<std::uint64_t>(c.backward_samples)),
                " backward; all sweeps but the last end at a layer, so this is the most)");
}

void ExactBatchNorm::release() {
  for (nn::BatchNorm* layer : open_) layer->share(nullptr);
  open_.clear();
}

void ExactBatchNorm::collect(std::size_t micro_batches, const Pass& forward_backward) {
  LIMPID_CHECK(micro_batches >= 1, ArgumentError, "[exact batch norm] a step has at least 1 micro-batch, got ",
               micro_batches);
  LIMPID_CHECK(open_.empty(), ArgumentError, "[exact batch norm] collect() a second time without finish()");
  for (auto& [path, layer] : batch_norm_layers(model_)) {
    if (!layer->uses_batch()) continue;
    LIMPID_CHECK(!layer->shared(), ArgumentError, "[exact batch norm] ", path, " takes part in another step already");
    layer->share(std::make_shared<BatchNormShared>());
    open_.push_back(layer);
  }
  if (open_.empty()) return;
  try {
    const GradientsAside aside(model_);
    const RandomState random = random_state();
    auto left = [&] {  // with a part of the statistics or of the sums to come
      return std::any_of(open_.begin(), open_.end(), [](nn::BatchNorm* layer) {
        return !layer->shared()->has_sums();
      });
    };
    // Each sweep gives one layer what it lacks: the first that lacks statistics, else the last that lacks its sums.
    for (BatchNormShared* at = open_[0]->shared().get(); at != nullptr && left();) {
      random_state() = random;
      for (std::size_t i = 0; i < micro_batches; i++) {
        for (nn::BatchNorm* layer : open_) layer->shared()->begin_pass();
        BatchNormShared* stop = run_until_stop(forward_backward, i);
        LIMPID_CHECK(i == 0 || stop == at, ArgumentError, "[exact batch norm] micro-batch ", i,
                     " takes another way through the layers than micro-batch 0");
        at = stop;
      }
      for (nn::BatchNorm* layer : open_)
        if (layer->shared().get() == at) at->merge(layer->options().eps);
    }
    random_state() = random;
  } catch (...) {
    release();
    throw;
  }
  for (nn::BatchNorm* layer : open_) layer->shared()->end_passes();
}

void ExactBatchNorm::finish() {
  for (nn::BatchNorm* layer : open_)
    if (layer->shared()->has_statistics()) layer->update_running_stats();
  release();
}

// ---- lint

std::vector<BatchNormFinding> lint_batch_norm(nn::Module& model, const std::vector<std::int64_t>& micro_batches,
                                              const Shape& input) {
  LIMPID_CHECK(!micro_batches.empty(), ArgumentError, "[batch_norm] there are no micro-batches to look at");
  const std::int64_t samples = *std::min_element(micro_batches.begin(), micro_batches.end());
  LIMPID_CHECK(samples >= 1, ArgumentError, "[batch_norm] a micro-batch has at least 1 sample, got ", samples);
  std::vector<BatchNormFinding> findings;
  const auto layers = batch_norm_layers(model);
  if (layers.empty()) return findings;
  const Tensor first = model.parameters().at(0);

  constexpr std::int64_t kProbe = 2;  // a layer without running statistics needs two
  ProbeGuard guard(model);
  for (auto& [path, layer] : layers) {
    if (layer->frozen()) continue;
    guard.add(layer, [&findings, samples, name = path](nn::Module&, const Tensor& x) {
      BatchNormFinding f;
      f.layer = name;
      f.samples = samples;
      f.values = samples * (x.numel() / (kProbe * x.size(1)));
      const std::string where = concat(name, " takes mean and variance of ", f.values, f.values == 1 ? " value" : " values");
      if (f.values == 1) {
        f.severity = BatchNormFinding::Severity::error;
        f.text = concat(where, " in a micro-batch of 1 sample: training stops with an error");
      } else if (samples == 1) {
        f.text = concat(where, " of a single sample: every sample is normalised by itself, and evaluation is another function");
      } else if (samples < kSmallBatchNorm) {
        f.text = concat(where, " of ", samples, " samples, fewer than ", kSmallBatchNorm, ": the statistics are noisy");
      } else {
        return Tensor();
      }
      findings.push_back(std::move(f));
      return Tensor();
    });
  }
  std::vector<std::int64_t> shape{kProbe};
  shape.insert(shape.end(), input.begin(), input.end());
  NoGradGuard no_grad;
  model(zeros(Shape(shape), {.dtype = first.dtype(), .device = first.device()}));
  return findings;
}

}  // namespace limpid::train
