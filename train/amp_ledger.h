// The AMP ledger: what mixed precision did. Which dtype each operation was given, computed in and gave; what casting cost;
// where the first value that is not finite came from; what share of each layer's gradients was too small for its dtype;
// and how the loss scale moved.
//
//   train::AmpLedger ledger;
//   {
//     WatchScope watch(&ledger);
//     ... forward under Autocast, backward ...
//   }
//   StepTicket ticket = scaler.step(optimizer);
//   ledger.step_done(scaler, ticket);  // before update()
//   scaler.update();
//   std::puts(train::to_string(ledger).c_str());
//
// Steps, micro-batches and layers are those of the scope record (base/scope.h). Looking at values reads every tensor once:
// a tool for a few steps, not for a whole training; without the two options only the dtypes are noted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <limpid/autograd/watch.h>
#include <limpid/base/scope.h>
#include <limpid/optim/grad_scaler.h>

namespace limpid::train {

struct AmpLedgerOptions {
  bool find_non_finite = true;
  bool count_underflow = true;
};

// One kind of call: a layer's operation with certain dtypes.
struct AmpOpRow {
  std::string layer;          // empty outside of modules
  std::string op;             // "conv2d"
  std::vector<DType> inputs;  // dtypes of the floating inputs as given, each once, widest first
  DType compute = DType::float32;  // that the inputs were brought to; 16-bit kernels add up in f32 all the same
  DType output = DType::float32;
  std::int64_t calls = 0;
  std::uint64_t output_bytes = 0;
  std::int64_t casts = 0, reused = 0;  // copies made for it; taken from the cache
  std::uint64_t cast_bytes = 0;        // of the copies made
};

struct NonFinite {
  std::uint32_t step = 0, micro_batch = 0;
  Phase phase = Phase::none;
  std::string layer, op;
  std::optional<int> gradient_of;  // backward: which input's gradient; nothing: the result
  DType dtype = DType::float32;
};

// The 16-bit gradients that the operations of a layer passed on, over all steps.
struct UnderflowRow {
  std::string layer;
  DType dtype = DType::float16;
  std::int64_t elements = 0, zeros = 0;
  std::int64_t subnormal = 0;  // not 0, but below the smallest normal number: bits are lost
  // Where a gradient was cast from f32: how many were not 0, and how many of these became 0.
  std::int64_t cast_nonzero = 0, cast_lost = 0;

  double subnormal_share() const { return share(subnormal, elements - zeros); }  // of those that are not 0
  double lost_share() const { return share(cast_lost, cast_nonzero); }

 private:
  static double share(std::int64_t part, std::int64_t all) {
    return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
  }
};

struct ScaleChange {
  std::uint32_t step = 0;
  double scale = 0;  // that the step was made with
  bool skipped = false;
};

class AmpLedger final : public Watcher {
 public:
  explicit AmpLedger(const AmpLedgerOptions& options = {}) : options_(options) {}

  void on_result(const Tensor& result, std::span<const Tensor* const> inputs, DType compute) override;
  void on_cast(const Tensor& from, const Tensor& to, bool reused) override;
  void on_backward(const Node& node, std::span<const Tensor> grads, std::span<const Tensor> input_grads) override;
  // Between the scaler's step() and update(). Waits for the ticket.
  void step_done(const optim::GradScaler& scaler, const optim::StepTicket& ticket);

  const std::vector<AmpOpRow>& ops() const { return ops_; }  // in order of the first call
  // The first of each (step, micro-batch), in order.
  const std::vector<NonFinite>& non_finite() const { return non_finite_; }
  const std::vector<UnderflowRow>& underflow() const { return underflow_; }
  // Steps that were skipped or made with another scale than the one before.
  const std::vector<ScaleChange>& scale_trace() const { return scale_trace_; }
  std::int64_t steps() const { return steps_; }
  std::int64_t skipped() const { return skipped_; }
  std::uint64_t cast_bytes() const;                                       // of all copies made
  std::uint64_t peak_cache_bytes() const { return peak_cache_bytes_; }

 private:
  void look(const Tensor& x, std::optional<int> gradient_of);
  UnderflowRow& underflow_row(DType dtype);

  AmpLedgerOptions options_;
  std::vector<AmpOpRow> ops_;
  std::map<std::tuple<NameId, NameId, unsigned, DType, DType>, std::size_t> op_rows_;
  AmpOpRow casts_;  // since the last result
  std::vector<NonFinite> non_finite_;
  std::vector<UnderflowRow> underflow_;
  std::map<std::pair<NameId, DType>, std::size_t> underflow_rows_;
  std::vector<ScaleChange> scale_trace_;
  std::optional<double> last_scale_;
  std::int64_t steps_ = 0, skipped_ = 0;
  std::uint64_t peak_cache_bytes_ = 0;
};

std::string to_string(const NonFinite& found);  // "step 3, micro-batch 1: conv2d in conv2, backward: ..."
std::string to_string(const AmpLedger& ledger);
std::string to_json(const AmpLedger& ledger);

}  // namespace limpid::train
