// What the command says about GPUs: on a machine without a driver, with the fake driver, with one that is too old.
#include <cstdlib>
#include <string>

#include <doctest/doctest.h>

#include "command.h"

using namespace limpid_test;

namespace {

// The command with the fake CUDA libraries in place of the system's.
CommandResult with_fake(const std::vector<std::string>& arguments, const char* settings) {
  const char* former = std::getenv("LD_LIBRARY_PATH");
  const std::string saved = former ? former : "";
  ::setenv("LD_LIBRARY_PATH", LIMPID_BINARY_DIR "/tests/cudasim", 1);
  ::setenv("LIMPID_FAKE_CUDA", settings, 1);
  const CommandResult result = limpid_command(arguments);
  ::unsetenv("LIMPID_FAKE_CUDA");
  former ? ::setenv("LD_LIBRARY_PATH", saved.c_str(), 1) : ::unsetenv("LD_LIBRARY_PATH");
  return result;
}
bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("info: devices, versions, libraries") {
  const CommandResult r = with_fake({"info", "--json"}, "devices=2,capacity_mib=512");
  CHECK(r.code == 0);
  CHECK(has(r.err, "gpus          2, driver for CUDA 13.0, runtime 13.0"));
  CHECK(has(r.err, "cuda:1      Simulated GPU 1, compute capability 9.0, 132 multiprocessors, 512.00 MiB"));
  CHECK(has(r.err, "matrix products  13.1.0 ("));
  const nlohmann::json json = r.json();
  CHECK(json["gpus"].size() == 2);
  CHECK(json["gpus"][0]["memory_bytes"] == 512 << 20);
  CHECK(json["cuda"]["driver"] == "13.0");
  CHECK(json["cuda"]["problem"].is_null());
  CHECK(json["cuda"]["libraries"].size() == 5);
}

TEST_CASE("info: a driver that is too old is an error with both versions, no device is none") {
  const CommandResult old = with_fake({"info"}, "driver=12020");
  CHECK(old.code == 1);
  CHECK(has(old.out, "no CUDA device (the driver is too old: it serves CUDA up to 12.2, the runtime library is 13.0)"));
  const CommandResult none = with_fake({"info", "--json"}, "devices=0");
  CHECK(none.code == 0);
  CHECK(has(none.err, "no CUDA device (the driver (CUDA 13.0) sees none)"));
  CHECK(none.json()["gpus"].empty());
  CHECK(none.json()["cuda"]["incompatible"] == false);
}

TEST_CASE("--device: a GPU that is not there, one without kernels, nonsense") {
  const std::vector<std::string> train{"train",   "--data", "synthetic", "--model", "mlp",
                                       "--limit", "64",     "--epochs",  "1",       "--quiet"};
  const auto on = [&](const char* device) {
    std::vector<std::string> words = train;
    words.insert(words.end(), {"--device", device});
    return words;
  };
  CommandResult r = with_fake(on("cuda"), "devices=1");
  CHECK(r.code == 2);
  CHECK(has(r.err, "this build cannot compute on cuda:0: it has kernels for cpu only"));
  r = with_fake(on("cuda:3"), "devices=1");
  CHECK(r.code == 2);
  CHECK(has(r.err, "cuda:3 is not there, the last is cuda:0"));
  r = with_fake(on("cuda"), "driver=12020");
  CHECK(r.code == 2);
  CHECK(has(r.err, "cuda:0: no CUDA device (the driver is too old: it serves CUDA up to 12.2"));
  r = with_fake(on("gpu"), "devices=1");
  CHECK(r.code == 2);
  CHECK(has(r.err, "device must be cpu, cuda[:index], dry:cpu or dry:cuda, got 'gpu'"));
  r = with_fake(on("dry:cpu"), "devices=1");
  CHECK(r.code == 2);
  CHECK(has(r.err, "nothing is computed on dry:cpu"));
  // Without --device, a GPU that cannot be computed on changes nothing.
  r = with_fake(train, "devices=1");
  CHECK(r.code == 0);
}
