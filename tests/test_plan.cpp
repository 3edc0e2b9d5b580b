// Predictions of train/plan.h against live runs on the CPU, to the byte.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include <nlohmann/json.hpp>

#include <limpid/data/split.h>
#include <limpid/memory/policies.h>
#include <limpid/nn/models/models.h>
#include <limpid/nn/summary.h>
#include <limpid/train/activation_ledger.h>
#include <limpid/train/batch_finders.h>
#include <limpid/train/plan.h>
#include <limpid/train/trainer.h>

#include "live_and_dry.h"

using namespace limpid;
using namespace limpid::train;
using Json = nlohmann::json;

namespace {

PlanSettings plan_of(const std::string& model, std::vector<std::int64_t> input, std::int64_t batch) {
  PlanSettings s;
  s.run.train.model = model;
  s.run.train.input = std::move(input);
  s.run.train.classes = 10;
  s.run.train.batch = batch;
  s.run.train.workers = 2;
  return s;
}

// The same program live, dry and as a replay of the live trace: traces, statistics, reports and every step agree.
void check_predicted_is_live(const PlanSettings& s) {
  CAPTURE(s.run.train.model);
  CAPTURE(s.run.train.batch);
  CAPTURE(s.run.train.optimizer);
  CAPTURE(s.run.accumulate);
  RehearsalResult results[2];
  int run = 0;
  const dry::Options options{.settings = s.allocator, .policy = s.policy};
  const limpid_test::Recorded recorded = limpid_test::same_on_both(
      [&](memory::Allocator& pool, memory::Allocator& io_pool) { results[run++] = rehearse(s.run, pool, io_pool); },
      options);
  const RehearsalResult &live = results[0], dry = results[1];
  const std::uint64_t cap = s.run.train.memory_cap;
  limpid_test::check_replayed(recorded, options, cap ? cap - live.memory.io_reserved : 0);
  CHECK(live.memory.allocated == dry.memory.allocated);
  CHECK(live.memory.reserved == dry.memory.reserved);
  CHECK(live.memory.roles == dry.memory.roles);
  CHECK(live.memory.io_pool == dry.memory.io_pool);
  CHECK(live.memory.io_reserved == dry.memory.io_reserved);
  CHECK(describe_instant(live.memory.scope) == describe_instant(dry.memory.scope));
  CHECK(live.live_peak == dry.live_peak);
  CHECK(live.steady_step == dry.steady_step);
  REQUIRE(live.steps.size() == dry.steps.size());
  for (std::size_t i = 0; i < live.steps.size(); i++) {
    CHECK(live.steps[i].allocated == dry.steps[i].allocated);
    CHECK(live.steps[i].reserved == dry.steps[i].reserved);
    CHECK(live.steps[i].device_calls == dry.steps[i].device_calls);
    CHECK(live.steps[i].layout == dry.steps[i].layout);
  }
  const Prediction predicted = predict(s);
  REQUIRE(predicted.fits);
  CHECK(predicted.run.memory.allocated == live.memory.allocated);
  CHECK(predicted.run.memory.reserved == live.memory.reserved);
}

// The rehearsal live, with what OutOfMemoryError made of it.
bool runs_live(const PlanSettings& s) {
  bool fits = true;
  limpid_test::run_live(
      [&](memory::Allocator& pool, memory::Allocator& io_pool) {
        try {
          rehearse(s.run, pool, io_pool);
        } catch (const memory::OutOfMemoryError&) {
          fits = false;
        }
      },
      {.settings = s.allocator, .policy = s.policy});
  return fits;
}

struct Model {
  const char* name;
  std::vector<std::int64_t> input;
};
const Model kSmall[] = {{"mlp", {1, 28, 28}},      {"seed", {3, 24, 24}},    {"lenet", {1, 12, 12}},
                        {"lenet-bn", {1, 12, 12}}, {"resnet9", {3, 16, 16}}, {"resnet20", {3, 8, 8}}};

}  // namespace

