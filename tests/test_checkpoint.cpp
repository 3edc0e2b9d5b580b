#include <doctest/doctest.h>

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <limpid/base/file.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/adam.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/safetensors.h>
#include <limpid/train/checkpoint.h>
#include <limpid/train/run_files_private.h>
#include <limpid/train/run_folder.h>

#include "temp_folder.h"

using namespace limpid;
using namespace limpid::train;
using limpid_test::TempFolder;
using limpid_test::text_of;
namespace fs = std::filesystem;

namespace {

void put_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  Tensor x = a.contiguous(), y = b.contiguous();
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         (x.nbytes() == 0 || std::memcmp(x.raw_data(), y.raw_data(), x.nbytes()) == 0);
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.message();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A small model and optimizer that have made one step.
struct Bench {
  std::shared_ptr<nn::Module> model;
  std::unique_ptr<optim::Adam> optimizer;
  ModelCard card;
  explicit Bench(std::uint64_t seed = 1) {
    card.model = "lenet-bn";
    card.input = {1, 12, 12};
    card.classes = 3;
    card.class_names = {"a", "b", "c"};
    card.data = "synthetic";
    card.mean = {0.25};
    card.std = {0.125};
    model = nn::make_model(card.model, {.input = card.input, .classes = card.classes, .seed = seed});
    optimizer = std::make_unique<optim::Adam>(model->parameters());
    step();
  }
  void step() {
    optimizer->zero_grad();
    Generator generator(3);
    Tensor x = randn({4, 1, 12, 12}, {}, generator);
    cross_entropy((*model)(x), from_vector<std::int64_t>({0, 1, 2, 0}, {4})).backward();
    optimizer->step();
    optimizer->zero_grad();
  }
};

RunState state_at(std::int64_t step) {
  RunState state;
  state.step = step;
  state.loader = {7, 2, step};
  state.generator_seed = 0xFFFFFFFFFFFFFFFFull;
  state.generator_position = 5;
  state.scheduler = {{"count", 3}, {"base_lr.0", 0.1}};
  state.epoch_loss = 1.0 / 3.0;
  state.best_loss = std::numeric_limits<double>::infinity();
  state.best_epoch = 1;
  state.log_offsets = {{"steps.jsonl", 123}};
  return state;
}

// Files may grow to `bytes` while it lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    former_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &former_);
    rlimit limit = former_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &former_);
    std::signal(SIGXFSZ, former_handler_);
  }

 private:
  rlimit former_{};
  void (*former_handler_)(int);
};

}  // namespace

TEST_CASE("the digest of a file is its size and CRC-32") {
  TempFolder folder;
  put_text(folder / "f", "123456789");
  CHECK(digest_file(folder / "f") == FileDigest{9, 0xCBF43926u});  // the check value of this CRC
  put_text(folder / "empty", "");
  CHECK(digest_file(folder / "empty") == FileDigest{0, 0});
  CHECK_THROWS_AS(digest_file(folder / "none"), IoError);
}

TEST_CASE("a line file appends whole lines and is cut back on resume") {
  TempFolder folder;
  const std::string path = folder / "log";
  std::uint64_t first = 0;
  {
    LineFile log(path, 0);
    log.write_line("one");
    first = log.size();
    log.write_line("two");
    log.sync();
    CHECK(log.size() == 8);
  }
  {
    LineFile log(path, first);
    log.write_line("three");
  }
  CHECK(text_of(path) == "one\nthree\n");
  CHECK(contains(error_of([&] { LineFile log(path, 100); }), "has 10 bytes"));
  CHECK_THROWS_AS(LineFile(folder / "missing/log", 0), IoError);
}

TEST_CASE("a full disk takes back the incomplete line") {
  TempFolder folder;
  const std::string path = folder / "log";
  LineFile log(path, 0);
  log.write_line("whole");
  {
    FileLimit limit(10);
    CHECK(contains(error_of([&] { log.write_line("does not fit"); }), "cannot write"));
  }
  CHECK(text_of(path) == "whole\n");
  log.write_line("fits again");
  CHECK(text_of(path) == "whole\nfits again\n");
}

