#include <cudasim/ptx.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <cudasim/memory_map.h>
#include <cudasim/ptx_program.h>
#include <cudasim/symbols.h>

namespace limpid::cudasim {
namespace {

struct Loaded {
  // A program a file: functions and shared arrays of unnamed namespaces may have the same names in two files.
  std::vector<std::unique_ptr<ptx::Program>> programs;
  struct Found {
    const ptx::Program* program;
    const ptx::Function* function;
  };
  std::map<std::string, std::vector<Found>> kernels;  // by name_without_parameters
};
Loaded& loaded() {
  static Loaded loaded;
  return loaded;
}

// "limpid::cu::fill<float>" of "void limpid::cu::fill<float>(float*, long)": g++ and nvcc may write the types of a template's
// parameters in other words (as an expression, or as what it stands for), but not its name and arguments.
std::string name_without_parameters(const std::string& symbol) {
  std::string name = demangled(symbol);
  int depth = 0;
  for (std::size_t at = name.size(); at > 0 && name.back() == ')';) {  // the last pair of parentheses
    at--;
    depth += name[at] == ')';
    depth -= name[at] == '(';
    if (depth == 0) name.resize(at);
  }
  const std::string result = "void ";
  return name.rfind(result, 0) == 0 ? name.substr(result.size()) : name;
}

void load_from_environment() {
  static bool done = false;
  if (done) return;
  const char* list = std::getenv("CUDASIM_PTX");
  if (list && !*list) throw std::runtime_error("CUDASIM_PTX names no file");
  std::istringstream files(list ? list : "");
  std::string file;
  while (std::getline(files, file, ':')) load_ptx(file);
  done = true;  // not before: a file that does not load fails every launch, so that no test passes without it
}
}  // namespace

void load_ptx(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read the PTX file " + file);
  std::stringstream text;
  text << in.rdbuf();
  auto program = std::make_unique<ptx::Program>();
  ptx::parse(*program, text.str(), file);
  for (const auto& [name, function] : program->functions) {
    if (!function->is_kernel) continue;
    auto& same = loaded().kernels[name_without_parameters(name)];
    // A template's instance may stand in several files, under one mangled name: any will do.
    bool known = false;
    for (const auto& other : same) known = known || other.function->name == name;
    if (!known) same.push_back({program.get(), function.get()});
  }
  loaded().programs.push_back(std::move(program));
}

void unload_ptx() {
  for (const auto& program : loaded().programs) {
    for (const auto& [name, bytes] : program->data) remove_memory(bytes.data());
  }
  loaded() = Loaded{};
}

std::function<void()> ptx_body(const Kernel& kernel) {
  load_from_environment();
  if (loaded().programs.empty()) return nullptr;
  const std::string name = name_without_parameters(symbol_at(kernel.function));
  const auto found = loaded().kernels.find(name);
  if (found == loaded().kernels.end()) throw std::runtime_error("the loaded PTX has no kernel " + (name.empty() ? "of the stripped program" : name));
  if (found->second.size() > 1) throw std::runtime_error("the loaded PTX has two kernels " + name + ": give one another name");
  const ptx::Program& program = *found->second[0].program;
  const ptx::Function& function = *found->second[0].function;
  if (function.parameters.size() != kernel.arguments.size()) {
    throw std::runtime_error(name + " has " + std::to_string(function.parameters.size()) + " parameters in PTX, " +
                             std::to_string(kernel.arguments.size()) + " in C++");
  }
  auto arguments = std::make_shared<std::vector<unsigned char>>(function.frame_bytes);
  for (std::size_t k = 0; k < kernel.arguments.size(); k++) {
    const ptx::Slot& slot = function.parameters[k];
    if (slot.bytes != kernel.arguments[k].bytes) {
      throw std::runtime_error("parameter " + std::to_string(k) + " of " + name + " has " + std::to_string(slot.bytes) +
                               " bytes in PTX, " + std::to_string(kernel.arguments[k].bytes) + " in C++");
    }
    std::memcpy(arguments->data() + slot.offset, kernel.arguments[k].data, slot.bytes);
  }
  return [&program, &function, arguments] { ptx::run(program, function, arguments->data()); };
}

}  // namespace limpid::cudasim
