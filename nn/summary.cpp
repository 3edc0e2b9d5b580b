#include <limpid/nn/summary.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/node.h>
#include <limpid/base/format.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/linear.h>
#include <limpid/tensor/raw.h>

namespace limpid::nn {
namespace {

// Figures of one layer in one pass, for the whole batch.
struct Pass {
  std::int64_t output_bytes = 0;
  std::int64_t saved_bytes = 0;
  std::int64_t flops = 0;
};

struct Row {
  Module* module = nullptr;
  std::string path;
  int order = -1;  // of the first completion
  Shape output_shape;
  Pass pass[2];
};

// Modes, buffers, random state: as they were when this goes out of scope.
class Restore {
 public:
  explicit Restore(Module& model) {
    for (auto& [path, module] : model.named_modules()) modes_.emplace_back(module, module->training());
    NoGradGuard guard;
    for (auto& [name, buffer] : model.named_buffers()) buffers_.emplace_back(buffer, raw::clone(buffer));
  }
  ~Restore() {
    remove_hooks();
    for (auto& [module, mode] : modes_) module->train(mode);  // parents first, so that children have the last word
    for (auto& [buffer, value] : buffers_) raw::copy(buffer, value);
  }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;
  void add_hook(Module* module, Module::ForwardHook hook) {
    hooks_.emplace_back(module, module->register_forward_hook(std::move(hook)));
  }
  void remove_hooks() {
    for (auto& [module, id] : hooks_) module->remove_hook(id);
    hooks_.clear();
  }

 private:
  RandomStateScope random_;
  std::vector<std::pair<Module*, bool>> modes_;
  std::vector<std::pair<Tensor, Tensor>> buffers_;
  std::vector<std::pair<Module*, std::uint64_t>> hooks_;
};

std::int64_t flops_of(const Module& module, const Tensor& output) {
  if (const auto* conv = dynamic_cast<const Conv2d*>(&module))
    return 2 * output.numel() * conv->weight.numel() / output.size(1);
  if (const auto* dense = dynamic_cast<const Linear*>(&module))
    return 2 * output.numel() * dense->options().in_features;
  return 0;
}

// Every node below `root`, in the order in which they ran.
std::vector<Node*> nodes_below(const Tensor& root) {
  std::vector<Node*> stack, all;
  std::unordered_set<Node*> seen;
  Edge first = edge_to(root);
  if (first.node) stack.push_back(first.node.get());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (!seen.insert(node).second) continue;
    all.push_back(node);
    for (const Edge& edge : node->edges())
      if (edge.node) stack.push_back(edge.node.get());
  }
  std::sort(all.begin(), all.end(), [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); });
  return all;
}

// "12,616,704" right-aligned.
std::string cell(const std::string& text, std::size_t width, bool right) {
  std::string space(text.size() < width ? width - text.size() : 0, ' ');
  return right ? space + text : text + space;
}

}  // namespace

