// GradScaler: 10,000-step traces against PyTorch's, its errors, and steps that the device calls off.
#include <doctest/doctest.h>

#include <cmath>

#include <limpid/memory/allocator.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/clip_grad.h>
#include <limpid/optim/grad_scaler.h>
#include <limpid/optim/lr_scheduler.h>
#include <limpid/optim/rmsprop.h>
#include <limpid/optim/sgd.h>
#include <limpid/tensor/raw.h>

#include "golden.h"

using namespace limpid;
using namespace limpid::optim;

namespace {

// As make_amp_golden.py.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
bool found(std::uint64_t step, std::uint64_t which, std::uint64_t per_10000) { return mix(2 * step + which) % 10000 < per_10000; }

Tensor leaf(std::int64_t n, DType dtype = float32) { return zeros({n}, {.dtype = dtype}).requires_grad_(); }
void give(Tensor& p, double value) { p.set_grad(full(p.shape(), value, {.dtype = p.dtype()})); }

struct Ready {  // one parameter with a gradient, and a scale
  Tensor p = leaf(3);
  SGD sgd{{p}, {.lr = 1}};
  GradScaler scaler;
  explicit Ready(const GradScalerOptions& options = {}) : scaler(options) {
    scaler.scale(zeros({}));
    give(p, 1);
  }
};

}  // namespace

TEST_CASE("scale and growth tracker over 10,000 steps are PyTorch's, bit for bit") {
  golden::Tensors all = golden::load("grad_scaler");
  for (const char* name : {"defaults", "rounding", "busy", "grows", "falls"}) {
    INFO(name);
    golden::Tensors trace = golden::below(all, name);
    std::vector<double> c = trace.at("config").to_vector<double>(), scales = trace.at("scale").to_vector<double>();
    std::vector<std::int64_t> at = trace.at("at").to_vector<std::int64_t>(), tracker = trace.at("tracker").to_vector<std::int64_t>();
    Tensor p = leaf(1);
    SGD sgd({p}, {.lr = 1});
    GradScaler scaler({.init_scale = c[0], .growth_factor = c[1], .backoff_factor = c[2],
                       .growth_interval = static_cast<std::int64_t>(c[3])});
    scaler.scale(zeros({}));
    std::size_t change = 0, wrong = 0;
    std::int64_t happened = 0;
    for (std::size_t step = 0; step < tracker.size(); step++) {
      bool inf = found(step, 0, static_cast<std::uint64_t>(c[4]));
      give(p, inf ? INFINITY : 0);
      StepTicket ticket = scaler.step(sgd);
      happened += ticket.stepped();
      wrong += ticket.skipped() != inf;
      scaler.update();
      if (change + 1 < at.size() && at[change + 1] == static_cast<std::int64_t>(step)) change++;
      wrong += scaler.get_scale() != scales[change];
      wrong += scaler.get_growth_tracker() % 256 != tracker[step];
    }
    CHECK(tracker.size() == 10000);
    CHECK(change == at.size() - 1);
    CHECK(wrong == 0);
    CHECK(sgd.steps() == happened);
  }
}

TEST_CASE("two optimizers skip their own steps; the scale backs off for both") {
  golden::Tensors all = golden::load("grad_scaler");
  Tensor p[2];
  for (Tensor& t : p) {
    t = from_vector(std::vector<double>{-1, -0.5, 0, 0.5, 1}, {5}).requires_grad_();
  }
  Adam adam({p[0]}, {.lr = 1e-2});
  SGD sgd({p[1]}, {.lr = 1e-2, .momentum = 0.9});
  Optimizer* optimizers[] = {&adam, &sgd};
  GradScaler scaler({.growth_interval = 8});
  scaler.scale(zeros({}));
  for (std::uint64_t step = 0; step < 10000; step++) {
    for (std::uint64_t which = 0; which < 2; which++) {
      std::vector<double> g;
      for (std::uint64_t i = 0; i < 5; i++) g.push_back(static_cast<double>(mix(7 * step + 5 * which + i + 1000000) % 2001) / 1000 - 1);
      for (double& v : g) v *= scaler.get_scale();
      if (found(step, which, 300)) g[step % 5] = step % 2 ? NAN : -INFINITY;
      p[which].set_grad(from_vector(g, {5}));
      scaler.step(*optimizers[which]);
    }
    scaler.update();
    if (step % 500 != 499) continue;
    for (int which = 0; which < 2; which++) {
      Tensor expected = all.at(which ? "sgd.params" : "adam.params").select(0, static_cast<std::int64_t>(step / 500));
      CHECK(golden::difference(p[which], expected) <= 1e-12);
    }
  }
  CHECK(scaler.get_scale() == all.at("two.scale").item());
  CHECK(adam.steps() == all.at("adam.steps").item_int());
  CHECK(adam.state_dict().tensors.at("state.0.step").item_int() == adam.steps());
}