TEST_CASE(
    "predicted = live = replayed for six models, two optimizers, accumulation, a short last batch and validation") {
  int turn = 0;
  for (const Model& m : kSmall) {
    for (const char* optimizer : {"sgd", "adam"}) {
      for (std::int64_t accumulate : {1, 4}) {
        PlanSettings s = plan_of(m.name, m.input, (turn++ % 2) ? 7 : 16);
        s.run.train.optimizer = optimizer;
        s.run.accumulate = accumulate;
        s.run.full_steps = 2;
        s.run.samples = 2 * accumulate * s.run.train.batch + s.run.train.batch / 2;
        s.run.validation = s.run.train.batch + 3;
        check_predicted_is_live(s);
      }
    }
  }
}

// One column of the matrix: batches, optimizers and accumulation, two full steps and a short last one, validation.
static void check_matrix(const Model& m, const char* policy, int* count) {
  for (std::int64_t batch : {1, 7, 16, 32, 33, 64}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      for (std::int64_t accumulate : {1, 4}) {
        PlanSettings s = plan_of(m.name, m.input, batch);
        s.policy = memory::policy_named(policy);
        s.run.train.optimizer = optimizer;
        s.run.accumulate = accumulate;
        s.run.full_steps = 2;
        s.run.samples = 2 * accumulate * batch + std::max<std::int64_t>(batch / 3, 1);
        s.run.validation = batch + 1;
        check_predicted_is_live(s);
        (*count)++;
      }
    }
  }
}

TEST_CASE("long: predicted = live = replayed: six models x batch {1,7,16,32,33,64} x {SGD, Adam} x accumulate {1,4}") {
  const Model kFull[] = {{"mlp", {1, 28, 28}},      {"seed", {3, 64, 64}},    {"lenet", {1, 28, 28}},
                         {"lenet-bn", {1, 28, 28}}, {"resnet9", {3, 32, 32}}, {"resnet20", {3, 32, 32}}};
  int count = 0;
  for (const Model& m : kFull) check_matrix(m, "native", &count);
  CHECK(count == 144);
}

TEST_CASE("long: predicted = live = replayed: the matrix under every other policy, on small images") {
  const Model kTiny[] = {{"mlp", {1, 28, 28}},    {"seed", {3, 24, 24}},    {"lenet", {1, 12, 12}},
                         {"lenet-bn", {1, 8, 8}}, {"resnet9", {3, 16, 16}}, {"resnet20", {3, 8, 8}}};
  int count = 0;
  for (const memory::PolicyEntry& policy : memory::policies()) {
    CAPTURE(std::string(policy.name));
    if (std::string(policy.name) == "native") continue;
    for (const Model& m : kTiny) check_matrix(m, policy.name, &count);
  }
  CHECK(count == 144 * (static_cast<int>(memory::policies().size()) - 1));
}

TEST_CASE("momentum, clipping, label smoothing, drop-last, worker-less loading and other knobs are predicted too") {
  PlanSettings s = plan_of("lenet-bn", {1, 12, 12}, 9);
  s.run.train.optimizer = "sgd";
  s.run.train.momentum = 0.9;
  s.run.train.clip = 1;
  s.run.train.label_smoothing = 0.1;
  s.run.train.workers = 0;
  s.run.train.drop_last = true;
  s.run.samples = 40;
  s.run.test = 21;
  s.run.resident = {1000000, 200000};
  s.run.checkpoints = true;
  check_predicted_is_live(s);
  s.run.train.optimizer = "rmsprop";
  s.run.train.epochs = 1;
  check_predicted_is_live(s);
}

TEST_CASE("predicted = live with the allocator's knobs turned") {
  for (const std::string knobs : {"max_split_size_mb:20", "roundup_power2_divisions:[64:8,256:4,>:1]",
                                  "per_process_memory_fraction:0.5,garbage_collection_threshold:0.6"}) {
    CAPTURE(knobs);
    for (const Model& m : {kSmall[2], kSmall[4]}) {
      PlanSettings s = plan_of(m.name, m.input, 24);
      s.allocator = memory::parse_allocator_settings(knobs);
      s.run.train.memory_cap = std::uint64_t{400} << 20;
      s.run.samples = 60;
      s.run.validation = 30;
      check_predicted_is_live(s);
    }
  }
}