ModelSummary summary(Module& model, const Shape& input_shape, std::int64_t batch) {
  LIMPID_CHECK(batch >= 1, ArgumentError, "[summary] batch must be at least 1, got ", batch);
  ModelSummary result;
  result.input_shape = input_shape;
  result.batch = batch;
  model.name_tree();
  NamedTensors parameters = model.named_parameters(), buffers = model.named_buffers();
  std::unordered_set<const Storage*> not_saved;
  for (auto& [name, tensor] : parameters) {
    result.parameters += tensor.numel();
    result.parameter_bytes += static_cast<std::int64_t>(tensor.nbytes());
    not_saved.insert(tensor.storage().get());
  }
  for (auto& [name, tensor] : buffers) {
    result.buffer_bytes += static_cast<std::int64_t>(tensor.nbytes());
    not_saved.insert(tensor.storage().get());
  }
  DType dtype = parameters.empty() ? float32 : parameters[0].second.dtype();
  Device device = parameters.empty() ? kCpu : parameters[0].second.device();
  result.input_bytes = input_shape.numel() * static_cast<std::int64_t>(size_of(dtype));

  std::vector<Row> rows;
  std::unordered_map<NameId, std::size_t> row_of;
  for (auto& [path, module] : model.named_modules()) {
    row_of[module->path_id()] = rows.size();
    rows.push_back({.module = module, .path = path, .order = -1, .output_shape = {}, .pass = {}});
  }
  int pass = 0, finished = 0;
  {
    Restore restore(model);
    GradModeGuard record(true);
    model.train();
    for (std::size_t i = 0; i < rows.size(); i++) {
      restore.add_hook(rows[i].module, [&, i](Module& module, const Tensor&, const Tensor& output) {
        Row& row = rows[i];
        if (row.order < 0) row.order = finished++;
        row.output_shape = output.shape();
        row.pass[pass].output_bytes += static_cast<std::int64_t>(output.nbytes());
        row.pass[pass].flops += flops_of(module, output);
        return Tensor();
      });
    }
    const auto samples = [&] {
      Shape shape = input_shape;
      shape.insert(0, pass + 2);
      return zeros(shape, {.dtype = dtype, .device = device});
    };
    for (pass = 0; pass < 2; pass++) model(samples());
    restore.remove_hooks();  // a chain with a hooked layer would run unfused
    for (pass = 0; pass < 2; pass++) {
      const Tensor input = samples();
      const Tensor output = model(input);
      std::unordered_set<const Storage*> counted = not_saved;
      counted.insert(input.storage().get());
      for (Node* node : nodes_below(output)) {
        auto row = row_of.find(node->scope().module);
        Pass& figures = rows[row == row_of.end() ? 0 : row->second].pass[pass];
        node->visit_saved([&](const char*, const SavedTensor& saved) {
          if (!saved.defined() || !counted.insert(saved.peek().storage().get()).second) return;
          figures.saved_bytes += static_cast<std::int64_t>(saved.peek().storage()->bytes());
        });
      }
    }
  }

  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.order < b.order; });
  for (const Row& row : rows) {
    if (row.order < 0) continue;  // never ran
    LayerSummary layer;
    layer.name = row.path;
    layer.type = row.module->type_name();
    layer.description = row.module->describe();
    for (int i = 1; i < row.output_shape.size(); i++) layer.output_shape.push_back(row.output_shape[i]);
    layer.output_bytes = row.pass[1].output_bytes - row.pass[0].output_bytes;
    layer.saved_bytes = row.pass[1].saved_bytes - row.pass[0].saved_bytes;
    layer.saved_fixed = row.pass[0].saved_bytes - 2 * layer.saved_bytes;
    layer.flops = row.pass[1].flops - row.pass[0].flops;
    std::string prefix = row.path.empty() ? "" : row.path + ".";
    for (auto& [name, tensor] : parameters) {
      bool own = name.starts_with(prefix) && name.find('.', prefix.size()) == std::string::npos;
      if (own) layer.parameters += tensor.numel();
    }
    bool leaf = row.module->named_children().empty();
    bool residual = dynamic_cast<Residual*>(row.module) != nullptr;
    if (!leaf && !residual && layer.parameters == 0 && row.pass[1].saved_bytes == 0) continue;
    result.output_bytes += layer.output_bytes;
    result.saved_bytes += layer.saved_bytes;
    result.saved_fixed += layer.saved_fixed;
    result.flops += layer.flops;
    result.layers.push_back(std::move(layer));
  }
  return result;
}

std::string to_string(const ModelSummary& summary) {
  std::vector<std::vector<std::string>> table = {
      {"layer", "type", "output", "parameters", "output B/sample", "saved B/sample", "FLOPs/sample"}};
  for (const LayerSummary& layer : summary.layers)
    table.push_back({layer.name.empty() ? "(model)" : layer.name, layer.type, to_string(layer.output_shape),
                     format_count(layer.parameters), format_count(layer.output_bytes), format_count(layer.saved_bytes),
                     format_count(layer.flops)});
  table.push_back({"total", "", "", format_count(summary.parameters), format_count(summary.output_bytes),
                   format_count(summary.saved_bytes), format_count(summary.flops)});
  std::vector<std::size_t> widths(table[0].size(), 0);
  for (const auto& row : table)
    for (std::size_t i = 0; i < row.size(); i++) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : table) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); i++) line += (i ? "  " : "") + cell(row[i], widths[i], i >= 3);
    text += line + "\n";
  }
  text += concat("input ", summary.input_shape, ": ", format_count(summary.input_bytes), " B a sample; parameters ",
                 format_bytes(static_cast<std::uint64_t>(summary.parameter_bytes)), ", buffers ",
                 format_bytes(static_cast<std::uint64_t>(summary.buffer_bytes)), "; batch ", summary.batch,
                 ": saved for backward ", format_bytes(static_cast<std::uint64_t>(summary.saved_total())), "\n");
  return text;
}

}  // namespace limpid::nn