TEST_CASE("scale multiplies, differentiably, and keeps no history of its own") {
  GradScaler scaler({.init_scale = 8});
  Tensor x = full({}, 3.0).requires_grad_();
  CHECK(scaler.get_scale() == 8);
  Tensor y = scaler.scale(x);
  CHECK(y.item() == 24);
  y.backward();
  CHECK(x.grad().item() == 8);
  std::vector<Tensor> both = scaler.scale(std::vector<Tensor>{x, full({2}, 1.0, {.dtype = float16})});
  CHECK(both[0].item() == 24);
  CHECK(both[1].to_vector<double>() == std::vector<double>{8, 8});
  CHECK_THROWS_WITH_AS(scaler.scale(Tensor()), "[grad_scaler] scale() expects floating tensors, got undefined", ArgumentError);
  CHECK_THROWS_AS(scaler.scale(zeros({}, {.dtype = int64})), ArgumentError);
}

TEST_CASE("prepared, a step makes no memory that stays") {
  Tensor p = leaf(3);
  SGD sgd({p}, {.lr = 1});
  GradScaler scaler;
  scaler.prepare(p.device());
  CHECK(scaler.get_scale() == 65536);
  memory::Allocator& pool = memory::host_allocator();
  const std::uint64_t before = pool.ledger().live_total;
  scaler.scale(zeros({}));
  CHECK(pool.ledger().live_total == before);
  GradScaler disabled({.enabled = false});
  disabled.prepare(p.device());
  CHECK(pool.ledger().live_total == before);
}

TEST_CASE("unscaling: every dtype, also where infinities are") {
  for (DType dtype : {float64, float32, bfloat16}) {
    Tensor p = leaf(100000, dtype);  // several pieces
    SGD sgd({p}, {.lr = 1});
    GradScaler scaler({.init_scale = 4});
    scaler.scale(zeros({}));
    give(p, 6);
    scaler.unscale_(sgd);
    CHECK(p.grad().to_vector<double>() == std::vector<double>(100000, 1.5));
    CHECK(scaler.step(sgd).stepped());
    scaler.update();
    for (double bad : {static_cast<double>(INFINITY), -static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      std::vector<double> values(100000, 6.0);
      values[77777] = bad;
      p.set_grad(from_vector(values, {100000}).to(dtype));
      Tensor before = p.detach().clone();
      StepTicket ticket = scaler.step(sgd);
      CHECK(ticket.skipped());
      CHECK(ticket.found_inf().item() == 1);
      std::vector<double> after = p.grad().to_vector<double>();
      CHECK(after[0] == 6 / scaler.get_scale());
      CHECK_FALSE(std::isfinite(after[77777]));
      CHECK(golden::difference(p.detach(), before) == 0);
      scaler.update();
    }
  }
}

TEST_CASE("a strided gradient is unscaled as a whole") {
  Tensor p = zeros({4, 3}).requires_grad_();
  SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 2});
  scaler.scale(zeros({}));
  p.set_grad(full({1}, 4.0).expand({4, 3}));
  CHECK(scaler.step(sgd).stepped());
  CHECK(p.to_vector<double>() == std::vector<double>(12, -2.0));
}

