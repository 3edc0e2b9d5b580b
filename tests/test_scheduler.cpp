// Schedules against PyTorch's over 1,000 steps (golden/make_nn_golden.py), the Scheduler, and errors.
#include <functional>

#include <limpid/optim/adam.h>
#include <limpid/optim/lr_scheduler.h>
#include <limpid/optim/sgd.h>

#include "golden.h"

using namespace limpid;
using namespace limpid::optim;

namespace {

std::map<std::string, std::shared_ptr<Schedule>> schedules() {
  return {
      {"step", share(StepLR({.step_size = 30, .gamma = 0.7}))},
      {"multistep", share(MultiStepLR({.milestones = {10, 200, 200, 650}, .gamma = 0.3}))},
      {"exponential", share(ExponentialLR({.gamma = 0.995}))},
      {"cosine", share(CosineAnnealing({.t_max = 1000, .eta_min = 0.001}))},
      {"cosine_rising", share(CosineAnnealing({.t_max = 300, .eta_min = 0.01}))},
      {"linear", share(LinearWarmup({.steps = 100, .start_factor = 0.25}))},
      {"onecycle", share(OneCycle({.max_lr = 0.7, .total_steps = 1000}))},
      {"onecycle_linear", share(OneCycle({.max_lr = 0.7,
                                          .total_steps = 1000,
                                          .pct_start = 0.17,
                                          .linear = true,
                                          .div_factor = 10,
                                          .final_div_factor = 50}))},
      {"onecycle_three", share(OneCycle({.max_lr = 0.7, .total_steps = 1000, .three_phase = true}))},
      {"sequential",
       share(SequentialSchedule({share(LinearWarmup({.steps = 50, .start_factor = 0.01})),
                                 share(CosineAnnealing({.t_max = 700})), share(ExponentialLR({.gamma = 0.99}))},
                                {50, 750}))},
  };
}

Tensor param() {
  Tensor p = zeros({1});
  p.requires_grad_();
  return p;
}

}  // namespace

TEST_CASE("1,000 steps of every schedule agree with PyTorch") {
  auto file = golden::load("schedules");
  std::size_t columns = 0;
  for (const auto& [name, schedule] : schedules()) {
    CAPTURE(name);
    REQUIRE(file.count(name) == 1);
    // PyTorch extrapolates one-cycle at t = total_steps; ours keeps the last value, so that is left out.
    std::size_t count = name.starts_with("onecycle") ? 1000 : 1001;
    auto expected = file[name].to_vector<double>();
    columns++;
    double worst = 0;
    for (std::size_t t = 0; t < count; t++)
      worst = std::max(worst, std::abs(schedule->lr(0.3, static_cast<std::int64_t>(t)) - expected[t]) / expected[t]);
    CHECK(worst <= 1e-12);
    CHECK(schedule->momentum(0).has_value() == (file.count(name + ".momentum") == 1));
    if (!file.count(name + ".momentum")) continue;
    columns++;
    auto momenta = file[name + ".momentum"].to_vector<double>();
    worst = 0;
    for (std::size_t t = 0; t < count; t++)
      worst = std::max(worst, std::abs(*schedule->momentum(static_cast<std::int64_t>(t)) - momenta[t]) / momenta[t]);
    CHECK(worst <= 1e-12);
  }
  CHECK(columns == file.size());
}

TEST_CASE("warmup from zero, constant, the end of one-cycle, exact ends of the cosine") {
  LinearWarmup warmup({.steps = 4});
  CHECK(warmup.lr(0.8, 0) == 0);
  CHECK(warmup.lr(0.8, 1) == 0.2);
  CHECK(warmup.lr(0.8, 4) == 0.8);
  CHECK(warmup.lr(0.8, 400) == 0.8);
  CHECK(ConstantLR({.factor = 0.5}).lr(0.8, 77) == 0.4);
  OneCycle cycle({.max_lr = 1, .total_steps = 10});
  CHECK(cycle.lr(0, 0) == doctest::Approx(1.0 / 25));
  CHECK(cycle.lr(0, 2) == doctest::Approx(1));
  CHECK(cycle.lr(0, 9) == doctest::Approx(1 / 25e4));
  CHECK(cycle.lr(0, 10) == cycle.lr(0, 9));
  CHECK_THROWS_AS(cycle.lr(0, 11), IndexError);
  CHECK_FALSE(OneCycle({.max_lr = 1, .total_steps = 10, .cycle_momentum = false}).momentum(3).has_value());
  CosineAnnealing cosine({.t_max = 7});
  CHECK(cosine.lr(0.8, 0) == 0.8);
  CHECK(cosine.lr(0.8, 7) == 0);
  CHECK(cosine.lr(0.8, 14) == 0.8);
  CHECK(cosine.lr(0.8, 7 + 14'000'000) == 0);
}

TEST_CASE("a Scheduler sets every group and counts") {
  SGD sgd({{.params = {param()}, .options = {.lr = 1}}, {.params = {param()}, .options = {.lr = 2}}});
  Scheduler scheduler(sgd, StepLR({.step_size = 2, .gamma = 0.5}), Unit::epoch);
  CHECK(scheduler.unit() == Unit::epoch);
  CHECK(std::string(to_string(scheduler.unit())) == "epoch");
  CHECK(scheduler.schedule().describe() == "StepLR(step_size=2, gamma=0.5)");
  CHECK(sgd.lr(0) == 1);
  scheduler.step();
  CHECK(sgd.lr(1) == 2);
  scheduler.step();
  CHECK(sgd.lr(0) == 0.5);
  CHECK(sgd.lr(1) == 1);
  CHECK(scheduler.count() == 2);
  // Closed form: an edited rate does not drift into the schedule.
  sgd.set_lr(77);
  scheduler.step();
  scheduler.step();
  CHECK(sgd.lr(0) == 0.25);
  CHECK(scheduler.lr(1) == 0.5);
  CHECK(scheduler.lr_at(6, 1) == 0.25);
  CHECK_THROWS_AS(scheduler.lr(2), IndexError);
}

