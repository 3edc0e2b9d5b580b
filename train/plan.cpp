#include <limpid/train/plan.h>

#include <algorithm>

#include <limpid/autograd/functions.h>
#include <limpid/data/loader.h>
#include <limpid/memory/host_memory.h>
#include <limpid/tensor/backend.h>
#include <limpid/tensor/kernels.h>
#include <limpid/train/parts.h>

namespace limpid::train {

Prediction predict(const PlanSettings& settings) {
  Prediction out;
  out.batch = settings.run.train.batch;
  // The capacity is set by the rehearsal, when the model is there, as a training run does.
  dry::Run run({.settings = settings.allocator, .policy = settings.policy, .device = settings.device});
  dry::Placeholder loss(0);
  try {
    out.run = rehearse(settings.run, run.pool(), run.io_pool(), settings.device);
    out.fits = true;
  } catch (const memory::OutOfMemoryError& error) {
    out.oom = error.info();
  }
  return out;
}

Prediction measure(const PlanSettings& settings) {
  Prediction out;
  out.batch = settings.run.train.batch;
  const Device device = settings.device == kDryCuda ? Device{DeviceType::cuda, 0} : kCpu;
  kernels_for(device);  // or it says what is missing
  std::shared_ptr<memory::MemoryDevice> memory;
  if (device == kCpu) {
    memory = std::make_shared<memory::HostMemory>("cpu");
  } else {
    memory = backend_of(device).memory(device.index);
  }
  memory::Allocator pool(std::move(memory), settings.allocator, settings.policy);
  PoolScope scope(pool, device);
  try {
    out.run = rehearse(settings.run, pool, memory::io_allocator(), device);
    out.fits = true;
  } catch (const memory::OutOfMemoryError& error) {
    out.oom = error.info();
  }
  return out;
}

FittingMicroBatch choose_micro_batch(PlanSettings& settings) {
  FittingMicroBatch out;
  auto fits = [&](std::int64_t micro) {
    settings.run.train.micro_batch = micro;
    Prediction p = predict(settings);
    out.why = p.oom;
    if (p.fits) out.at = std::move(p);
    return p.fits;
  };
  if (const std::int64_t quantum = settings.run.train.quantum; quantum > 0) {  // it decides the memory
    out.tried = 1;
    if (fits(quantum)) {
      out.micro_batch = quantum;
      out.sizes = data::micro_batch_sizes(settings.run.train.batch, quantum, quantum);
    }
    return out;
  }
  bool norm = false;
  {
    dry::Run run;
    const RehearsalSettings& s = settings.run;
    norm = has_batch_norm(s.model ? *s.model() : *make_model(s.train));
  }
  static_cast<MicroBatchChoice&>(out) = choose_micro_batch(settings.run.train.batch, fits, norm ? kSmallBatchNorm : 1);
  if (out.micro_batch == 0 && norm) {
    const std::int64_t tried = out.tried;
    out.below_batch_norm = true;
    static_cast<MicroBatchChoice&>(out) = choose_micro_batch(settings.run.train.batch, fits, 2);
    out.tried += tried;
  }
  settings.run.train.micro_batch = out.micro_batch < settings.run.train.batch ? out.micro_batch : 0;
  return out;
}

Prediction predict(PlanSettings settings, std::int64_t batch) {
  settings.run.train.batch = batch;
  return predict(settings);
}

namespace {

// What the graph keeps at the end of a forward pass, and the parameters.
struct ForwardBytes {
  std::int64_t saved = 0, params = 0;
};
ForwardBytes forward_bytes(const PlanSettings& settings, std::int64_t batch) {
  const RehearsalSettings& s = settings.run;
  dry::Run run({.device = settings.device});
  const Shape input(s.train.input);
  const std::shared_ptr<nn::Module> model = s.model ? s.model() : make_model(s.train);
  model->to(settings.device);
  model->train();
  Shape x_shape = input;
  x_shape.insert(0, batch);
  const Tensor x = zeros(x_shape, {.device = settings.device, .role = memory::Role::io});
  const Tensor y = zeros({batch}, {.dtype = int64, .device = settings.device, .role = memory::Role::io});
  PhaseScope phase(Phase::forward);
  const Tensor loss = cross_entropy((*model)(x), y);
  const memory::Ledger ledger = run.pool().ledger();
  return {static_cast<std::int64_t>(ledger.role(memory::Role::saved)),
          static_cast<std::int64_t>(ledger.role(memory::Role::param))};
}

// The largest batch whose unavoidable bytes are within the capacity.
std::int64_t live_bound(const PlanSettings& settings, std::uint64_t capacity, std::int64_t limit) {
  const RehearsalSettings& s = settings.run;
  // Two sizes that batch norm accepts.
  const ForwardBytes two = forward_bytes(settings, 2), three = forward_bytes(settings, 3);
  std::int64_t per_sample = three.saved - two.saved;
  const std::int64_t fixed = two.saved - 2 * per_sample + two.params;
  if (s.samples == 0 && settings.device == kDryCpu) {  // the ring of the training loader grows with the batch
    const std::int64_t slots = s.train.workers > 0 ? data::LoaderOptions().prefetch + 1 : 1;
    per_sample += slots * (Shape(s.train.input).numel() * 4 + 8);
  }
  const std::int64_t room = static_cast<std::int64_t>(std::min<std::uint64_t>(capacity, INT64_MAX)) - fixed;
  if (room <= 0 || per_sample <= 0) return room <= 0 ? 0 : limit;
  return std::min(limit, room / per_sample);
}

}  // namespace

MaxBatch max_batch(PlanSettings settings, std::uint64_t capacity, std::int64_t limit,
                   const std::function<void(std::int64_t, std::int64_t)>& progress) {
  LIMPID_CHECK(capacity > 0, ArgumentError, "[plan] the capacity must be positive");
  settings.run.train.memory_cap = capacity;
  MaxBatch out;
  out.bound = live_bound(settings, capacity, limit);
  for (std::int64_t batch = out.bound; batch >= 1; batch--) {
    if (progress) progress(batch, out.bound);
    Prediction p = predict(settings, batch);
    out.runs++;
    if (p.fits) {
      out.batch = batch;
      out.at = std::move(p);
      break;
    }
    out.beyond = std::move(p);
  }
  return out;
}

Curve plan_curve(const PlanSettings& settings, std::int64_t first, std::int64_t last,
                 const std::function<void(std::int64_t)>& progress) {
  LIMPID_CHECK(first >= 1 && first <= last, ArgumentError,
               "[plan] a range of batch sizes is FIRST:LAST with 1 <= first <= "
               "last, got ",
               first, ":", last);
  Curve curve;
  for (std::int64_t batch = first; batch <= last; batch++) {
    if (progress) progress(batch);
    const Prediction p = predict(settings, batch);
    LIMPID_CHECK(p.fits, ArgumentError, "[plan] batch ", batch, " does not fit into the capacity of ",
                 settings.run.train.memory_cap, " bytes: ", memory::to_string(*p.oom));
    const memory::Stats& stats = p.run.stats;
    curve.points.push_back({.batch = batch,
                            .live = p.run.live_peak,
                            .allocated = static_cast<std::uint64_t>(stats.get(memory::Metric::allocated_bytes).peak),
                            .reserved = static_cast<std::uint64_t>(stats.get(memory::Metric::reserved_bytes).peak),
                            .segments = stats.get(memory::Metric::segment).peak,
                            .io = p.run.memory.io_reserved,
                            .scope = p.run.memory.scope});
  }
  curve.pieces = envelope(curve.points);
  return curve;
}

std::vector<CurvePiece> envelope(const std::vector<CurvePoint>& points) {
  std::vector<CurvePiece> pieces;
  auto live = [&](std::size_t i) { return static_cast<std::int64_t>(points[i].live); };
  auto rise = [&](std::size_t i) { return live(i + 1) - live(i); };
  // Two sizes make a line only when a third one confirms it: a change of plan between two sizes is no slope.
  auto confirmed = [&](std::size_t i) { return i + 2 < points.size() && rise(i) == rise(i + 1); };
  for (std::size_t i = 0; i < points.size();) {
    std::int64_t slope = 0;
    if (confirmed(i)) {
      slope = rise(i);
    } else if (!pieces.empty()) {
      slope = pieces.back().per_sample;  // a size alone keeps the slope before it
    } else {
      std::size_t next = i;  // at the start of the range, that behind it
      while (next + 2 < points.size() && !confirmed(next)) next++;
      slope = confirmed(next) ? rise(next) : i + 1 < points.size() ? rise(i) : live(i);
    }
    std::size_t end = i;
    while (end + 1 < points.size() && rise(end) == slope) end++;
    pieces.push_back({.first = points[i].batch,
                      .last = points[end].batch,
                      .fixed = live(i) - slope * points[i].batch,
                      .per_sample = slope,
                      .scope = points[end].scope});
    i = end + 1;
  }
  for (std::size_t i = 0; i + 1 < pieces.size(); i++) {
    // A steeper line that lay below the other one until here, and lies above it from here on.
    const CurvePiece &a = pieces[i], &b = pieces[i + 1];
    const bool crossed = b.per_sample > a.per_sample &&
                         b.fixed + b.per_sample * b.first >= a.fixed + a.per_sample * b.first &&
                         a.fixed + a.per_sample * a.last >= b.fixed + b.per_sample * a.last;
    pieces[i].end = crossed ? CurvePiece::End::crossing : CurvePiece::End::plan;
  }
  return pieces;
}

}  // namespace limpid::train