TEST_CASE("f16 gradients are refused") {
  Tensor p = leaf(2, float16);
  SGD sgd({p}, {.lr = 1});
  GradScaler scaler;
  scaler.scale(zeros({}));
  give(p, 1);
  CHECK_THROWS_WITH_AS(scaler.unscale_(sgd), doctest::Contains("f16 gradients cannot be unscaled"), DTypeError);
  CHECK_THROWS_AS(scaler.step(sgd), DTypeError);
  CHECK(scaler.state_dict().size() == 5);  // nothing was noted
}

TEST_CASE("misuse is told") {
  Tensor lonely = leaf(1);
  SGD without({lonely}, {.lr = 1});
  {
    Ready r;
    GradScaler fresh;
    CHECK_THROWS_WITH_AS(fresh.step(r.sgd), doctest::Contains("step() was called, but there is no scale yet"), ArgumentError);
    CHECK_THROWS_WITH_AS(fresh.unscale_(r.sgd), doctest::Contains("unscale_() was called, but"), ArgumentError);
    CHECK_THROWS_WITH_AS(fresh.update(), doctest::Contains("update() was called, but"), ArgumentError);
    CHECK_THROWS_AS(fresh.update(2.0), ArgumentError);
  }
  {
    Ready r;
    r.scaler.unscale_(r.sgd);
    CHECK_THROWS_WITH_AS(r.scaler.unscale_(r.sgd), "[grad_scaler] unscale_() has already been called on this SGD since the last update()", ArgumentError);
    CHECK_THROWS_WITH_AS(r.scaler.state_dict(), doctest::Contains("belongs after update()"), ArgumentError);
    r.scaler.step(r.sgd);
    CHECK_THROWS_WITH_AS(r.scaler.unscale_(r.sgd), "[grad_scaler] unscale_() is being called after step() of this SGD", ArgumentError);
    CHECK_THROWS_WITH_AS(r.scaler.step(r.sgd), "[grad_scaler] step() has already been called on this SGD since the last update()", ArgumentError);
    CHECK_THROWS_AS(r.scaler.state_dict(), ArgumentError);
    r.scaler.update();
    give(r.p, 1);
    CHECK(r.scaler.step(r.sgd).stepped());
    r.scaler.abandon();
    CHECK(r.scaler.state_dict().size() == 5);
    CHECK(r.scaler.step(r.sgd).stepped());
  }
  {
    Ready r;
    CHECK_THROWS_WITH_AS(r.scaler.update(), doctest::Contains("no inf checks were recorded prior to update()"), ArgumentError);
    CHECK_THROWS_WITH_AS(r.scaler.step(without), "[grad_scaler] no inf checks were recorded for this SGD: none of its 1 parameters has a gradient", ArgumentError);
    r.scaler.unscale_(without);
    CHECK_THROWS_AS(r.scaler.update(), ArgumentError);
  }
  CHECK_THROWS_WITH_AS(GradScaler({.growth_factor = 1}), "[grad_scaler] the growth factor must be > 1, got 1", ArgumentError);
  CHECK_THROWS_WITH_AS(GradScaler({.backoff_factor = 1}), doctest::Contains("backoff factor must be between 0 and 1, got 1"), ArgumentError);
  CHECK_THROWS_WITH_AS(GradScaler({.growth_interval = 0}), "[grad_scaler] the growth interval must be positive, got 0", ArgumentError);
  CHECK_THROWS_WITH_AS(GradScaler({.init_scale = 1e39}), doctest::Contains("must be positive and finite in f32"), ArgumentError);
  GradScaler scaler;
  CHECK_THROWS_AS(scaler.set_growth_factor(0.5), ArgumentError);
  CHECK_THROWS_AS(scaler.set_backoff_factor(2), ArgumentError);
  CHECK_THROWS_AS(scaler.set_growth_interval(-1), ArgumentError);
}