TEST_CASE("predicted = live = replayed under every policy") {
  for (const memory::PolicyEntry& policy : memory::policies()) {
    const std::string name = policy.name;
    CAPTURE(name);
    for (const Model& m : {kSmall[2], kSmall[5]}) {
      PlanSettings s = plan_of(m.name, m.input, 33);
      s.policy = policy.make;
      s.run.samples = 150;
      s.run.validation = 40;
      s.run.accumulate = 2;
      s.run.full_steps = 2;
      check_predicted_is_live(s);
    }
  }
}

TEST_CASE("what is left out of an epoch changes nothing") {
  for (const Model& m : {kSmall[2], kSmall[5]}) {
    PlanSettings s = plan_of(m.name, m.input, 8);
    s.run.samples = 8 * 20 + 3;
    s.run.validation = 8 * 9 + 1;
    const Prediction brief = predict(s);
    s.run.full_steps = 100;
    const Prediction whole = predict(s);
    CHECK(whole.run.steps.size() == 42);
    CHECK(brief.run.steps.size() == 8);
    CHECK(brief.run.memory.allocated == whole.run.memory.allocated);
    CHECK(brief.run.memory.reserved == whole.run.memory.reserved);
    CHECK(brief.run.steady_step == whole.run.steady_step);
    REQUIRE(brief.run.steady_step);
    CHECK(*brief.run.steady_step <= 1);
    CHECK(brief.run.steps.back().layout == whole.run.steps.back().layout);
  }
}

TEST_CASE("the rehearsal makes the trainer's calls") {
  TrainSettings t;
  t.data = "synthetic";
  t.input = {3, 8, 8};
  t.classes = 4;
  t.limit = 65;
  t.val_fraction = 0.2;
  t.model = "resnet20";
  t.epochs = 2;
  t.batch = 16;
  t.workers = 1;
  t.clip = 1;
  struct Event {
    memory::TraceKind kind;
    std::uint64_t bytes;
    memory::Role role;
    Phase phase;
    NameId name, op, module;
    std::uint32_t step;
    bool operator==(const Event&) const = default;
  };
  // From the optimizer's state on; segments aside, because the process's pool is not fresh.
  auto events_of = [](const std::vector<memory::TraceRecord>& trace) {
    std::vector<Event> events;
    auto first = std::find_if(trace.begin(), trace.end(), [](const memory::TraceRecord& r) {
      return r.kind == memory::TraceKind::alloc && r.role == memory::Role::optimizer;
    });
    for (auto r = first; r != trace.end(); ++r) {
      if (r->kind == memory::TraceKind::segment_alloc || r->kind == memory::TraceKind::segment_free) continue;
      events.push_back({r->kind, r->bytes, r->role, r->phase, r->name, r->op, r->module, r->step});
    }
    return events;
  };
  std::vector<memory::TraceRecord> live, dry;
  auto collect = [](std::vector<memory::TraceRecord>& to) {
    return
        [&to](const memory::TraceRecord* records, std::size_t count) { to.insert(to.end(), records, records + count); };
  };
  TrainParts parts = make_parts(t, {});
  parts.test = data::limit(parts.test, 20, 1);
  const std::int64_t samples = parts.training->size(), validation = parts.validation->size();
  memory::Trace& trace = memory::host_allocator().trace();
  trace.set_sink(collect(live));
  {
    ScopeGuard scope{Scope{}};
    Trainer trainer(t, std::move(parts));
    trainer.run();
  }
  trace.flush();
  trace.set_sink({});

  RehearsalSettings r;
  r.train = t;
  r.samples = samples;
  r.validation = validation;
  r.full_steps = 100;
  {
    ScopeGuard scope{Scope{}};
    dry::Run run;
    dry::Placeholder loss(0);
    run.pool().trace().set_sink(collect(dry));
    rehearse(r, run.pool(), run.io_pool());
    run.pool().trace().flush();
    run.pool().trace().set_sink({});
  }
  std::vector<Event> a = events_of(live), b = events_of(dry);
  REQUIRE(b.size() > 1000);
  // The rehearsal ends by freeing its model, the trainer goes on with the test set: up to the end of the last step.
  while (!b.empty() && b.back().kind == memory::TraceKind::free && b.back().phase == Phase::none) b.pop_back();
  REQUIRE(a.size() >= b.size());
  std::size_t same = 0;
  while (same < b.size() && a[same] == b[same]) same++;
  CHECK(same == b.size());
}

