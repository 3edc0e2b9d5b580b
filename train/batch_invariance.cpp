#include <limpid/train/batch_invariance.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/error.h>
#include <limpid/optim/adam.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/raw.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

using Bytes = std::vector<unsigned char>;

void append(Bytes& bytes, const Tensor& tensor) {
  const NoGradGuard guard;
  const Tensor dense = contiguous(tensor.detach());
  const std::size_t at = bytes.size();
  bytes.resize(at + dense.nbytes());
  std::memcpy(bytes.data() + at, dense.raw_data(), dense.nbytes());
}

// FNV-1a, 64 bits.
std::uint64_t hash(const Bytes& bytes) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (unsigned char b : bytes) h = (h ^ b) * 0x100000001b3;
  return h;
}

class ThreadsScope {
 public:
  ThreadsScope() : former_(cpu::num_threads()) {}
  ~ThreadsScope() { cpu::set_num_threads(former_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int former_;
};

struct Result {
  Bytes gradients, weights;
  double seconds = 0;
};

Result run_cut(const InvarianceProblem& p, std::int64_t micro_batch) {
  const std::shared_ptr<nn::Module> model = p.model();
  model->train();
  optim::Adam optimizer(model->parameters(), {.lr = p.lr});
  Step step(*model, optimizer, p.step);
  const std::int64_t samples = p.x.size(0);
  const std::vector<std::int64_t> sizes =
      data::micro_batch_sizes(samples, micro_batch, std::max<std::int64_t>(p.step.quantum, 1));
  Result result;
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < p.steps; i++) {
    step.begin(i, samples, sizes);
    std::int64_t at = 0;
    for (std::int64_t size : sizes) {
      data::Batch batch;
      batch.x = raw::narrow(p.x, 0, at, size);
      batch.y = raw::narrow(p.y, 0, at, size);
      batch.indices.resize(static_cast<std::size_t>(size));
      step.add(batch);
      at += size;
    }
    step.finish();
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / static_cast<double>(p.steps);
  for (const Tensor& parameter : model->parameters()) append(result.gradients, parameter.grad());
  for (const auto& [name, tensor] : model->state_dict()) append(result.weights, tensor);
  return result;
}

}  // namespace

InvarianceReport check_batch_invariance(const InvarianceProblem& p) {
  LIMPID_CHECK(p.model && !p.micro_batches.empty() && !p.threads.empty(), ArgumentError,
               "[invariance] needs a model, cuts and numbers of threads");
  LIMPID_CHECK(p.steps >= 1, ArgumentError, "[invariance] steps must be at least 1, got ", p.steps);
  LIMPID_CHECK(p.x.defined() && p.x.dim() >= 1 && p.x.size(0) >= 1 && p.y.defined() && p.y.dim() == 1 &&
                   p.y.size(0) == p.x.size(0),
               ShapeError, "[invariance] needs samples and a class for each, got ", p.x, " and ", p.y);
  for (std::int64_t micro : p.micro_batches) {
    LIMPID_CHECK(micro >= 1 && micro <= p.x.size(0), ArgumentError, "[invariance] a micro-batch has 1 to ", p.x.size(0),
                 " samples, got ", micro);
    LIMPID_CHECK(p.step.quantum == 0 || micro % p.step.quantum == 0, ArgumentError, "[invariance] a micro-batch of ", micro,
                 " is no multiple of the quantum ", p.step.quantum);
  }
  for (int threads : p.threads)
    LIMPID_CHECK(threads >= 1, ArgumentError, "[invariance] threads must be at least 1, got ", threads);
  InvarianceReport report{.samples = p.x.size(0), .quantum = p.step.quantum, .steps = p.steps, .rows = {}, .equal = true};
  const ThreadsScope number_of_threads;
  const RandomStateScope random;
  const RandomState start = random_state();
  Result first;
  for (int threads : p.threads) {
    for (std::int64_t micro : p.micro_batches) {
      cpu::set_num_threads(threads);
      random_state() = start;
      Result result = run_cut(p, micro);
      if (report.rows.empty()) first = result;
      const bool equal = result.gradients == first.gradients && result.weights == first.weights;
      report.rows.push_back({micro, threads, hash(result.gradients), hash(result.weights), equal, result.seconds});
      report.equal &= equal;
    }
  }
  return report;
}

std::string to_string(const InvarianceReport& r) {
  std::string text = concat(r.steps, " steps of Adam over ", r.samples, " samples, ",
                            r.quantum > 0 ? concat("always computed in pieces of ", r.quantum) : std::string("computed as they arrive"),
                            "\n  cut        threads  gradients         weights           ms a step\n");
  for (const InvarianceRow& row : r.rows) {
    char line[128];
    const std::string cut = concat((r.samples + row.micro_batch - 1) / row.micro_batch, "x", row.micro_batch);
    std::snprintf(line, sizeof line, "  %-10s %7d  %016llx  %016llx  %9.2f%s\n", cut.c_str(), row.threads,
                  static_cast<unsigned long long>(row.gradients), static_cast<unsigned long long>(row.weights), 1e3 * row.seconds,
                  row.equal ? "" : "  differs");
    text += line;
  }
  return text + (r.equal ? "every byte is equal\n" : "NOT equal\n");
}

std::string to_json(const InvarianceReport& r) {
  detail::Json json = {{"samples", r.samples}, {"quantum", r.quantum}, {"steps", r.steps}, {"equal", r.equal}};
  json["rows"] = detail::Json::array();
  for (const InvarianceRow& row : r.rows)
    json["rows"].push_back({{"micro_batch", row.micro_batch},
                            {"threads", row.threads},
                            {"gradients", row.gradients},
                            {"weights", row.weights},
                            {"equal", row.equal},
                            {"seconds", row.seconds}});
  return json.dump();
}

}  // namespace limpid::train
