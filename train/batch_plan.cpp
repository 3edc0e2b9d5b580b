#include <limpid/train/batch_plan.h>

#include <algorithm>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/nn/norm.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

// {32,32,32,32} is "4 x 32"; {26,25,25} is "26 + 2 x 25".
std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::string out;
  for (std::size_t i = 0; i < sizes.size();) {
    std::size_t end = i;
    while (end < sizes.size() && sizes[end] == sizes[i]) end++;
    out += concat(out.empty() ? "" : " + ", end - i > 1 ? concat(end - i, " x ") : std::string(), sizes[i]);
    i = end;
  }
  return out;
}

}  // namespace

EpochPlan epoch_plan(const data::DataLoader& loader, std::int64_t epoch) {
  const data::BatchPlan plan = loader.plan(epoch);
  EpochPlan out;
  out.samples = loader.dataset().size();
  out.effective_batch = loader.options().batch_size;
  out.steps = plan.steps();
  out.dropped = plan.dropped();
  const std::int64_t micro = loader.options().micro_batch;
  auto cut = [&](std::int64_t samples) {
    return micro > 0 ? data::micro_batch_sizes(samples, micro, loader.options().quantum) : std::vector{samples};
  };
  const std::vector<std::int64_t> steps = plan.step_sizes();
  if (!steps.empty() && steps.front() == out.effective_batch) out.micro_batches = cut(steps.front());
  if (!steps.empty() && steps.back() != out.effective_batch) {
    out.tail = steps.back();
    out.tail_micro_batches = cut(out.tail);
  }
  return out;
}

std::string to_string(const EpochPlan& p) {
  std::string out = concat(format_count(p.samples), " samples = ");
  const std::int64_t full = p.steps - (p.tail > 0 ? 1 : 0);
  if (full > 0) {
    out += concat(format_count(full), " steps of ", p.effective_batch, p.micro_batches.size() > 1 ? " (" : "",
                  p.micro_batches.size() > 1 ? sizes_text(p.micro_batches) + ")" : "", ", a sample weighs 1/",
                  p.effective_batch);
  }
  if (p.tail > 0) {
    out += concat(full > 0 ? "; " : "", "a last one of ", p.tail, p.tail_micro_batches.size() > 1 ? " (" : "",
                  p.tail_micro_batches.size() > 1 ? sizes_text(p.tail_micro_batches) + ")" : "", ", weight 1/", p.tail);
  }
  if (!p.dropped.empty()) out += concat("; ", p.dropped.size(), " dropped (drop-last), others in each epoch");
  return out;
}

std::string batch_warning(const EpochPlan& p) {
  if (p.effective_batch <= p.samples) return "";
  return concat("the effective batch is ", p.effective_batch, ", the training set has ", p.samples,
                " samples: every step has these ", p.samples, ", and lr stays as it is");
}

std::string to_json(const EpochPlan& p) {
  const detail::Json json = {{"samples", p.samples}, {"effective_batch", p.effective_batch},
                             {"steps", p.steps},     {"micro_batches", p.micro_batches},
                             {"tail", p.tail},       {"tail_micro_batches", p.tail_micro_batches},
                             {"dropped", p.dropped}};
  return json.dump();
}

MicroBatchChoice choose_micro_batch(std::int64_t effective, const std::function<bool(std::int64_t)>& fits,
                                    std::int64_t least) {
  LIMPID_CHECK(effective >= 1 && least >= 1, ArgumentError, "[choose_micro_batch] an effective batch of ", effective,
               " and micro-batches of at least ", least, ": both must be at least 1");
  MicroBatchChoice choice;
  std::int64_t former = 0;
  for (std::int64_t pieces = 1; pieces <= effective; pieces++) {
    const std::int64_t micro = (effective + pieces - 1) / pieces;
    if (micro == former) continue;  // as many pieces as before, for this size
    if (micro < least && pieces > 1) break;
    former = micro;
    choice.tried++;
    if (!fits(micro)) continue;
    choice.micro_batch = micro;
    choice.sizes = data::micro_batch_sizes(effective, micro);
    break;
  }
  return choice;
}

}  // namespace limpid::train
