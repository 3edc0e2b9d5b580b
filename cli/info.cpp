// limpid info: how this program was built, what it runs on, which data sets it finds.
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/format.h>
#include <limpid/data/registry.h>
#include <limpid/nn/models/models.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/train/machine.h>
#include <limpid/version.h>

#include "commands.h"
#include "common.h"

namespace limpid::cli {
namespace {

struct InfoOptions {
  std::string data_dir;
  bool json = false;
};

int run(const InfoOptions& o) {
  const train::MachineInfo machine = train::machine_info();
  const std::string toolkit = LIMPID_CUDA_TOOLKIT_VERSION;
  nlohmann::ordered_json json;
  json["version"] = LIMPID_VERSION;
  json["build"] = machine.build;
  json["compiler"] = machine.compiler;
  json["system"] = machine.system;
  json["cpu"] = machine.cpu;
  json["cores"] = machine.cores;
  json["isa"] = machine.isa;
  json["memory_bytes"] = machine.memory_bytes;
  json["threads"] = cpu::num_threads();
  json["cuda_toolkit"] = toolkit.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(toolkit);
  json["gpus"] = nlohmann::ordered_json::array();
  json["models"] = nn::model_names();
  json["datasets"] = nlohmann::ordered_json::object();
  std::string found;
  bool any = false;
  for (const std::string& name : data::dataset_names()) {
    if (name == "folder" || name == "synthetic") continue;
    const auto place = data::find_dataset(name, o.data_dir, data_search_paths());
    any |= place.has_value();
    json["datasets"][name] = place ? nlohmann::ordered_json(*place) : nlohmann::ordered_json(nullptr);
    found +=
        "  " + name + std::string(name.size() < 15 ? 15 - name.size() : 1, ' ') + (place ? *place : "not found") + "\n";
  }
  LIMPID_CHECK(o.data_dir.empty() || any, DataError, "--data-dir ", o.data_dir, " holds none of the data sets");
  std::FILE* to = o.json ? stderr : stdout;
  std::fprintf(to, "limpid %s (%s, %s)\n", LIMPID_VERSION, machine.build.c_str(), machine.compiler.c_str());
  std::fprintf(to, "system        %s\n", machine.system.c_str());
  std::fprintf(to, "cpu           %s, %d cores, kernels for %s\n", machine.cpu.c_str(), machine.cores,
               machine.isa.c_str());
  std::fprintf(to, "memory        %s\n", format_bytes(machine.memory_bytes).c_str());
  std::fprintf(to, "threads       %d\n", cpu::num_threads());
  std::fprintf(to, "cuda toolkit  %s\n", toolkit.empty() ? "not found when built" : toolkit.c_str());
  std::fprintf(to, "gpus          none in this build\n");
  std::fprintf(to, "data sets\n%s", found.c_str());
  if (o.json) print_json(json);
  return kOk;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("info", "Build, machine and data sets found");
  auto o = std::make_shared<InfoOptions>();
  sub->add_option("--data-dir", o->data_dir, "Look for data sets here and nowhere else");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
