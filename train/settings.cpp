#include <limpid/train/settings.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/cuda/copies.h>
#include <limpid/memory/allocator.h>
#include <limpid/data/sampler.h>
#include <limpid/memory/policies.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/lamb.h>
#include <limpid/optim/lars.h>
#include <limpid/optim/rmsprop.h>
#include <limpid/optim/sgd.h>
#include <limpid/tensor/kernels.h>
#include <limpid/tensor/storage.h>
#include <limpid/train/batch_norm_modes.h>
#include <limpid/train/scaling_policy.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

using detail::Json;

// The one list of settings: visit(key, member, whether it may differ in a resumed run).
template <class Settings, class Visit>
void visit_settings(Settings& s, Visit&& visit) {
  constexpr bool kNumbers = false, kExecution = true;
  visit("data", s.data, kNumbers);
  visit("data_dir", s.data_dir, kExecution);
  visit("limit", s.limit, kNumbers);
  visit("val_fraction", s.val_fraction, kNumbers);
  visit("augment", s.augment, kNumbers);
  visit("drop_last", s.drop_last, kNumbers);
  visit("input", s.input, kNumbers);
  visit("classes", s.classes, kNumbers);
  visit("skip_broken", s.skip_broken, kNumbers);
  visit("model", s.model, kNumbers);
  visit("init", s.init, kNumbers);
  visit("init_batch", s.init_batch, kExecution);
  visit("init_lr", s.init_lr, kExecution);
  visit("fuse", s.fuse, kNumbers);
  visit("epochs", s.epochs, kNumbers);
  visit("batch", s.batch, kNumbers);
  visit("micro_batch", s.micro_batch, kNumbers);
  visit("quantum", s.quantum, kNumbers);
  visit("bn_mode", s.bn_mode, kNumbers);
  visit("bn_momentum", s.bn_momentum, kNumbers);
  visit("optimizer", s.optimizer, kNumbers);
  visit("lr", s.lr, kNumbers);
  visit("lr_policy", s.lr_policy, kNumbers);
  visit("reference_batch", s.reference_batch, kNumbers);
  visit("momentum", s.momentum, kNumbers);
  visit("weight_decay", s.weight_decay, kNumbers);
  visit("always_adapt", s.always_adapt, kNumbers);
  visit("schedule", s.schedule, kNumbers);
  visit("warmup", s.warmup, kNumbers);
  visit("amp", s.amp, kNumbers);
  visit("clip", s.clip, kNumbers);
  visit("label_smoothing", s.label_smoothing, kNumbers);
  visit("seed", s.seed, kNumbers);
  visit("device", s.device, kNumbers);
  visit("threads", s.threads, kExecution);
  visit("workers", s.workers, kExecution);
  visit("memory_cap", s.memory_cap, kExecution);
  visit("on_oom", s.on_oom, kExecution);
  visit("policy", s.policy, kExecution);
  visit("alloc_conf", s.alloc_conf, kExecution);
  visit("reserve_plan", s.reserve_plan, kExecution);
  visit("huge_pages", s.huge_pages, kExecution);
  visit("workspace_cap", s.workspace_cap, kNumbers);
  visit("out", s.out, kExecution);
  visit("checkpoint_every", s.checkpoint_every, kExecution);
  visit("keep_checkpoints", s.keep_checkpoints, kExecution);
  visit("ledger_ids", s.ledger_ids, kExecution);
  visit("trace", s.trace, kExecution);
  visit("monitor_every", s.monitor_every, kExecution);
  visit("tensorboard", s.tensorboard, kExecution);
}

bool one_of(const std::string& value, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return value == name; });
}

}  // namespace