TEST_CASE("a checkpoint reads back what was written, to the bit") {
  TempFolder folder;
  Bench bench;
  TrainSettings settings;
  settings.data = "synthetic";
  settings.lr = 0.1;
  CheckpointStore store(folder / "ckpt");
  CHECK_FALSE(store.has());
  CHECK_THROWS_AS(store.load(), DataError);
  const std::string where = store.save(*bench.model, *bench.optimizer, state_at(5), bench.card, settings, false);
  CHECK(fs::path(where).filename() == "00000005");
  CHECK(store.has());
  CHECK_FALSE(store.has("best"));

  const Checkpoint read = store.load();
  CHECK(read.folder == where);
  const nn::StateDict model = bench.model->state_dict();
  REQUIRE(read.model.size() == model.size());
  for (const auto& [name, tensor] : model) CHECK_MESSAGE(same_bits(tensor, read.model.at(name)), name);
  const optim::OptimizerState optimizer = bench.optimizer->state_dict();
  REQUIRE(read.optimizer.tensors.size() == optimizer.tensors.size());
  for (const auto& [name, tensor] : optimizer.tensors)
    CHECK_MESSAGE(same_bits(tensor, read.optimizer.tensors.at(name)), name);
  CHECK(read.optimizer.scalars == optimizer.scalars);
  const RunState expected = state_at(5);
  CHECK(read.state.step == 5);
  CHECK(read.state.loader == expected.loader);
  CHECK(read.state.generator_seed == expected.generator_seed);
  CHECK(read.state.generator_position == 5);
  CHECK(read.state.scheduler == expected.scheduler);
  CHECK(read.state.epoch_loss == expected.epoch_loss);
  CHECK(std::isinf(read.state.best_loss));
  CHECK(read.state.best_epoch == 1);
  CHECK(read.state.log_offsets == expected.log_offsets);
  CHECK(read.card.model == "lenet-bn");
  CHECK(read.card.input == Shape{1, 12, 12});
  CHECK(read.card.class_names == bench.card.class_names);
  CHECK(read.card.std == bench.card.std);
  CHECK(read.settings == settings);

  // And goes back into another model and optimizer.
  Bench other(2);
  load_weights(*other.model, read.model, "test");
  other.optimizer->load_state_dict(read.optimizer);
  other.step();
  bench.step();
  for (const auto& [name, tensor] : bench.model->state_dict())
    CHECK_MESSAGE(same_bits(tensor, other.model->state_dict().at(name)), name);
}

TEST_CASE("only the newest checkpoints and the best stay") {
  TempFolder folder;
  Bench bench;
  CheckpointStore store(folder / "ckpt", 2);
  fs::create_directories(folder / "ckpt/.unfinished-00000009");  // of a writer that was killed
  for (std::int64_t step : {1, 2, 3, 4, 5})
    store.save(*bench.model, *bench.optimizer, state_at(step), bench.card, {}, step == 2);
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder / "ckpt")) found.push_back(entry.path().filename().string());
  std::sort(found.begin(), found.end());
  CHECK(found == std::vector<std::string>{"00000002", "00000004", "00000005", "best", "last"});
  CHECK(store.load().state.step == 5);
  CHECK(store.load("best").state.step == 2);
}

TEST_CASE("the same step written twice never touches what a pointer names") {
  TempFolder folder;
  Bench bench;
  CheckpointStore store(folder / "ckpt");
  store.save(*bench.model, *bench.optimizer, state_at(1), bench.card, {}, true);
  bench.step();
  const std::string second = store.save(*bench.model, *bench.optimizer, state_at(1), bench.card, {}, false);
  CHECK(fs::path(second).filename() == "00000001-2");
  CHECK(store.load("best").folder != store.load("last").folder);
}

TEST_CASE("damage is noticed and named") {
  TempFolder folder;
  Bench bench;
  CheckpointStore store(folder / "ckpt");
  const std::string where = store.save(*bench.model, *bench.optimizer, state_at(1), bench.card, {}, false);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    CAPTURE(name);
    const std::string path = where + "/" + name, good = text_of(path);
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    put_text(path, bad);
    std::string message = error_of([&] { store.load(); });
    CHECK(contains(message, name));
    CHECK(contains(message, "CRC-32"));
    put_text(path, good.substr(0, good.size() / 2));
    message = error_of([&] { store.load(); });
    CHECK(contains(message, name));
    CHECK(contains(message, "bytes"));
    fs::remove(path);
    message = error_of([&] { store.load(); });
    CHECK(contains(message, name));
    CHECK(contains(message, "missing"));
    put_text(path, good);
    CHECK_NOTHROW(store.load());
  }
  const std::string pointer = folder / "ckpt/last", good = text_of(pointer);
  for (const char* bad :
       {"", "{}", "[1]", "{\"checkpoint\": \"../x\", \"files\": {}}", "{\"checkpoint\": 3, \"files\": {}}",
        "{\"checkpoint\": \"00000001\", \"files\": {\"state.json\": {\"bytes\": \"x\"}}}"}) {
    CAPTURE(bad);
    put_text(pointer, bad);
    CHECK_THROWS_AS(store.load(), DataError);
  }
  put_text(pointer, good);
  CHECK_NOTHROW(store.load());
}

