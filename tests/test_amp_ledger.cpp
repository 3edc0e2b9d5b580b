// The AMP ledger: dtypes and bytes of each operation, the first value that is not finite at every (layer, micro-batch),
// underflow counted by hand, the trace of the scale; and what changing a norm does to memory.
#include <doctest/doctest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>
#include <limpid/optim/lr_scheduler.h>
#include <limpid/optim/sgd.h>
#include <limpid/train/amp_ledger.h>

#include "live_and_dry.h"

using namespace limpid;
using namespace limpid::train;

namespace {

struct Net : nn::Module {
  std::shared_ptr<nn::Conv2d> conv1 = register_module("conv1", nn::Conv2d({.in_channels = 1, .out_channels = 4, .kernel_size = 3}));
  std::shared_ptr<nn::BatchNorm2d> bn = register_module("bn", nn::BatchNorm2d({.num_features = 4}));
  std::shared_ptr<nn::Conv2d> conv2 = register_module("conv2", nn::Conv2d({.in_channels = 4, .out_channels = 6, .kernel_size = 3}));
  std::shared_ptr<nn::Linear> fc1 = register_module("fc1", nn::Linear({.in_features = 6 * 16, .out_features = 8}));
  std::shared_ptr<nn::Linear> fc2 = register_module("fc2", nn::Linear({.in_features = 8, .out_features = 3}));
  Tensor forward(const Tensor& x) override {
    Tensor h = relu((*bn)((*conv1)(x)));
    h = relu((*conv2)(h));
    return (*fc2)(relu((*fc1)(flatten(h, 1))));
  }
};

Tensor images(std::int64_t n) { return randn({n, 1, 8, 8}); }
Tensor labels(std::int64_t n) { return zeros({n}, {.dtype = int64}); }

const AmpOpRow* find(const AmpLedger& ledger, const std::string& layer, const std::string& op) {
  for (const AmpOpRow& row : ledger.ops())
    if (row.layer == layer && row.op == op) return &row;
  return nullptr;
}

}  // namespace

TEST_CASE("each operation's dtypes, and what casting cost") {
  manual_seed(1);
  Net net;
  AmpLedger ledger;
  {
    WatchScope watch(&ledger);
    Autocast amp({.dtype = bfloat16});
    Tensor loss = cross_entropy(net(images(2)), labels(2)) + cross_entropy(net(images(2)), labels(2));
    CHECK(loss.dtype() == float32);
  }
  struct Expected {
    const char *layer, *op;
    std::vector<DType> inputs;
    DType compute, output;
    std::int64_t casts, reused;
    std::uint64_t cast_bytes;
  };
  const std::uint64_t image = 2 * 8 * 8 * 2;  // bytes of two images in bf16
  const Expected rows[] = {
      {"conv1", "conv2d", {float32}, bfloat16, bfloat16, 4, 2, 2 * image + 2 * (4 * 9 + 4)},
      {"bn", "batch_norm", {float32, bfloat16}, bfloat16, bfloat16, 0, 0, 0},
      {"", "relu", {bfloat16}, bfloat16, bfloat16, 0, 0, 0},
      {"conv2", "conv2d", {float32, bfloat16}, bfloat16, bfloat16, 2, 2, 2 * (6 * 4 * 9 + 6)},
      {"fc1", "linear", {float32, bfloat16}, bfloat16, bfloat16, 2, 2, 2 * (8 * 96 + 8)},
      {"fc2", "linear", {float32, bfloat16}, bfloat16, bfloat16, 2, 2, 2 * (3 * 8 + 3)},
      {"", "cross_entropy", {bfloat16}, float32, float32, 2, 0, 2 * 2 * 3 * 4},
      {"", "add", {float32}, float32, float32, 0, 0, 0},
  };
  std::uint64_t sum = 0;
  for (const Expected& e : rows) {
    INFO(e.layer << " " << e.op);
    const AmpOpRow* row = find(ledger, e.layer, e.op);
    REQUIRE(row);
    CHECK(row->inputs == e.inputs);
    CHECK(row->compute == e.compute);
    CHECK(row->output == e.output);
    CHECK(row->casts == e.casts);
    CHECK(row->reused == e.reused);
    CHECK(row->cast_bytes == e.cast_bytes);
    sum += e.cast_bytes;
  }
  CHECK(find(ledger, "", "relu")->calls == 6);
  CHECK(find(ledger, "conv1", "conv2d")->output_bytes == 2 * 2 * 4 * 36 * 2);
  CHECK(ledger.ops().size() == 9);  // and the copy that flatten makes
  CHECK(find(ledger, "", "flatten"));
  CHECK(ledger.cast_bytes() == sum);
  CHECK(ledger.peak_cache_bytes() == 2 * (40 + 222 + 776 + 27));
  CHECK(ledger.non_finite().empty());
}