TEST_CASE("the first seed's model: its figures and its peak") {
  PlanSettings s = plan_of("seed", {3, 224, 224}, 16);
  const std::uint64_t fused_peak = predict(s).run.live_peak;
  s.run.train.fuse = false;
  const Prediction p = predict(s);
  REQUIRE(p.fits);
  CHECK(2 * fused_peak < p.run.live_peak);
  CHECK(p.run.parameters == 2442);
  CHECK(p.run.memory.scope.phase == Phase::backward);
  CHECK(name_of(p.run.memory.scope.op) == "relu");
  CHECK(name_of(p.run.memory.scope.module) == "1");
  // The loader's ring: three batches of images and classes.
  CHECK(p.run.memory.io_pool >= 3 * 16 * (602112 + 8));
  CHECK(p.run.memory.role(memory::Role::io) == 3 * 16 * (602112 + 8));

  dry::Run run;
  auto model = nn::make_model("seed", {.input = {3, 224, 224}, .classes = 10});
  const nn::ModelSummary summary = nn::summary(*model, {3, 224, 224}, 16);
  CHECK(summary.input_bytes == 602112);
  REQUIRE(summary.layers.size() == 5);
  CHECK(summary.layers[0].output_bytes == 12616704);
  CHECK(summary.layers[1].output_bytes == 12616704);

  // In the backward of ReLU: what it kept, the gradient that comes and the one that goes.
  CHECK(p.run.live_peak > 3ull * 16 * 12616704);
  CHECK(p.run.live_peak < 3ull * 16 * 12616704 + 16 * 602112 + 100000);

  const FinderTable table = compare_finders(s, std::uint64_t{4} << 30);
  CHECK(table.truth == max_batch(s, std::uint64_t{4} << 30).batch);
  const FinderRow& thumb = table.rows[0];
  CHECK(thumb.name == "rule of thumb");
  // Nothing of this model is fixed but 2,442 parameters: the rule holds. It breaks where something is.
  CHECK(thumb.answer == table.truth);
  PlanSettings fixed = plan_of("lenet", {1, 28, 28}, 1);
  fixed.run.train.fuse = false;
  const FinderTable lenet = compare_finders(fixed, std::uint64_t{256} << 20);
  CHECK(lenet.rows[0].answer * 10 < lenet.truth);
  const FinderRow& ours = table.rows.back();
  CHECK(ours.answer == table.truth);
  CHECK(ours.trials == 0);
  CHECK(ours.ooms == 0);
  CHECK(ours.fits);
}

TEST_CASE("the largest batch runs three steps under the cap, and no larger one does") {
  std::mt19937_64 random(7);
  int common = 0;
  for (int i = 0; i < 20; i++) {
    const Model& m = kSmall[1 + i % 5];
    PlanSettings s = plan_of(m.name, m.input, 1);
    s.run.train.optimizer = i % 2 ? "adam" : "sgd";
    s.run.accumulate = i % 3 == 0 ? 2 : 1;
    s.run.train.epochs = 1;
    const std::uint64_t least = predict(s, 2).run.memory.reserved;
    const std::uint64_t cap = least + random() % (std::uint64_t{48} << 20);
    CAPTURE(m.name);
    CAPTURE(cap);
    const MaxBatch best = max_batch(s, cap);
    REQUIRE(best.batch >= 1);
    CHECK(best.runs == best.bound - best.batch + 1);
    // One more by live bytes alone cannot fit.
    CHECK(!predict(
               [&] {
                 PlanSettings t = s;
                 t.run.train.memory_cap = cap;
                 return t;
               }(),
               best.bound + 1)
               .fits);
    s.run.train.memory_cap = cap;
    s.run.train.batch = best.batch;
    REQUIRE(s.run.full_steps == 3);
    CHECK(runs_live(s));
    s.run.train.batch = best.batch + 1;
    CHECK(!runs_live(s));
    common++;
  }
  CHECK(common == 20);
}