TEST_CASE("a checkpoint that cannot be written leaves the former one valid and no remains") {
  TempFolder folder;
  Bench bench;
  CheckpointStore store(folder / "ckpt");
  store.save(*bench.model, *bench.optimizer, state_at(1), bench.card, {}, true);
  {
    FileLimit limit(4096);
    CHECK_THROWS_AS(store.save(*bench.model, *bench.optimizer, state_at(2), bench.card, {}, true), IoError);
  }
  CHECK(store.load().state.step == 1);
  CHECK(store.load("best").state.step == 1);
  for (const auto& entry : fs::directory_iterator(folder / "ckpt")) {
    const std::string name = entry.path().filename().string();
    CHECK_MESSAGE((name == "00000001" || name == "last" || name == "best"), name);
  }
}

TEST_CASE("a checkpoint opens from a run folder, a pointer, its folder or the weight file") {
  TempFolder folder;
  Bench bench;
  CheckpointStore store(folder / "ckpt");
  const std::string where = store.save(*bench.model, *bench.optimizer, state_at(1), bench.card, {}, true);
  for (const std::string& path :
       {folder.path(), folder / "ckpt", folder / "ckpt/best", where, where + "/model.safetensors"}) {
    CAPTURE(path);
    const Checkpoint checkpoint = open_checkpoint(path);
    CHECK(checkpoint.card.model == "lenet-bn");
    CHECK(checkpoint.model.size() == bench.model->state_dict().size());
  }
  CHECK(contains(error_of([&] { open_checkpoint(folder / "none"); }), "does not exist"));
  fs::create_directory(folder / "empty");
  CHECK(contains(error_of([&] { open_checkpoint(folder / "empty"); }), "neither a run folder"));
  put_text(folder / "bad.safetensors", "xx");
  CHECK_THROWS_AS(open_checkpoint(folder / "bad.safetensors"), DataError);
}

TEST_CASE("weights that do not fit are refused before anything changes") {
  Bench bench;
  nn::StateDict state;
  for (const auto& [name, tensor] : bench.model->state_dict()) state[name] = tensor.detach().clone();
  Bench other(9);
  const nn::StateDict before = other.model->state_dict();
  const std::string key = state.begin()->first;
  nn::StateDict missing = state;
  missing.erase(key);
  missing["surplus"] = zeros({1});
  std::string message = error_of([&] { load_weights(*other.model, missing, "file"); });
  CHECK(contains(message, key));
  CHECK(contains(message, "surplus"));
  nn::StateDict wrong = state;
  wrong[key] = zeros({1, 2, 3});
  message = error_of([&] { load_weights(*other.model, wrong, "file"); });
  CHECK(contains(message, key));
  CHECK(contains(message, "[1,2,3]"));
  Bench fresh(9);
  for (const auto& [name, tensor] : fresh.model->state_dict())
    CHECK(same_bits(tensor, other.model->state_dict().at(name)));
}