TEST_CASE("without autocast it tells the dtypes all the same, and looking changes no number") {
  std::vector<std::vector<double>> grads;
  for (bool look : {false, true}) {
    manual_seed(1);
    Net net;
    AmpLedger ledger;
    WatchScope watch(look ? &ledger : nullptr);
    cross_entropy(net(images(2)), labels(2)).backward();
    grads.push_back(net.conv1->weight.grad().to_vector<double>());
    if (!look) continue;
    CHECK(find(ledger, "conv1", "conv2d")->compute == float32);
    CHECK(ledger.cast_bytes() == 0);
    CHECK(ledger.underflow().empty());
  }
  CHECK(grads[0] == grads[1]);
}

namespace {

constexpr int kMicro = 3;

struct Run {
  AmpLedger ledger;
  std::int64_t skipped = 0, scheduled = 0;
  bool changed = false;  // the weights, in the step with the infinity
};

// Three steps of three micro-batches; `break_it` may do harm before the forward pass of step 1 and undo it afterwards.
Run train_and_break(int micro_batch, const std::function<std::function<void()>(Net&)>& break_it) {
  manual_seed(1);
  Net net;
  net.name_tree();
  optim::SGD sgd(net.parameters(), {.lr = 0.01});
  optim::Scheduler scheduler(sgd, optim::StepLR({.step_size = 1}), optim::Unit::step);
  optim::GradScaler scaler({.init_scale = 128});
  Run run;
  ScopeGuard scope{Scope{}};
  WatchScope watch(&run.ledger);
  for (std::uint32_t step = 0; step < 3; step++) {
    set_step(step);
    sgd.zero_grad();
    std::vector<double> before = net.fc2->bias.to_vector<double>();
    for (int micro = 0; micro < kMicro; micro++) {
      set_micro_batch(static_cast<std::uint32_t>(micro));
      std::function<void()> mend;
      if (step == 1 && micro == micro_batch) mend = break_it(net);
      Tensor loss;
      {
        PhaseScope phase(Phase::forward);
        Autocast amp({.dtype = float16});
        loss = cross_entropy(net(images(2)), labels(2)) * (1.0 / kMicro);
      }
      scaler.scale(loss).backward();
      if (mend) mend();
    }
    optim::StepTicket ticket = scaler.step(sgd);
    run.ledger.step_done(scaler, ticket);
    scaler.update();
    if (ticket.stepped()) scheduler.step();
    run.skipped += ticket.skipped();
    if (step == 1) run.changed = net.fc2->bias.to_vector<double>() != before;
  }
  run.scheduled = scheduler.count();
  CHECK(scaler.get_scale() == 64);
  return run;
}

}  // namespace