void check(const TrainSettings& s) {
  auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    LIMPID_CHECK(value >= least, ArgumentError, "[train] ", name, " must be at least ", least, ", got ", value);
  };
  auto inside = [](const char* name, double value, double low, double high) {
    LIMPID_CHECK(value >= low && value < high, ArgumentError, "[train] ", name, " must be in [", low, ", ", high,
                 "), got ", value);
  };
  auto not_negative = [](const char* name, double value) {
    LIMPID_CHECK(value >= 0 && std::isfinite(value), ArgumentError, "[train] ", name,
                 " must be a finite number >= 0, got ", value);
  };
  auto utf8 = [](const char* name, const std::string& value) {
    LIMPID_CHECK(is_utf8(value), ArgumentError, "[train] ", name, " is not UTF-8, which the run's files are: ", value);
  };
  utf8("out", s.out);
  utf8("data-dir", s.data_dir);
  utf8("data", s.data);
  utf8("init", s.init);
  utf8("model", s.model);
  at_least("epochs", s.epochs, 1);
  at_least("batch", s.batch, 1);
  at_least("micro-batch", s.micro_batch, 0);
  LIMPID_CHECK(s.micro_batch <= s.batch, ArgumentError, "[train] micro-batch ", s.micro_batch,
               " is larger than the effective batch ", s.batch);
  at_least("quantum", s.quantum, 0);
  LIMPID_CHECK(s.quantum <= s.batch, ArgumentError, "[train] the quantum ", s.quantum, " is larger than the batch, ",
               s.batch);
  LIMPID_CHECK(s.quantum == 0 || s.micro_batch % s.quantum == 0, ArgumentError, "[train] the quantum ", s.quantum,
               " does not divide the micro-batch, ", s.micro_batch);
  LIMPID_CHECK(s.quantum == 0 || s.on_oom != "retry", ArgumentError, "[train] on-oom retry computes smaller pieces, the quantum ",
               s.quantum, " fixes their size: use one of them");
  batch_norm_mode_named(s.bn_mode);
  LIMPID_CHECK(one_of(s.bn_momentum, {"step", "micro"}), ArgumentError, "[train] bn-momentum is step or micro, got ",
               s.bn_momentum);
  LIMPID_CHECK(one_of(s.on_oom, {"stop", "retry"}), ArgumentError, "[train] on-oom is stop or retry; got ", s.on_oom);
  at_least("limit", s.limit, 0);
  at_least("warmup", s.warmup, 0);
  at_least("threads", s.threads, 0);
  at_least("workers", s.workers, 0);
  at_least("classes", s.classes, 0);
  constexpr std::int64_t kMostClasses = 1 << 16;  // the confusion matrix has their square
  LIMPID_CHECK(s.classes <= kMostClasses, ArgumentError, "[train] classes must be at most ", kMostClasses, ", got ",
               s.classes);
  at_least("checkpoint-every", s.checkpoint_every, 0);
  at_least("keep-checkpoints", s.keep_checkpoints, 1);
  at_least("monitor", s.monitor_every, 0);
  LIMPID_CHECK(!s.tensorboard || !s.out.empty(), ArgumentError, "[train] tensorboard needs out, the folder of the run");
  LIMPID_CHECK(s.threads <= 1024, ArgumentError, "[train] threads must be at most 1024, got ", s.threads);
  LIMPID_CHECK(s.workers <= 256, ArgumentError, "[train] workers must be at most 256, got ", s.workers);
  inside("val-fraction", s.val_fraction, 0, 1);
  inside("label-smoothing", s.label_smoothing, 0, 1);
  inside("momentum", s.momentum, 0, 1);
  not_negative("lr", s.lr);
  scaling_policy(s).check();
  not_negative("weight-decay", s.weight_decay);
  not_negative("clip", s.clip);
  LIMPID_CHECK(one_of(s.optimizer, {"adam", "adamw", "sgd", "rmsprop", "lamb", "lars"}), ArgumentError,
               "[train] optimizer is one of adam, adamw, sgd, rmsprop, lamb, lars; got ", s.optimizer);
  LIMPID_CHECK(one_of(s.schedule, {"constant", "cosine", "step", "exponential", "onecycle"}), ArgumentError,
               "[train] schedule is one of constant, cosine, step, exponential, onecycle; got ", s.schedule);
  LIMPID_CHECK(s.momentum == 0 || one_of(s.optimizer, {"sgd", "rmsprop", "lars"}), ArgumentError,
               "[train] momentum belongs to sgd, rmsprop and lars, the optimizer is ", s.optimizer);
  LIMPID_CHECK(!s.always_adapt || one_of(s.optimizer, {"lamb", "lars"}), ArgumentError,
               "[train] always-adapt belongs to lamb and lars, the optimizer is ", s.optimizer);
  LIMPID_CHECK(one_of(s.amp, {"fp32", "bf16", "fp16"}), ArgumentError, "[train] amp is one of fp32, bf16, fp16; got ",
               s.amp);
  const Device device = parse_device(s.device);
  LIMPID_CHECK(!device.is_dry(), ArgumentError, "[train] nothing is computed on ", s.device, ": limpid plan makes dry runs");
  kernels_for(device);  // says what is missing
  LIMPID_CHECK(device == kCpu || s.reserve_plan != "dry", ArgumentError,
               "[train] reserve-plan dry rehearses the CPU's allocations, the run is on ", device, ": give a trace of such a run");
  memory::policy_named(s.policy);
  const memory::AllocatorSettings knobs = memory::parse_allocator_settings(s.alloc_conf);
  LIMPID_CHECK(s.reserve_plan.empty() || knobs.retain == memory::AllocatorSettings::kRetainAll, ArgumentError,
               "[train] reserve-plan reserves what the steps need, retain_mb:", knobs.retain >> 20,
               " gives it back after each: use one of them");
  utf8("reserve-plan", s.reserve_plan);
  LIMPID_CHECK(s.input.empty() || s.input.size() == 3, ArgumentError,
               "[train] input has 3 sizes (channels, height, width), got ", s.input.size());
  for (std::int64_t size : s.input) at_least("input", size, 1);
}