TEST_CASE("update with a given scale leaves the tracker alone") {
  Ready r;
  r.scaler.step(r.sgd);
  r.scaler.update();
  CHECK(r.scaler.get_growth_tracker() == 1);
  r.scaler.update(8.0);
  CHECK(r.scaler.get_scale() == 8);
  CHECK(r.scaler.get_growth_tracker() == 1);
  r.scaler.update(full({1}, 32.0));
  CHECK(r.scaler.get_scale() == 32);
  CHECK_THROWS_WITH_AS(r.scaler.update(full({2}, 32.0)), doctest::Contains("must be one f32 without a gradient"), ArgumentError);
  CHECK_THROWS_AS(r.scaler.update(full({1}, 32.0, {.dtype = float64})), ArgumentError);
  CHECK_THROWS_AS(r.scaler.update(full({1}, 32.0).requires_grad_()), ArgumentError);
  CHECK_THROWS_AS(r.scaler.update(-1.0), ArgumentError);
}

TEST_CASE("state goes round, before and after the first scale") {
  Ready r({.init_scale = 100, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 5});
  for (int i = 0; i < 7; i++) {
    give(r.p, i == 1 ? NAN : 1);
    r.scaler.step(r.sgd);
    r.scaler.update();
  }
  std::map<std::string, double> state = r.scaler.state_dict();
  CHECK(state == std::map<std::string, double>{{"scale", 75}, {"growth_factor", 3}, {"backoff_factor", 0.25}, {"growth_interval", 5}, {"_growth_tracker", 0}});
  for (bool scaled : {false, true}) {
    GradScaler other;
    if (scaled) other.scale(zeros({}));
    other.load_state_dict(state);
    CHECK(other.state_dict() == state);
    CHECK(other.scale(ones({})).item() == 75);
  }
  GradScaler other;
  CHECK_THROWS_WITH_AS(other.load_state_dict({}), doctest::Contains("the state is empty"), DataError);
  for (const auto& [name, value] : state) {
    std::map<std::string, double> broken = state;
    broken.erase(name);
    CHECK_THROWS_WITH_AS(other.load_state_dict(broken), doctest::Contains(name.c_str()), DataError);
    broken[name] = -1;
    CHECK_THROWS_AS(other.load_state_dict(broken), DataError);
    broken[name] = NAN;
    CHECK_THROWS_AS(other.load_state_dict(broken), DataError);
  }
  CHECK(other.get_scale() == 65536);  // nothing changed
}

TEST_CASE("disabled, it is not there") {
  Ready r({.enabled = false});
  Tensor x = ones({});
  CHECK(r.scaler.scale(x).is_same(x));
  r.scaler.unscale_(r.sgd);
  r.scaler.unscale_(r.sgd);
  CHECK(r.scaler.step(r.sgd).stepped());
  CHECK(r.p.to_vector<double>() == std::vector<double>{-1, -1, -1});
  give(r.p, INFINITY);
  CHECK(r.scaler.step(r.sgd).stepped());
  r.scaler.update();
  r.scaler.update(3.0);
  CHECK(r.scaler.get_scale() == 1);
  CHECK(r.scaler.get_growth_tracker() == 0);
  CHECK(r.scaler.state_dict().empty());
  r.scaler.load_state_dict({});
}

TEST_CASE("clipping sees unscaled gradients") {
  Ready r;
  r.p.set_grad(from_vector(std::vector<float>{3 * 65536.f, 4 * 65536.f, 0}, {3}));
  r.scaler.unscale_(r.sgd);
  CHECK(clip_grad_norm_({r.p}, 1.0) == doctest::Approx(5));
  r.scaler.step(r.sgd);
  CHECK(r.p.to_vector<double>()[0] == doctest::Approx(-0.6));
}

TEST_CASE("a skipped step does not advance the schedule") {
  Ready r({.init_scale = 1});
  Scheduler scheduler(r.sgd, StepLR({.step_size = 1, .gamma = 0.5}), Unit::step);
  for (double g : {1.0, static_cast<double>(INFINITY), 1.0}) {
    give(r.p, g);
    StepTicket ticket = r.scaler.step(r.sgd);
    r.scaler.update();
    if (ticket.stepped()) scheduler.step();
  }
  CHECK(scheduler.count() == 2);
  CHECK(r.sgd.lr() == 0.25);
  CHECK(r.p.to_vector<double>()[0] == -1 - 0.5 / 0.5);  // the scale had backed off to 0.5
}