TEST_CASE("an infinity is named at every layer and micro-batch, forward and backward") {
  struct Layer {
    const char *name, *op;
    std::function<nn::Module&(Net&)> module;
    std::function<Tensor(Net&)> bias;
  };
  const std::vector<Layer> layers{
      {"conv1", "conv2d", [](Net& n) -> nn::Module& { return *n.conv1; }, [](Net& n) { return n.conv1->bias; }},
      {"bn", "batch_norm", [](Net& n) -> nn::Module& { return *n.bn; }, [](Net& n) { return n.bn->bias; }},
      {"conv2", "conv2d", [](Net& n) -> nn::Module& { return *n.conv2; }, [](Net& n) { return n.conv2->bias; }},
      {"fc1", "linear", [](Net& n) -> nn::Module& { return *n.fc1; }, [](Net& n) { return n.fc1->bias; }},
      {"fc2", "linear", [](Net& n) -> nn::Module& { return *n.fc2; }, [](Net& n) { return n.fc2->bias; }},
  };
  for (const Layer& layer : layers) {
    for (int micro = 0; micro < kMicro; micro++) {
      for (bool backward : {false, true}) {
        INFO(layer.name << " micro-batch " << micro << (backward ? " backward" : " forward"));
        Run run = train_and_break(micro, [&](Net& net) -> std::function<void()> {
          if (backward) {  // the gradient that reaches the layer is infinite
            nn::Module& module = layer.module(net);
            std::uint64_t hook = module.register_forward_hook([](nn::Module&, const Tensor&, const Tensor& y) {
              Tensor out = y;
              out.register_hook([](const Tensor& g) { return full(g.shape(), INFINITY, {.dtype = g.dtype()}); });
              return Tensor();
            });
            return [&module, hook] { module.remove_hook(hook); };
          }
          Tensor bias = layer.bias(net);
          NoGradGuard no_grad;
          double former = bias.select(0, 0).item();
          bias.select(0, 0).fill_(INFINITY);
          return [bias, former]() mutable {
            NoGradGuard none;
            bias.select(0, 0).fill_(former);
          };
        });
        REQUIRE(!run.ledger.non_finite().empty());
        const NonFinite& first = run.ledger.non_finite()[0];
        CHECK(first.step == 1);
        CHECK(first.micro_batch == static_cast<std::uint32_t>(micro));
        CHECK(first.layer == layer.name);
        CHECK(first.op == layer.op);
        CHECK(first.phase == (backward ? Phase::backward : Phase::forward));
        CHECK(first.gradient_of.has_value() == backward);
        CHECK(run.ledger.non_finite().size() == 1);  // the other micro-batches were clean
        CHECK(run.skipped == 1);
        CHECK(run.scheduled == 2);
        CHECK_FALSE(run.changed);
        CHECK(run.ledger.skipped() == 1);
        const std::vector<ScaleChange>& trace = run.ledger.scale_trace();
        REQUIRE(trace.size() == 3);
        CHECK((trace[0].step == 0 && trace[0].scale == 128 && !trace[0].skipped));
        CHECK((trace[1].step == 1 && trace[1].scale == 128 && trace[1].skipped));
        CHECK((trace[2].step == 2 && trace[2].scale == 64 && !trace[2].skipped));
      }
    }
  }
}

TEST_CASE("underflow is counted as by hand") {
  // d loss / d y = g, which the cast makes f16: 0, 2^-26 (lost), 2^-24 and 2^-15 (subnormal), 2^-14 and 1 (normal).
  Tensor g = from_vector(std::vector<float>{0, 0x1p-26f, 0x1p-24f, 0x1p-15f, 0x1p-14f, 1}, {1, 6});
  nn::Linear fc({.in_features = 1, .out_features = 6, .bias = false});
  fc.name_tree("fc");
  AmpLedger ledger;
  {
    WatchScope watch(&ledger);
    Tensor y;
    {
      Autocast amp({.dtype = float16});
      y = fc(ones({1, 1}));
    }
    y.to(float32).backward(g);
  }
  REQUIRE(ledger.underflow().size() == 2);
  const UnderflowRow& cast = ledger.underflow()[0];  // outside of the layer
  CHECK(cast.layer == "");
  CHECK(cast.dtype == float16);
  CHECK(cast.elements == 6);
  CHECK(cast.zeros == 2);
  CHECK(cast.subnormal == 2);
  CHECK(cast.cast_nonzero == 5);
  CHECK(cast.cast_lost == 1);
  CHECK(cast.lost_share() == doctest::Approx(0.2));
  CHECK(cast.subnormal_share() == doctest::Approx(0.5));
  const UnderflowRow& layer = ledger.underflow()[1];  // the weight's gradient: the same six numbers
  CHECK(layer.layer == "fc");
  CHECK(layer.elements == 6);
  CHECK(layer.zeros == 2);
  CHECK(layer.subnormal == 2);
  CHECK(layer.cast_nonzero == 0);  // its cast goes up to f32
  CHECK(fc.weight.grad().to_vector<double>()[3] == 0x1p-15);

  // A larger scale lifts them: that is what it is for.
  AmpLedger lifted;
  {
    WatchScope watch(&lifted);
    Tensor y;
    {
      Autocast amp({.dtype = float16});
      y = fc(ones({1, 1}));
    }
    y.to(float32).backward(g * 0x1p13);
  }
  CHECK(lifted.underflow()[0].cast_lost == 0);
  CHECK(lifted.underflow()[0].subnormal == 0);
}