TEST_CASE("warmup from zero moves nothing at the first step") {
  Tensor p = param();
  SGD sgd({p}, {.lr = 1});
  Scheduler scheduler(sgd, LinearWarmup({.steps = 2}), Unit::step);
  for (double expected : {0.0, -0.5, -1.5, -2.5}) {
    p.set_grad(ones({1}));
    sgd.step();
    scheduler.step();
    CHECK(p.item() == expected);
  }
}

TEST_CASE("one-cycle turns the momentum or beta1") {
  SGD sgd({param()}, {.momentum = 0.9});
  Scheduler a(sgd, OneCycle({.max_lr = 1, .total_steps = 10}), Unit::step);
  CHECK(sgd.options().momentum == 0.95);
  Adam adam({param()});
  Scheduler b(adam, OneCycle({.max_lr = 1, .total_steps = 10}), Unit::step);
  CHECK(adam.options().beta1 == 0.95);
  b.step();
  b.step();
  CHECK(adam.options().beta1 == doctest::Approx(0.85));
  for (int i = 2; i < 10; i++) b.step();
  CHECK_THROWS_AS(b.step(), IndexError);
  CHECK(b.count() == 10);
}

TEST_CASE("a Scheduler's state continues where it was") {
  SGD first({param()}, {.lr = 0.3});
  Scheduler a(first, CosineAnnealing({.t_max = 100}), Unit::step);
  for (int i = 0; i < 37; i++) a.step();
  SGD second({param()}, {.lr = 0.7});
  Scheduler b(second, CosineAnnealing({.t_max = 100}), Unit::step);
  b.load_state_dict(a.state_dict());
  CHECK(second.lr() == first.lr());
  a.step();
  b.step();
  CHECK(second.lr() == first.lr());
  auto state = a.state_dict();
  state.erase("count");
  CHECK_THROWS_AS(b.load_state_dict(state), DataError);
  state = a.state_dict();
  state["count"] = 1.5;
  CHECK_THROWS_AS(b.load_state_dict(state), DataError);
  state["count"] = -1;
  CHECK_THROWS_AS(b.load_state_dict(state), DataError);
  state = a.state_dict();
  state["base_lr.1"] = 1;
  CHECK_THROWS_AS(b.load_state_dict(state), DataError);
  CHECK(b.count() == 38);
}

TEST_CASE("bad arguments are named") {
  auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(message([] { StepLR({.gamma = 0.5}); }) == "[StepLR] step_size must be at least 1, got 0");
  CHECK_THROWS_AS(StepLR({.step_size = 1, .gamma = -1}), ArgumentError);
  CHECK_THROWS_AS(MultiStepLR({.milestones = {3, 2}}), ArgumentError);
  CHECK_THROWS_AS(MultiStepLR({.milestones = {-1, 2}}), ArgumentError);
  CHECK_THROWS_AS(ExponentialLR({.gamma = -0.5}), ArgumentError);
  CHECK_THROWS_AS(CosineAnnealing(CosineAnnealingOptions{}), ArgumentError);
  CHECK_THROWS_AS(LinearWarmup(LinearWarmupOptions{}), ArgumentError);
  CHECK_THROWS_AS(LinearWarmup({.steps = 3, .start_factor = -1}), ArgumentError);
  CHECK_THROWS_AS(ConstantLR({.factor = -1}), ArgumentError);
  CHECK_THROWS_AS(OneCycle({.max_lr = 1}), ArgumentError);
  CHECK_THROWS_AS(OneCycle({.max_lr = -1, .total_steps = 5}), ArgumentError);
  CHECK_THROWS_AS(OneCycle({.max_lr = 1, .total_steps = 5, .pct_start = 1.1}), ArgumentError);
  CHECK_THROWS_AS(OneCycle({.max_lr = 1, .total_steps = 5, .pct_start = 0.6, .three_phase = true}), ArgumentError);
  CHECK_THROWS_AS(OneCycle({.max_lr = 1, .total_steps = 5, .div_factor = 0}), ArgumentError);
  CHECK_THROWS_AS(OneCycle({.max_lr = 1, .total_steps = 5, .base_momentum = 0.99}), ArgumentError);
  CHECK_THROWS_AS(SequentialSchedule({}, {}), ArgumentError);
  CHECK_THROWS_AS(SequentialSchedule({share(ConstantLR())}, {3}), ArgumentError);
  CHECK_THROWS_AS(SequentialSchedule({share(ConstantLR()), nullptr}, {3}), ArgumentError);
  CHECK_THROWS_AS(SequentialSchedule({share(ConstantLR()), share(ConstantLR()), share(ConstantLR())}, {3, 3}),
                  ArgumentError);
  CHECK_THROWS_AS(StepLR({.step_size = 2}).lr(1, -1), IndexError);
  SGD sgd({param()});
  CHECK_THROWS_AS(Scheduler(sgd, std::shared_ptr<Schedule>(), Unit::step), ArgumentError);
  CHECK_THROWS_AS(Scheduler(sgd, OneCycle({.max_lr = 1, .total_steps = 5}), Unit::step),
                  ArgumentError);  // no momentum buffer
}