// ---- Optimizer::step(found_inf)

namespace {
template <class O, class Options>
void check_called_off_steps_leave_no_trace(const Options& options) {
  for (DType dtype : {float64, float32, bfloat16}) {
    Tensor a = full({7}, 0.5, {.dtype = dtype}).requires_grad_(), b = full({7}, 0.5, {.dtype = dtype}).requires_grad_();
    Tensor a2 = full({2}, 0.5, {.dtype = dtype}).requires_grad_(), b2 = full({2}, 0.5, {.dtype = dtype}).requires_grad_();
    O plain({a, a2}, options), guarded({b, b2}, options);
    for (int step = 0; step < 30; step++) {
      const bool off = mix(static_cast<std::uint64_t>(step)) % 3 == 0 || step == 0;
      const bool second = step % 4 != 3;  // at times a2, b2 have no gradient
      const double g = off ? INFINITY : 0.1 * (step % 5) - 0.15;
      for (Tensor* t : {&a, &b}) give(*t, g);
      for (Tensor* t : {&a2, &b2}) t->set_grad(Tensor());
      if (second) give(a2, g), give(b2, g);
      if (!off) plain.step();
      if (step % 7 == 6 && !off) {
        guarded.step();
      } else {
        guarded.step(full({}, off ? 1.0 : 0.0));
      }
      if (step % 11 == 10) CHECK(guarded.steps() == plain.steps());
    }
    CHECK(golden::difference(a, b) == 0);
    CHECK(golden::difference(a2, b2) == 0);
    OptimizerState x = plain.state_dict(), y = guarded.state_dict();
    CHECK(x.scalars == y.scalars);
    for (const auto& [name, tensor] : x.tensors) {
      INFO(name);
      CHECK(golden::difference(tensor, y.tensors.at(name)) == 0);
    }
    guarded.load_state_dict(x);
    CHECK(guarded.steps() == plain.steps());
  }
}

// A rule that knows nothing of guards.
class PlainDescent : public Optimizer {
 public:
  explicit PlainDescent(const std::vector<Tensor>& params) { add_group(params, {nullptr, nullptr, nullptr}); }
  const char* name() const override { return "PlainDescent"; }

 protected:
  void update(std::size_t, std::span<OptimChunk> chunks, std::int64_t) override {
    for (OptimChunk& c : chunks) raw::add_scaled(c.param, c.grad, -lr_);
  }
  void visit_options(std::size_t, const OptionVisitor& visit) override { visit("lr", lr_); }
  void check_options(std::size_t) const override {}

 private:
  double lr_ = 1;
};
}  // namespace

TEST_CASE("steps that are called off leave no trace in any rule") {
  check_called_off_steps_leave_no_trace<SGD>(SGDOptions{.lr = 0.1});
  check_called_off_steps_leave_no_trace<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1});
  check_called_off_steps_leave_no_trace<Adam>(AdamOptions{.lr = 0.1, .amsgrad = true});
  check_called_off_steps_leave_no_trace<AdamW>(AdamWOptions{.lr = 0.1});
  check_called_off_steps_leave_no_trace<RMSprop>(RMSpropOptions{.lr = 0.1, .momentum = 0.5, .centered = true});
}

TEST_CASE("an optimizer that cannot skip on the device is not stepped") {
  Tensor p = leaf(2);
  PlainDescent descent({p});
  GradScaler scaler({.init_scale = 2});
  scaler.scale(zeros({}));
  for (double g : {2.0, static_cast<double>(NAN), 1.0}) {
    give(p, g);
    scaler.step(descent);
    scaler.update();
  }
  CHECK(p.to_vector<double>() == std::vector<double>{-2, -2});
  CHECK(descent.steps() == 2);
  CHECK_THROWS_WITH_AS(descent.step(zeros({2})), doctest::Contains("found_inf must be one f32"), ArgumentError);
  CHECK_THROWS_AS(descent.step(zeros({}, {.dtype = float64})), ArgumentError);
}