void apply_memory_settings(const TrainSettings& s) {
  const memory::AllocatorSettings knobs = memory::parse_allocator_settings(s.alloc_conf);
  const Device device = parse_device(s.device);
  memory::set_host_huge_pages(s.huge_pages);
  if (device == kCpu ? memory::host_pool_exists() : cu::pool_exists(device.index)) {
    const memory::Allocator& pool = compute_pool(s);
    LIMPID_CHECK(s.policy == pool.policy_name() && knobs == pool.settings(), ArgumentError,
                 "[train] the pool of ", device, " tensors was made with the policy ", pool.policy_name(), " (",
                 to_string(pool.settings()), "), the settings ask for ", s.policy, " (", to_string(knobs),
                 "): apply_memory_settings() comes before the first tensor");
    return;
  }
  if (device == kCpu) {
    memory::set_host_policy(memory::policy_named(s.policy), knobs);
  } else {
    cu::set_memory_policy(device.index, memory::policy_named(s.policy), knobs);
  }
}

memory::Allocator& compute_pool(const TrainSettings& s) { return allocator_for(parse_device(s.device)); }

std::vector<std::int64_t> micro_batches_of(const TrainSettings& s, std::int64_t samples) {
  if (s.micro_batch == 0) return {samples};
  return data::micro_batch_sizes(samples, s.micro_batch, std::max<std::int64_t>(s.quantum, 1));
}

std::int64_t evaluation_batch(const TrainSettings& s) {
  return s.quantum > 0 ? s.quantum : s.micro_batch > 0 ? s.micro_batch : s.batch;
}

std::string to_json(const TrainSettings& settings) {
  Json json = Json::object();
  visit_settings(settings, [&](const char* key, const auto& value, bool) { json[key] = value; });
  return json.dump(2);
}

TrainSettings settings_from_json(const std::string& text) {
  TrainSettings settings;
  const Json json = detail::parse_object(text);
  std::vector<std::string> known;
  visit_settings(settings, [&](const char* key, auto& value, bool) {
    known.emplace_back(key);
    auto found = json.find(key);
    if (found != json.end()) detail::read_value(*found, concat("[settings] ", key), value);
  });
  for (const auto& [key, value] : json.items())
    LIMPID_CHECK(std::find(known.begin(), known.end(), key) != known.end(), DataError, "[settings] unknown setting ",
                 key);
  return settings;
}

