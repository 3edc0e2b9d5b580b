// Effective batches from outside: the command's options, out of memory as a value, the ledger's proof, kills.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include <zlib.h>

#include <limpid/tensor/safetensors.h>
#include <limpid/train/ledger.h>

#include "command.h"

using namespace limpid_test;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Words small_train(const Words& more = {}) {
  Words words = {"train", "--data", "synthetic", "--input", "3x16x16", "--classes", "4", "--limit", "300", "--model", "lenet-bn",
                 "--seed", "5", "--threads", "2", "--workers", "1"};
  if (std::find(more.begin(), more.end(), "--epochs") == more.end()) words.insert(words.end(), {"--epochs", "2"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string last_model(const std::string& run) {
  std::string newest;
  for (const auto& entry : fs::directory_iterator(run + "/ckpt"))
    if (entry.is_directory()) newest = std::max(newest, entry.path().string());
  return newest + "/model.safetensors";
}

// The tensors of two weight files have the same bits.
bool same_weights(const std::string& a, const std::string& b) {
  const auto x = limpid::load_safetensors(a), y = limpid::load_safetensors(b);
  if (x.size() != y.size()) return false;
  for (const auto& [name, tensor] : x) {
    const limpid::Tensor& other = y.at(name);
    if (tensor.nbytes() != other.nbytes() || std::memcmp(tensor.raw_data(), other.raw_data(), tensor.nbytes()) != 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a run in micro-batches says how it cuts, and its ledger passes the check") {
  TempFolder folder;
  const std::string run = folder / "run";
  const CommandResult r = limpid_command(small_train({"--effective-batch", "64", "--micro-batch", "16", "--json", "--out", run}));
  REQUIRE_MESSAGE(r.code == 0, r.err);
  CHECK(contains(r.err, "285 samples = 4 steps of 64 (4 x 16), a sample weighs 1/64; a last one of 29 (15 + 14), weight 1/29"));
  CHECK(r.json()["batch"] == 64);
  CHECK(r.json()["micro_batch"] == 16);
  const CommandResult check = limpid_command({"check", "ledger", run, "--json"});
  CHECK(check.code == 0);
  CHECK(check.json()["ok"] == true);
  CHECK(check.json()["samples"] == 2 * 285);
  CHECK(contains(check.err, "ok: every sample was used once an epoch"));
  const CommandResult same = limpid_command({"diff", run, run});
  CHECK(same.code == 0);
  CHECK(contains(
      same.out, "the ledgers are equal: 10 steps and 2 ends of epochs, the same bits in every field that they record"));
  CHECK_FALSE(contains(same.out, "still running"));
  // Another seed parts at once; --json says where.
  const std::string other = folder / "other";
  REQUIRE(limpid_command(small_train({"--effective-batch", "64", "--micro-batch", "16", "--lr", "0.002", "--out", other})).code == 0);
  const CommandResult diff = limpid_command({"diff", run, other, "--json"});
  CHECK(diff.code == 1);
  CHECK(diff.json()["settings"][0] == "lr: 0.001, now 0.002");
  CHECK(diff.json()["differences"][0]["field"] == "lr_policy");  // the plan's line, which names the rate
  CHECK(diff.json()["differences"][1]["field"] == "lr");
  CHECK(diff.json()["differences"][1]["number"] == 0);
}

TEST_CASE("a tail of one sample under batch norm is warned of before the training") {
  const CommandResult r = limpid_command(small_train({"--batch", "71"}));  // 285 = 4 * 71 + 1
  CHECK_MESSAGE(r.code == 0, r.err);
  CHECK(contains(r.err, "the last step of an epoch has 1: --drop-last leaves it out"));
  const CommandResult noisy = limpid_command(small_train({"--batch", "64", "--micro-batch", "4"}));
  CHECK(contains(noisy.err, "of 3 samples, fewer than 8: the statistics are noisy"));
  const CommandResult quiet = limpid_command(small_train({"--batch", "57", "--quiet"}));  // 285 = 5 * 57
  CHECK(quiet.err.empty());
}

TEST_CASE("under a cap the command finds micro-batches that fit, and a retry gets to the end without") {
  TempFolder folder;
  const std::string planned = folder / "planned", retried = folder / "retried";
  const Words base = {"--effective-batch", "128", "--memory-cap", "36MiB", "--trace", "off"};
  Words words = small_train(base);
  words.insert(words.end(), {"--out", planned});
  const CommandResult plan = limpid_command(words);
  REQUIRE_MESSAGE(plan.code == 0, plan.err);
  CHECK(contains(plan.err, "parts of at most"));
  CHECK(contains(plan.err, "of 36.00 MiB"));
  CHECK_FALSE(contains(plan.err, "ran out of memory"));
  words = small_train(base);
  words.insert(words.end(), {"--micro-batch", "128", "--on-oom", "retry", "--out", retried});
  const CommandResult retry = limpid_command(words);
  REQUIRE_MESSAGE(retry.code == 0, retry.err);
  CHECK(contains(retry.err, "step 0 ran out of memory"));
  CHECK(contains(retry.err, "with micro-batches of 128; it was taken back and made again with 64"));
  for (const std::string& run : {planned, retried}) {
    const CommandResult check = limpid_command({"check", "ledger", run});
    CHECK_MESSAGE(check.code == 0, check.out);
    CHECK(contains(check.out, run == retried ? "was made again with micro-batches of 64 instead of 128" : "ok:"));
  }
  // Without the retry it stops with code 3 and leaves the first checkpoint unwritten.
  words = small_train(base);
  words.insert(words.end(), {"--micro-batch", "128"});
  CHECK(limpid_command(words).code == 3);
  // No micro-batch at all fits.
  words = small_train({"--effective-batch", "128", "--memory-cap", "9MiB"});
  const CommandResult nothing = limpid_command(words);
  CHECK(nothing.code == 3);
  CHECK_MESSAGE(contains(nothing.err, "no micro-batch fits"), nothing.err);
}

TEST_CASE("plan chooses micro-batches too") {
  const CommandResult r = limpid_command({"plan", "--model", "lenet-bn", "--effective-batch", "256", "--capacity", "48MiB", "--json"});
  REQUIRE_MESSAGE(r.code == 0, r.err);
  const std::int64_t micro = r.json()["micro_batch"];
  CHECK(micro < 256);
  CHECK(contains(r.err, "the fewest that fit"));
  // One part fewer does not fit.
  const auto parts = static_cast<std::int64_t>(r.json()["micro_batches"].size());
  const std::int64_t larger = (256 + parts - 2) / (parts - 1);
  CHECK(limpid_command({"plan", "--model", "lenet-bn", "--effective-batch", "256", "--capacity", "48MiB", "--micro-batch", std::to_string(larger)}).code == 3);
  const CommandResult nothing = limpid_command({"plan", "--model", "lenet-bn", "--effective-batch", "256", "--capacity", "22MiB"});
  CHECK(nothing.code == 3);
  CHECK(contains(nothing.out, "no micro-batch fits"));
  CHECK(limpid_command({"plan", "--model", "lenet-bn", "--effective-batch", "256", "--find", "--capacity", "1GiB"}).code == 2);
  CHECK(limpid_command({"plan", "--model", "lenet-bn", "--micro-batch", "8"}).code == 2);
}

TEST_CASE("nonsense is refused with both values, and a damaged ledger is bad data") {
  TempFolder folder;
  struct Case {
    Words more;
    const char* text;
  };
  const std::vector<Case> cases = {
      {{"--effective-batch", "16", "--micro-batch", "32"}, "micro-batch 32 is larger than the effective batch 16"},
      {{"--effective-batch", "0"}, "batch must be at least 1, got 0"},
      {{"--micro-batch", "-1"}, "micro-batch must be at least 0, got -1"},
      {{"--effective-batch", "16", "--batch", "16"}, "excludes"},
      {{"--on-oom", "pray"}, "on-oom is stop or retry; got pray"},
      {{"--batch", "1x"}, "expected a whole number"},
  };
  for (const Case& c : cases) {
    const CommandResult r = limpid_command(small_train(c.more));
    CHECK(r.code == 2);
    CHECK_MESSAGE(contains(r.err, c.text), r.err);
  }
  const std::string run = folder / "run";
  REQUIRE(limpid_command(small_train({"--batch", "64", "--out", run})).code == 0);
  const std::string path = run + "/ledger.jsonl", text = text_of(path);
  auto check_of = [&](const std::string& contents) {
    std::ofstream(path, std::ios::binary) << contents;
    return limpid_command({"check", "ledger", run});
  };
  CHECK(check_of(text).code == 0);
  std::string edited = text;
  edited.replace(edited.find("\"count\":64"), 10, "\"count\":32");
  const CommandResult changed = check_of(edited);
  CHECK(changed.code == 4);
  CHECK(contains(changed.err, "line 2: the line was changed"));
  CHECK(check_of(text.substr(0, text.size() / 2)).code == 4);
  CHECK(check_of("").code == 4);
  CHECK(limpid_command({"check", "ledger", folder / "nowhere"}).code == 4);
  CHECK(limpid_command({"check"}).code == 2);
  CHECK(limpid_command({"diff", run}).code == 2);
  CHECK(limpid_command({"diff", run, folder / "nowhere"}).code == 4);
  // Whole lines that are missing: the numbers do not fit.
  std::string shorter = text;
  const std::size_t second = shorter.find('\n') + 1, third = shorter.find('\n', second) + 1;
  shorter.erase(second, third - second);
  const CommandResult gap = check_of(shorter);
  CHECK(gap.code == 4);
  CHECK(contains(gap.out, "expected step 0: records are missing or repeated"));
  // A resumed run must be cut as before.
  std::ofstream(path, std::ios::binary) << text;
  const CommandResult resume = limpid_command({"train", "--resume", "--out", run, "--epochs", "3", "--micro-batch", "16"});
  CHECK(resume.code == 2);
  CHECK(contains(resume.err, "micro_batch: 0, now 16"));
}

namespace {

// Name and contents of every file of a run but its lock.
std::vector<std::pair<std::string, std::string>> files_of(const std::string& run) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    if (entry.is_regular_file() && entry.path().filename() != ".lock")
      out.emplace_back(entry.path().string(), text_of(entry.path().string()));
  }
  std::sort(out.begin(), out.end());
  return out;
}

// A line of a ledger with `from` replaced by `to`, and the CRC of the new text.
std::string changed_line(std::string line, const std::string& from, const std::string& to) {
  line.replace(line.find(from), from.size(), to);
  line = line.substr(0, line.rfind(",\"crc\"")) + "}";
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08lx", ::crc32(0, reinterpret_cast<const Bytef*>(line.data()), static_cast<uInt>(line.size())));
  line.pop_back();
  return line + ",\"crc\":\"" + crc + "\"}";
}

}  // namespace

TEST_CASE("a ledger of another version is bad data for every reader, and what is refused leaves the run as it was") {
  TempFolder folder;
  const std::string run = folder / "run", path = run + "/ledger.jsonl";
  REQUIRE(limpid_command(small_train({"--effective-batch", "64", "--micro-batch", "16", "--quantum", "8", "--out", run})).code == 0);
  const auto before = files_of(run);
  const std::vector<Words> refusals = {
      {"train", "--resume", "--out", run, "--micro-batch", "32"},
      {"train", "--resume", "--out", run, "--quantum", "4"},
      {"train", "--resume", "--out", run, "--effective-batch", "0"},
      {"train", "--resume", "--overwrite", "--out", run},
      small_train({"--effective-batch", "64", "--micro-batch", "128", "--overwrite", "--out", run}),
      small_train({"--effective-batch", "64", "--micro-batch", "16", "--quantum", "12", "--overwrite", "--out", run}),
      small_train({"--effective-batch", "64", "--batch", "64", "--overwrite", "--out", run}),
      small_train({"--batch", "64", "--always-adapt", "--overwrite", "--out", run}),
      small_train({"--batch", "64", "--out", run}),  // there is a run in it
  };
  for (const Words& words : refusals) {
    const CommandResult r = limpid_command(words);
    CHECK_MESSAGE(r.code == 2, r.err);
    CHECK(r.err.size() > 20);
    CHECK(files_of(run) == before);
  }
  // A cap that holds no sample: out of memory, before the run that is there is touched.
  const CommandResult cap = limpid_command(small_train({"--effective-batch", "64", "--memory-cap", "9MiB", "--overwrite", "--out", run}));
  CHECK(cap.code == 3);
  CHECK(contains(cap.err, "no micro-batch fits"));

  std::string text = text_of(path);
  const std::size_t end = text.find('\n');
  const std::string line = changed_line(text.substr(0, end), "\"version\":1", "\"version\":2");
  std::ofstream(path, std::ios::binary) << line << text.substr(end);
  for (const Words& words : {Words{"check", "ledger", run}, Words{"diff", run, run}, Words{"report", run}}) {
    const CommandResult r = limpid_command(words);
    CHECK(r.code == 4);
    CHECK_MESSAGE(contains(r.err, "the ledger has version 2, this program reads 1"), r.err);
  }
  // One from before the quantum was recorded is read.
  const std::string old = changed_line(text.substr(0, end), "\"quantum\":8,", "");
  std::ofstream(path, std::ios::binary) << old << text.substr(end);
  const std::string alone = folder / "old.jsonl";  // the checkpoint in the run knows a longer one
  fs::copy_file(path, alone);
  CHECK(limpid_command({"check", "ledger", alone}).code == 0);
  CHECK(limpid_command({"report", run}).code == 0);
}

namespace {

std::size_t step_lines(const std::string& run) {
  if (!fs::exists(run + "/steps.jsonl")) return 0;  // not begun
  const std::string text = text_of(run + "/steps.jsonl");
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Kills the run `kills` times at random steps, resumes it each time, and compares with the uninterrupted one.
void killed_and_resumed(const Words& base, int kills, std::size_t steps) {
  TempFolder folder;
  const std::string whole = folder / "whole", killed = folder / "killed";
  Words words = base;
  words.insert(words.end(), {"--out", whole});
  const CommandResult r = limpid_command(words);
  REQUIRE_MESSAGE(r.code == 0, r.err);
  REQUIRE(step_lines(whole) == steps);
  words.back() = killed;
  std::mt19937 random(11);
  int done = 0;
  CommandResult last;
  for (int i = 0; i < 4 * kills && done < kills; i++) {
    Command command(words);
    const std::size_t target = random() % steps;
    while (command.running() && step_lines(killed) < target) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    command.send(SIGKILL);
    last = command.wait();
    REQUIRE_MESSAGE((last.signal == SIGKILL || last.code == 0), last.err);
    done += last.signal == SIGKILL;
    if (fs::exists(killed + "/run.json")) words = {"train", "--resume", "--out", killed, "--quiet"};
    // A run that has ended starts over, so that every kill hits one that works.
    if (last.code == 0) {
      CHECK(same_weights(last_model(whole), last_model(killed)));
      fs::remove_all(killed);
      words = base;
      words.insert(words.end(), {"--out", killed});
    }
  }
  CHECK(done == kills);
  if (fs::exists(killed + "/run.json")) words = {"train", "--resume", "--out", killed, "--quiet"};
  REQUIRE(limpid_command(words).code == 0);
  CHECK(same_weights(last_model(whole), last_model(killed)));
  // The ledgers are equal too, memory figures and the loss of nothing aside.
  const CommandResult diff = limpid_command({"diff", whole, killed, "--json"});
  for (const auto& d : diff.json()["differences"]) CHECK_MESSAGE(d["record"] == "epoch", d.dump());
  CHECK(limpid_command({"check", "ledger", killed}).code == 0);
}

}  // namespace

TEST_CASE("killed at eight random points of an accumulated run and resumed: the same bits and the same ledger") {
  killed_and_resumed(small_train({"--effective-batch", "48", "--micro-batch", "12", "--checkpoint-every", "2"}), 8, 12);
}

TEST_CASE("the same under mixed precision with a loss scale, which is part of the checkpoint") {
  killed_and_resumed(small_train({"--effective-batch", "48", "--micro-batch", "12", "--amp", "fp16", "--checkpoint-every", "2"}), 4, 12);
  CHECK(limpid_command(small_train({"--amp", "fp8"})).code == 2);
}

TEST_CASE("long: killed at fifty random points of an accumulated run in fp16 and resumed") {
  killed_and_resumed(small_train({"--effective-batch", "64", "--micro-batch", "16", "--amp", "fp16", "--checkpoint-every", "2", "--epochs", "6"}), 50, 30);
}

TEST_CASE("check accumulation: equal, not equal with the cause, and the quantum's proof") {
  const Words small = {"check", "accumulation", "--input", "1x12x12", "--batch", "32", "--json"};
  auto with = [&](const Words& more) {
    Words words = small;
    words.insert(words.end(), more.begin(), more.end());
    return limpid_command(words);
  };
  const CommandResult equal = with({"--model", "lenet", "--micro", "8"});
  CHECK_MESSAGE(equal.code == 0, equal.err);
  CHECK(equal.json()["equal"] == true);
  CHECK(equal.json()["proof"]["relative"].get<double>() <= 1e-12);
  CHECK(contains(equal.err, "lenet: 1 x 32 against 4 x 8\n"));
  const CommandResult norm = with({"--model", "lenet-bn", "--micro", "8"});
  CHECK(norm.code == 1);
  CHECK(norm.json()["causes"][0]["cause"] == "batch norm");
  CHECK(with({"--model", "lenet-bn", "--micro", "8", "--bn-mode", "exact"}).code == 0);
  CHECK(with({"--model", "lenet-bn", "--micro", "8", "--norm", "group"}).code == 0);
  const CommandResult uneven = with({"--model", "lenet", "--micro", "15", "--loop", "mean-of-means"});  // 11 + 11 + 10
  CHECK(uneven.code == 1);
  CHECK(uneven.json()["micro_batches"] == nlohmann::json{11, 11, 10});
  CHECK(uneven.json()["causes"][0]["cause"] == "normaliser");
  const CommandResult bits = with({"--model", "lenet", "--quantum", "8", "--steps", "2"});
  CHECK_MESSAGE(bits.code == 0, bits.err);
  CHECK(bits.json()["rows"].size() == 6);  // 1x32, 2x16, 4x8 on 1 and 2 threads
  CHECK(with({"--model", "lenet", "--quantum", "0", "--steps", "2"}).code == 1);

  auto refused = [&](const Words& more, const std::string& why) {
    const CommandResult r = with(more);
    CHECK(r.code == 2);
    CHECK_MESSAGE(contains(r.err, why), r.err);
  };
  refused({"--micro", "33"}, "--micro 33 is larger than --batch 32");
  refused({"--micro", "0"}, "--micro must be at least 1, got 0");
  refused({"--micro", "-4"}, "--micro must be at least 1, got -4");
  refused({"--micro", "4.5"}, "whole number");
  refused({"--batch", "0"}, "");
  refused({"--quantum", "12"}, "--batch 32 is no multiple of --quantum 12");
  refused({"--quantum", "64"}, "--quantum is 0 to --batch 32, got 64");
  refused({"--quantum", "8", "--loop", "lost"}, "--quantum compares the bits of limpid's own steps");
  refused({"--loop", "halved"}, "there is no mistake 'halved'");
  refused({"--bn-mode", "ghost"}, "the modes are micro, frozen and exact, got ghost");
  refused({"--norm", "none"}, "--norm is batch, group or layer, got none");
  refused({"--dtype", "i32"}, "--dtype is f64, f32, f16 or bf16, got i32");
  refused({"--model", "vgg"}, "there is no model 'vgg'");
}

TEST_CASE("with a quantum the micro-batch and the threads do not change a bit of a run") {
  TempFolder folder;
  auto run = [&](const std::string& name, const Words& more) {
    Words words = small_train({"--batch", "64", "--quantum", "8", "--epochs", "1", "--out", folder / name});
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult r = limpid_command(words);
    CHECK_MESSAGE(r.code == 0, r.err);
    CHECK(limpid_command({"check", "ledger", folder / name}).code == 0);
    return last_model(folder / name);
  };
  const std::string whole = run("whole", {});
  CHECK(same_weights(whole, run("cut", {"--micro-batch", "16"})));
  CHECK(limpid_command({"diff", folder / "whole", folder / "cut"}).code == 1);  // the plan's micro_batch is another
  CHECK(limpid_command(small_train({"--batch", "64", "--micro-batch", "16", "--quantum", "12"})).code == 2);
  const CommandResult both = limpid_command(small_train({"--batch", "64", "--quantum", "8", "--on-oom", "retry"}));
  CHECK(both.code == 2);
  CHECK(contains(both.err, "the quantum 8 fixes their size: use one of them"));
}

TEST_CASE("train: the modes of batch norm, what they cost, and what is too small") {
  TempFolder folder;
  const std::string run = folder / "run";
  const CommandResult exact = limpid_command(small_train(
      {"--batch", "64", "--micro-batch", "16", "--bn-mode", "exact", "--epochs", "1", "--out", run, "--json"}));
  REQUIRE_MESSAGE(exact.code == 0, exact.err);
  CHECK(contains(exact.err, "norm   exact batch norm over 2 layers and 4 micro-batches: 5 forward and 3 backward sweeps over 64 samples"));
  CHECK(exact.json()["bn_mode"] == "exact");
  CHECK(contains(text_of(run + "/ledger.jsonl"), "\"bn_updates\":1,"));
  CHECK(limpid_command({"check", "ledger", run}).code == 0);
  const CommandResult micro = limpid_command(small_train({"--batch", "64", "--micro-batch", "4", "--epochs", "1"}));
  CHECK(contains(micro.err, "of 3 samples, fewer than 8: the statistics are noisy"));
  const CommandResult frozen = limpid_command(
      small_train({"--batch", "64", "--micro-batch", "4", "--bn-mode", "frozen", "--bn-momentum", "micro", "--epochs", "1"}));
  CHECK(frozen.code == 0);
  CHECK_FALSE(contains(frozen.err, "noisy"));
  // Where exact statistics are the ordinary ones, one line says so.
  const CommandResult whole = limpid_command(small_train({"--batch", "64", "--bn-mode", "exact", "--epochs", "1"}));
  CHECK(contains(
      whole.err,
      "norm   bn-mode exact changes nothing: a step is one micro-batch, whose statistics are those of its 64 samples"));
  const CommandResult none =
      limpid_command({"train", "--data", "synthetic", "--input", "1x8x8", "--classes", "4", "--limit", "400", "--model", "mlp",
                      "--batch", "64", "--micro-batch", "16", "--bn-mode", "exact", "--epochs", "1", "--workers", "0"});
  CHECK(contains(none.err, "norm   bn-mode exact has nothing to do: the model has no batch norm"));
  CHECK(limpid_command(small_train({"--bn-mode", "ghost"})).code == 2);
  CHECK(limpid_command(small_train({"--bn-momentum", "often"})).code == 2);
  // Another mode is another run.
  CHECK(limpid_command({"train", "--resume", "--out", run, "--bn-mode", "micro"}).code == 2);
}

TEST_CASE("diff says that a run is still running") {
  TempFolder folder;
  const std::string run = folder / "run", going = folder / "going";
  REQUIRE(limpid_command(small_train({"--out", run})).code == 0);
  Command command(small_train({"--epochs", "100000", "--lr", "0.005", "--out", going}));
  while (command.running() && (!fs::exists(going + "/ckpt/last")))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  REQUIRE(command.running());
  for (int i = 0; i < 5; i++) {
    const CommandResult r = limpid_command({"diff", run, going, "--json"});
    CHECK(r.code == 1);
    CHECK(contains(r.err, "note: " + going + " is still running: compared is what it had written by now, "));
    CHECK(r.json()["notes"].size() == 1);
  }
}

TEST_CASE("a batch larger than the training set is warned of, and refused under a scaling policy") {
  const CommandResult r =
      limpid_command(small_train({"--effective-batch", "4096", "--micro-batch", "64", "--epochs", "1"}));
  CHECK(r.code == 0);
  CHECK(contains(r.err,
                 "warning: the effective batch is 4096, the training set has 285 samples: every step has these 285"));
  const CommandResult scaled =
      limpid_command(small_train({"--batch", "4096", "--lr-policy", "linear", "--reference-batch", "64"}));
  CHECK(scaled.code == 2);
  CHECK(contains(scaled.err, "would scale lr for a batch of 4096, but the training set has 285 samples"));
  const CommandResult quantum = limpid_command(small_train({"--batch", "16", "--quantum", "17"}));
  CHECK(quantum.code == 2);
  CHECK(contains(quantum.err, "the quantum 17 is larger than the batch, 16"));
  CHECK_FALSE(contains(quantum.err, "micro-batch"));
}