TEST_CASE("long: 20 caps under all policies: every batch beyond the largest fails, one by one, up to the bound") {
  std::mt19937_64 random(11);
  std::int64_t failed = 0;
  for (std::size_t i = 0; i < 20; i++) {
    const Model& m = kSmall[i % std::size(kSmall)];
    const memory::PolicyEntry& policy = memory::policies()[i % memory::policies().size()];
    PlanSettings s = plan_of(m.name, m.input, 1);
    s.policy = policy.make;
    s.run.train.optimizer = i % 2 ? "adam" : "sgd";
    s.run.accumulate = i % 3 == 0 ? 4 : 1;
    const std::uint64_t least = predict(s, 2).run.memory.reserved;
    const std::uint64_t cap = least + random() % (std::uint64_t{m.name == std::string("mlp") ? 8u : 48u} << 20);
    CAPTURE(std::string(policy.name));
    CAPTURE(m.name);
    CAPTURE(cap);
    const MaxBatch best = max_batch(s, cap);
    REQUIRE(best.batch >= 1);
    s.run.train.memory_cap = cap;
    for (std::int64_t batch = best.batch + 1; batch <= best.bound + 3; batch++, failed++) {
      CAPTURE(batch);
      CHECK(!predict(s, batch).fits);
    }
    for (std::int64_t batch : {best.batch, best.batch + 1}) {
      s.run.train.batch = batch;
      REQUIRE(s.run.full_steps == 3);
      CHECK(runs_live(s) == (batch == best.batch));
    }
  }
  CHECK(failed > 100);
}

TEST_CASE("a batch may fit into less and not into more, live as predicted") {
  PlanSettings s = plan_of("lenet", {1, 12, 12}, 384);
  s.run.train.fuse = false;
  s.run.samples = 630;
  s.run.validation = 70;
  s.run.test = 2000;
  for (std::uint64_t mib : {40, 44, 60}) {
    CAPTURE(mib);
    s.run.train.memory_cap = mib << 20;
    const Prediction p = predict(s);
    CHECK(p.fits == (mib != 44));
    CHECK(runs_live(s) == p.fits);
  }
  const FinderTable table = compare_finders(s, std::uint64_t{40} << 20);
  CHECK(table.truth == 384);
  CHECK(table.holes > 0);
  CHECK(table.safe < table.truth);
  CHECK(table.scan_runs == table.scan_bound);
}

TEST_CASE("the curve's lines give back every point, and say where they end") {
  PlanSettings s = plan_of("lenet", {1, 12, 12}, 1);
  const Curve curve = plan_curve(s, 1, 64);
  REQUIRE(curve.points.size() == 64);
  REQUIRE(!curve.pieces.empty());
  CHECK(curve.pieces.front().first == 1);
  CHECK(curve.pieces.back().last == 64);
  std::size_t covered = 0;
  for (const CurvePiece& piece : curve.pieces) {
    for (std::int64_t b = piece.first; b <= piece.last; b++, covered++)
      CHECK(static_cast<std::int64_t>(curve.points[static_cast<std::size_t>(b - 1)].live) ==
            piece.fixed + b * piece.per_sample);
  }
  CHECK(covered == 64);
  for (std::int64_t b : {1, 17, 64}) {
    const Prediction p = predict(s, b);
    CHECK(p.run.live_peak == curve.points[static_cast<std::size_t>(b - 1)].live);
    CHECK(static_cast<std::uint64_t>(p.run.stats.get(memory::Metric::reserved_bytes).peak) ==
          curve.points[static_cast<std::size_t>(b - 1)].reserved);
  }
}