std::vector<std::string> conflicts(const TrainSettings& saved, const TrainSettings& wanted) {
  Json now = Json::object();
  visit_settings(wanted, [&](const char* key, const auto& value, bool) { now[key] = value; });
  std::vector<std::string> out;
  visit_settings(saved, [&](const char* key, const auto& value, bool may_differ) {
    Json before = value;
    if (may_differ || before == now[key]) return;
    // Under a constant rate no step depends on how many follow it.
    if (std::string_view(key) == "epochs" && saved.schedule == "constant" && wanted.epochs > saved.epochs) return;
    out.push_back(concat(key, ": ", before.dump(), ", now ", now[key].dump()));
    if (std::string_view(key) == "epochs") {
      out.back() += saved.schedule == "constant" ? " (a run can be lengthened, not shortened)"
                                                 : " (only under a constant schedule can a run be lengthened)";
    }
  });
  return out;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainSettings& s, const std::vector<Tensor>& params) {
  const double lr = scaling_policy(s).lr(s.batch);
  if (s.optimizer == "adam") {
    return std::make_unique<optim::Adam>(params, optim::AdamOptions{.lr = lr, .weight_decay = s.weight_decay});
  }
  if (s.optimizer == "adamw") {
    return std::make_unique<optim::AdamW>(params, optim::AdamWOptions{.lr = lr, .weight_decay = s.weight_decay});
  }
  if (s.optimizer == "sgd") {
    return std::make_unique<optim::SGD>(
        params, optim::SGDOptions{.lr = lr, .momentum = s.momentum, .weight_decay = s.weight_decay});
  }
  if (s.optimizer == "lamb") {
    return std::make_unique<optim::Lamb>(
        params, optim::LambOptions{.lr = lr, .weight_decay = s.weight_decay, .always_adapt = s.always_adapt});
  }
  if (s.optimizer == "lars") {
    return std::make_unique<optim::Lars>(
        params, optim::LarsOptions{.lr = lr,
                                   .momentum = s.momentum,
                                   .weight_decay = s.weight_decay,
                                   .always_adapt = s.always_adapt});
  }
  LIMPID_CHECK(s.optimizer == "rmsprop", ArgumentError,
               "[train] optimizer is one of adam, adamw, sgd, rmsprop, lamb, lars; got ", s.optimizer);
  return std::make_unique<optim::RMSprop>(
      params, optim::RMSpropOptions{.lr = lr, .weight_decay = s.weight_decay, .momentum = s.momentum});
}

std::shared_ptr<optim::Schedule> make_schedule(const TrainSettings& s, std::int64_t total_steps) {
  LIMPID_CHECK(s.warmup < std::max<std::int64_t>(total_steps, 1) || s.warmup == 0, ArgumentError, "[train] warmup of ",
               s.warmup, " steps does not fit into a run of ", total_steps);
  const std::int64_t rest = std::max<std::int64_t>(total_steps - s.warmup, 1);
  std::shared_ptr<optim::Schedule> main;
  if (s.schedule == "constant") {
    main = optim::share(optim::ConstantLR());
  } else if (s.schedule == "cosine") {
    main = optim::share(optim::CosineAnnealing({.t_max = rest}));
  } else if (s.schedule == "step") {
    // A tenth after each third of the run.
    main = optim::share(optim::StepLR({.step_size = std::max<std::int64_t>((rest + 2) / 3, 1), .gamma = 0.1}));
  } else if (s.schedule == "exponential") {
    // Ends at a hundredth of the first rate.
    main = optim::share(optim::ExponentialLR({.gamma = std::pow(0.01, 1.0 / static_cast<double>(rest))}));
  } else {
    LIMPID_CHECK(s.schedule == "onecycle", ArgumentError,
                 "[train] schedule is one of constant, cosine, step, exponential, onecycle; got ", s.schedule);
    main = optim::share(optim::OneCycle({.max_lr = scaling_policy(s).lr(s.batch), .total_steps = rest, .cycle_momentum = false}));
  }
  if (s.warmup == 0) return main;
  return std::make_shared<optim::SequentialSchedule>(
      std::vector<std::shared_ptr<optim::Schedule>>{optim::share(optim::LinearWarmup({.steps = s.warmup})), main},
      std::vector<std::int64_t>{s.warmup});
}

}  // namespace limpid::train
