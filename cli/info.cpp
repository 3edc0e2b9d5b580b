// limpid info: how this program was built, what it runs on, which data sets it finds.
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/format.h>
#include <limpid/cuda/libraries.h>
#include <limpid/cuda/runtime.h>
#include <limpid/data/registry.h>
#include <limpid/nn/models/models.h>
#include <limpid/tensor/backend.h>
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

using Json = nlohmann::ordered_json;

struct Gpus {
  std::string text;
  Json json = Json::array(), cuda;
  bool incompatible = false;  // parts that do not fit together; a missing one is no error
};

// "libcudnn.so.9 9.19.0" or "wanted libcudnn.so.9, not found; without it: convolutions by limpid's own kernels"
std::string library_text(const cu::LibraryReport& r) {
  if (r.problem.empty()) return r.found + " (" + r.path + ")";
  return "wanted " + r.wanted + ", " + r.problem + "; without it: " + r.without;
}

Gpus look_at_gpus() {
  Gpus g;
  const cu::Availability& a = cu::availability();
  g.incompatible = a.incompatible;
  const auto version = [](int v) { return v == 0 ? Json(nullptr) : Json(cu::version_text(v)); };
  g.cuda = {{"driver", version(a.driver_version)},
            {"runtime", version(a.runtime_version)},
            {"problem", a.problem.empty() ? Json(nullptr) : Json(a.problem)},
            {"incompatible", a.incompatible},
            {"computes", computes({DeviceType::cuda, 0})},
            {"libraries", Json::array()}};
  if (a.devices == 0) {
    g.text = "no CUDA device (" + a.problem + ")";
  } else {
    g.text = concat(a.devices, ", driver for CUDA ", cu::version_text(a.driver_version), ", runtime ",
                    cu::version_text(a.runtime_version));
    if (!computes({DeviceType::cuda, 0})) g.text += "; this build has no kernels for them: tensors can lie there, not be computed with";
  }
  for (int i = 0; i < cu::device_count(); i++) {
    const cu::DeviceProperties& p = cu::device_properties(i);
    g.text += concat("\n  cuda:", i, "      ", p.name, ", compute capability ", p.major, ".", p.minor, ", ", p.multiprocessors,
                     " multiprocessors, ", format_bytes(p.total_bytes));
    g.json.push_back({{"device", concat("cuda:", i)},
                      {"name", p.name},
                      {"capability", concat(p.major, ".", p.minor)},
                      {"multiprocessors", p.multiprocessors},
                      {"memory_bytes", p.total_bytes}});
  }
  for (const cu::LibraryReport& r : cu::library_reports()) {
    g.cuda["libraries"].push_back({{"purpose", r.purpose},
                                   {"wanted", r.wanted},
                                   {"found", r.found.empty() ? Json(nullptr) : Json(r.found)},
                                   {"problem", r.problem.empty() ? Json(nullptr) : Json(r.problem)},
                                   {"without", r.without}});
    if (a.devices > 0) g.text += "\n  " + r.purpose + std::string(r.purpose.size() < 17 ? 17 - r.purpose.size() : 1, ' ') + library_text(r);
  }
  return g;
}

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
  const Gpus gpus = look_at_gpus();
  json["gpus"] = gpus.json;
  json["cuda"] = gpus.cuda;
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
  std::fprintf(to, "gpus          %s\n", gpus.text.c_str());
  std::fprintf(to, "data sets\n%s", found.c_str());
  if (o.json) print_json(json);
  return gpus.incompatible ? kFailedCheck : kOk;
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