TEST_CASE("crossings and changes of algorithm are told apart") {
  auto points = [](auto live) {
    std::vector<CurvePoint> out;
    for (std::int64_t b = 1; b <= 20; b++) out.push_back({.batch = b, .live = static_cast<std::uint64_t>(live(b))});
    return out;
  };
  auto crossing = envelope(points([](std::int64_t b) { return std::max<std::int64_t>(1000 + 10 * b, 500 + 60 * b); }));
  REQUIRE(crossing.size() == 2);
  CHECK(crossing[0].last == 10);
  CHECK(crossing[0].fixed == 1000);
  CHECK(crossing[0].per_sample == 10);
  CHECK(crossing[0].end == CurvePiece::End::crossing);
  CHECK(crossing[1].fixed == 500);
  CHECK(crossing[1].end == CurvePiece::End::range);
  auto drop = envelope(points([](std::int64_t b) { return (b < 8 ? 5000 : 100) + 60 * b; }));
  REQUIRE(drop.size() == 2);
  CHECK(drop[0].last == 7);
  CHECK(drop[0].end == CurvePiece::End::plan);
  // A change between two sizes is not a slope.
  auto steps = envelope(points([](std::int64_t b) { return 60 * b + (b / 5) * 1000; }));
  REQUIRE(steps.size() == 5);
  for (const CurvePiece& piece : steps) CHECK(piece.per_sample == 60);
  CHECK(steps[1].fixed == 1000);
  auto late = envelope(points([](std::int64_t b) { return 60 * b + (b > 1 ? 500 : 0); }));
  REQUIRE(late.size() == 2);
  CHECK(late[0].last == 1);
  CHECK(late[0].per_sample == 60);
  auto single = envelope(points([](std::int64_t b) { return 60 * b + (b == 9 ? 500 : 0); }));
  REQUIRE(single.size() == 3);
  CHECK(single[1].first == 9);
  CHECK(single[1].last == 9);
  CHECK(single[1].per_sample == 60);
  CHECK(envelope({}).empty());
  CHECK(envelope({{.batch = 3, .live = 90}}).front().per_sample == 90);
}

TEST_CASE("the activation ledger sums to the live bytes of role saved at every event") {
  for (const Model& m : kSmall) {
    CAPTURE(m.name);
    RehearsalSettings s = plan_of(m.name, m.input, 5).run;
    const ActivationLedger ledger = activation_ledger(s);
    REQUIRE(!ledger.rows.empty());
    std::uint64_t saved = 0, highest = 0;
    std::vector<memory::Role> role_of(100000, memory::Role::other);
    std::vector<std::uint64_t> mismatches;
    for (std::uint64_t at = 0; at < ledger.trace.size(); at++) {
      const memory::TraceRecord& r = ledger.trace[at];
      REQUIRE(r.id < role_of.size());
      memory::Role& role = role_of[static_cast<std::size_t>(r.id)];
      if (r.kind == memory::TraceKind::alloc || r.kind == memory::TraceKind::role) {
        if (r.kind == memory::TraceKind::role && role == memory::Role::saved) saved -= r.bytes;
        role = r.role;
        if (role == memory::Role::saved) saved += r.bytes;
      } else if (r.kind == memory::TraceKind::free && role == memory::Role::saved) {
        saved -= r.bytes;
        role = memory::Role::other;
      }
      std::uint64_t rows = 0;
      for (const ActivationRow& row : ledger.rows) rows += row.alive_at(at) ? static_cast<std::uint64_t>(row.bytes) : 0;
      if (rows != saved) mismatches.push_back(at);
      highest = std::max(highest, saved);
    }
    CHECK(mismatches.empty());
    CHECK(saved == 0);
    CHECK(highest == static_cast<std::uint64_t>(ledger.bytes()));
    for (const ActivationRow& row : ledger.rows) {
      if (!row.counts()) continue;
      CHECK(row.allocated_at <= row.saved_at);
      CHECK(row.saved_at < ledger.backward_begins);
      CHECK(row.released_at >= ledger.backward_begins);
      CHECK(row.freed_at >= row.released_at);
      CHECK(row.bytes == row.fixed + 5 * row.per_sample);
    }
  }
}