TEST_CASE("text and JSON say the same") {
  Run run = train_and_break(1, [](Net& net) -> std::function<void()> {
    Tensor bias = net.conv2->bias;
    NoGradGuard no_grad;
    bias.fill_(INFINITY);
    return [bias]() mutable {
      NoGradGuard none;
      bias.fill_(0.01);
    };
  });
  std::string text = to_string(run.ledger);
  INFO(text);
  for (const char* part : {"step 1, micro-batch 1: conv2d in conv2, forward: result (f16)", "loss scale over 3 steps, 1 skipped",
                           "step 1: 128, skipped", "step 2: 64", "computes in", "16-bit gradients of"})
    CHECK(text.find(part) != std::string::npos);
  nlohmann::json json = nlohmann::json::parse(to_json(run.ledger));
  CHECK(json["ops"].size() == run.ledger.ops().size());
  CHECK(json["ops"][0]["layer"] == "conv1");
  CHECK(json["ops"][0]["inputs"] == nlohmann::json{"f32"});
  CHECK(json["ops"][0]["compute"] == "f16");
  CHECK(json["cast_bytes"] == run.ledger.cast_bytes());
  CHECK(json["peak_cache_bytes"] == 2 * (40 + 222 + 776 + 27));
  CHECK(json["non_finite"][0]["layer"] == "conv2");
  CHECK(json["non_finite"][0]["gradient_of_input"].is_null());
  CHECK(json["scale_trace"][1]["skipped"] == true);
  CHECK(json["skipped"] == 1);
  CHECK(json["underflow"].size() == run.ledger.underflow().size());
}

TEST_CASE("a training step with a scaler allocates the same in a dry run, and so does the change from batch to group norm") {
  std::uint64_t live[2], dry[2];
  for (int groups = 0; groups < 2; groups++) {
    auto program = [&](memory::Allocator&, memory::Allocator&) {
      nn::Sequential model(nn::Conv2d({.in_channels = 3, .out_channels = 8, .kernel_size = 3}));
      if (groups) {
        model.push_back(nn::GroupNorm({.num_groups = 2, .num_channels = 8}));
      } else {
        model.push_back(nn::BatchNorm2d({.num_features = 8}));
      }
      model.push_back(nn::ReLU());
      model.push_back(nn::Conv2d({.in_channels = 8, .out_channels = 8, .kernel_size = 3}));
      model.push_back(nn::AdaptiveAvgPool2d(1));
      model.push_back(nn::Flatten());
      model.push_back(nn::Linear({.in_features = 8, .out_features = 4}));
      optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
      optim::GradScaler scaler;
      Tensor x = randn({8, 3, 20, 20}), y = zeros({8}, {.dtype = int64});
      for (int step = 0; step < 3; step++) {
        sgd.zero_grad();
        Tensor loss;
        {
          Autocast amp({.dtype = float16});
          loss = cross_entropy(model(x), y);
        }
        scaler.scale(loss).backward();
        scaler.step(sgd);
        scaler.update();
      }
    };
    const limpid_test::Recorded l = limpid_test::run_live(program), d = limpid_test::run_dry(program);
    limpid_test::check_same(l, d);
    live[groups] = l.peak.live_total;
    dry[groups] = d.peak.live_total;
  }
  CHECK(live[1] - live[0] == dry[1] - dry[0]);
  CHECK(live[1] > live[0]);  // group norm runs in f32: more is kept
  MESSAGE("peak with batch norm ", live[0], " B, with group norm ", live[1], " B");
}