TEST_CASE("settings survive JSON and are checked") {
  TrainSettings settings;
  settings.data = "folder";
  settings.input = {3, 20, 30};
  settings.lr = 0.1;
  settings.seed = 0xFFFFFFFFFFFFFFFFull;
  settings.memory_cap = std::uint64_t{1} << 40;
  settings.augment = true;
  CHECK(settings_from_json(to_json(settings)) == settings);
  CHECK(settings_from_json("{}") == TrainSettings());
  CHECK(contains(error_of([] { settings_from_json("{\"colour\": 1}"); }), "colour"));
  CHECK(contains(error_of([] { settings_from_json("{\"epochs\": \"three\"}"); }), "epochs"));
  CHECK_THROWS_AS(settings_from_json("[]"), DataError);
  CHECK_THROWS_AS(settings_from_json("{"), DataError);

  auto refused = [](auto change) {
    TrainSettings s;
    change(s);
    return error_of([&] { check(s); });
  };
  CHECK(error_of([] { check(TrainSettings()); }) == "");
  CHECK(contains(refused([](TrainSettings& s) { s.epochs = 0; }), "epochs must be at least 1, got 0"));
  CHECK(contains(refused([](TrainSettings& s) { s.batch = -1; }), "batch"));
  CHECK(contains(refused([](TrainSettings& s) { s.val_fraction = 1; }), "val-fraction"));
  CHECK(contains(refused([](TrainSettings& s) { s.lr = NAN; }), "lr"));
  CHECK(contains(refused([](TrainSettings& s) { s.optimizer = "magic"; }), "magic"));
  CHECK(contains(refused([](TrainSettings& s) { s.schedule = "magic"; }), "magic"));
  CHECK(contains(refused([](TrainSettings& s) { s.device = "cuda"; }), "cuda"));
  CHECK(contains(refused([](TrainSettings& s) { s.momentum = 0.9; }), "momentum belongs to"));
  CHECK(contains(refused([](TrainSettings& s) { s.input = {3, 2}; }), "input"));
}

TEST_CASE("a resumed run may change what does not touch the numbers, and grow under a constant schedule") {
  TrainSettings saved, wanted;
  wanted.threads = 3;
  wanted.workers = 0;
  wanted.out = "elsewhere";
  wanted.epochs = saved.epochs + 1;
  CHECK(conflicts(saved, wanted).empty());
  wanted.batch = 64;
  REQUIRE(conflicts(saved, wanted).size() == 1);
  CHECK(conflicts(saved, wanted)[0] == "batch: 128, now 64");
  wanted.batch = saved.batch;
  saved.schedule = wanted.schedule = "cosine";
  CHECK(conflicts(saved, wanted).size() == 1);
}

TEST_CASE("a run folder is made once") {
  TempFolder folder;
  TrainSettings settings;
  settings.seed = 42;
  const std::string path = folder / "a/run";
  {
    auto run = RunFolder::create(path, settings);
    run->steps().write_line("{}");
    CHECK(run->offsets() == LogOffsets{{"steps.jsonl", 3}, {"ledger.jsonl", 0}, {"monitor.jsonl", 0}});
  }
  CHECK(RunFolder::settings_of(path) == settings);
  CHECK(contains(error_of([&] { RunFolder::create(path, settings); }), "already holds a run"));
  CHECK_NOTHROW(RunFolder::resume(path, {{"steps.jsonl", 3}}, settings));
  CHECK_THROWS_AS(RunFolder::resume(path, {{"steps.jsonl", 4}}, settings), DataError);
  put_text(folder / "file", "");
  CHECK_THROWS_AS(RunFolder::create(folder / "file/run", settings), IoError);
  CHECK_THROWS_AS(RunFolder::resume(folder.path(), {}, settings), ArgumentError);
  CHECK_THROWS_AS(RunFolder::settings_of(folder.path()), DataError);
  CHECK_THROWS_AS(RunFolder::create(folder.path(), settings), ArgumentError);  // holds a file
}

TEST_CASE("a link to another run's checkpoint is not a checkpoint, and what it points to stays") {
  TempFolder folder;
  namespace fs = std::filesystem;
  const std::string other = folder / "other/ckpt/00000005", ckpt = folder / "run/ckpt";
  fs::create_directories(other);
  fs::create_directories(ckpt + "/00000004");
  put_text(other + "/model.safetensors", "precious");
  put_text(ckpt + "/00000004/model.safetensors", "own");
  fs::create_directory_symlink(other, ckpt + "/00000003");
  fs::create_directory_symlink(other, ckpt + "/.unfinished-00000009");
  CHECK(limpid::train::detail::checkpoints_in(ckpt) == std::vector<std::string>{"00000004"});
  limpid::train::detail::remove_checkpoint(ckpt + "/00000003");
  limpid::train::detail::remove_unfinished(ckpt);
  limpid::train::detail::remove_run_files(folder / "run");
  CHECK_FALSE(fs::exists(ckpt + "/00000004"));
  CHECK(text_of(other + "/model.safetensors") == "precious");
}