TEST_CASE("the ledger of the first seed's model") {
  RehearsalSettings s = plan_of("seed", {3, 224, 224}, 16).run;
  const ActivationLedger fused = activation_ledger(s);
  s.train.fuse = false;
  const ActivationLedger ledger = activation_ledger(s);
  auto row = [&](const std::string& op, const std::string& slot) {
    for (const ActivationRow& r : ledger.rows)
      if (r.op == op && r.slot == slot) return r;
    FAIL("no row ", op, ".", slot);
    return ActivationRow();
  };
  CHECK(row("conv2d", "x").per_sample == 602112);  // the packed copy of the batch
  CHECK(row("relu", "y").per_sample == 12616704);
  CHECK(row("relu", "y").layer == "1");
  CHECK(row("linear", "weight").role == memory::Role::param);
  CHECK(ledger.bytes() == ledger.fixed() + 16 * ledger.per_sample());
  const Json json = Json::parse(to_json(ledger));
  CHECK(json.size() == ledger.rows.size());
  CHECK(to_string(ledger).find("12,616,704") != std::string::npos);
  // Fused: a bit for each of the 64 channels of 222x222 pixels, and of the loss and the last layer what it was.
  CHECK(fused.per_sample() - ledger.per_sample() == 222 * 222 * 64 / 8 - 12616704);
}

TEST_CASE("aliases are listed and counted once") {
  RehearsalSettings s = plan_of("lenet-bn", {1, 12, 12}, 4).run;
  s.train.fuse = false;  // fused, nothing is kept twice
  const ActivationLedger ledger = activation_ledger(s);
  bool any = false;
  for (std::size_t i = 0; i < ledger.rows.size(); i++) {
    const ActivationRow& row = ledger.rows[i];
    if (!row.alias) continue;
    any = true;
    CHECK(*row.alias < i);
    CHECK(!ledger.rows[*row.alias].alias);
    CHECK(ledger.rows[*row.alias].bytes == row.bytes);
    CHECK(!row.counts());
  }
  CHECK(any);
}

TEST_CASE("what does not fit is an answer, and what makes no sense is an error") {
  PlanSettings s = plan_of("lenet", {1, 12, 12}, 64);
  s.run.train.memory_cap = std::uint64_t{1} << 20;
  const Prediction p = predict(s);
  CHECK(!p.fits);
  REQUIRE(p.oom);
  CHECK(p.oom->capacity == std::uint64_t{1} << 20);
  CHECK(Json::parse(to_json(p)).at("fits") == false);
  CHECK(to_string(p).find("does not fit") != std::string::npos);
  const MaxBatch none = max_batch(plan_of("resnet9", {3, 16, 16}, 1), std::uint64_t{8} << 20);
  CHECK(none.batch == 0);
  CHECK(!none.at);
  CHECK_THROWS_AS(max_batch(s, 0), ArgumentError);
  CHECK_THROWS_AS(plan_curve(s, 3, 2), ArgumentError);
  CHECK_THROWS_AS(plan_curve(s, 1, 2), ArgumentError);
  s.run.accumulate = 0;
  CHECK_THROWS_AS(predict(s), ArgumentError);
  s = plan_of("lenet", {}, 64);
  CHECK_THROWS_AS(predict(s), ArgumentError);
  s = plan_of("nothing", {1, 12, 12}, 64);
  CHECK_THROWS_AS(predict(s), ArgumentError);
  CHECK(default_device() == kCpu);
}

TEST_CASE("a model of the user's is planned by its own code") {
  PlanSettings s = plan_of("", {1, 12, 12}, 4);
  s.run.model = [] { return nn::make_model("lenet", {.input = {1, 12, 12}, .classes = 10}); };
  PlanSettings named = plan_of("lenet", {1, 12, 12}, 4);
  named.run.train.fuse = false;
  CHECK(predict(s).run.live_peak == predict(named).run.live_peak);
}

TEST_CASE("a prediction as JSON has the trainer's names") {
  const Json json = Json::parse(to_json(predict(plan_of("lenet", {1, 12, 12}, 4))));
  CHECK(json.at("fits") == true);
  CHECK(json.at("peak_allocated_bytes").get<std::uint64_t>() > 0);
  CHECK(json.at("memory_at_peak").at("saved").get<std::uint64_t>() > 0);
  CHECK(json.at("compute").at("segments_peak").get<int>() >= 1);
  CHECK(json.at("steps").size() == 6);
}
