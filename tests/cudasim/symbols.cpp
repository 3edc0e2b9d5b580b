#include <cudasim/symbols.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <unordered_map>
#include <vector>

#include <cxxabi.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

namespace limpid::cudasim {
namespace {
constexpr const char* kProgram = "/proc/self/exe";

// Where the program was loaded: addresses in its file count from there.
std::uintptr_t load_address() {
  std::uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<std::uintptr_t*>(out) = info->dlpi_addr;  // the program itself comes first
        return 1;
      },
      &base);
  return base;
}

std::unordered_map<std::uintptr_t, std::string> read_symbols() {
  std::unordered_map<std::uintptr_t, std::string> names;
  std::ifstream in(kProgram, std::ios::binary);
  std::vector<char> file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (file.size() < sizeof(Elf64_Ehdr)) return names;
  auto read = [&](auto& value, std::uint64_t offset) {
    if (offset + sizeof value > file.size()) return false;
    std::memcpy(&value, file.data() + offset, sizeof value);
    return true;
  };
  Elf64_Ehdr header;
  read(header, 0);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  for (std::size_t i = 0; i < sections.size(); i++) {
    if (!read(sections[i], header.e_shoff + i * header.e_shentsize)) return names;
  }
  for (const Elf64_Shdr& table : sections) {
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= sections.size()) continue;
    const Elf64_Shdr& strings = sections[table.sh_link];
    for (std::uint64_t offset = 0; offset < table.sh_size; offset += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      if (!read(symbol, table.sh_offset + offset) || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value == 0) continue;
      if (strings.sh_offset + symbol.st_name < file.size()) names[symbol.st_value] = file.data() + strings.sh_offset + symbol.st_name;
    }
  }
  return names;
}
}  // namespace

std::string symbol_at(const void* function) {
  static const std::unordered_map<std::uintptr_t, std::string> names = read_symbols();
  const auto found = names.find(reinterpret_cast<std::uintptr_t>(function) - load_address());
  return found == names.end() ? std::string() : found->second;
}

std::string demangled(const std::string& symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 && text ? text : symbol;
  std::free(text);
  return result;
}

namespace {
// "/path/file.cu:12 (discriminator 3)" -> {"file.cu", 12}
SourceLine parse_line(std::string text) {
  text.resize(std::min(text.size(), text.find_first_of("\n ")));
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || text[0] == '?') return {"?", 0};
  const std::size_t slash = text.rfind('/', colon);
  const std::size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return {text.substr(begin, colon - begin), std::atoi(text.c_str() + colon + 1)};
}
bool is_kernel_source(const std::string& file) {
  return (file.ends_with(".cu") || file.ends_with(".cuh")) && file != "cuda_lang.cuh";
}
}  // namespace

SourceLine source_line(const void* code_address) {
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(code_address) - load_address();
  char command[128], output[1024];
  std::snprintf(command, sizeof command, "addr2line -i -e /proc/%d/exe 0x%zx 2>/dev/null", static_cast<int>(getpid()), offset);
  FILE* pipe = popen(command, "r");
  if (!pipe) return {"?", 0};
  // Innermost inlined function first: the kernel's own line is the first one that is not of the language headers.
  SourceLine first{"?", 0}, best{"?", 0};
  while (std::fgets(output, sizeof output, pipe)) {
    const SourceLine line = parse_line(output);
    if (first.line == 0) first = line;
    if (best.line == 0 && is_kernel_source(line.file)) best = line;
  }
  pclose(pipe);
  return best.line != 0 ? best : first;
}

}  // namespace limpid::cudasim
