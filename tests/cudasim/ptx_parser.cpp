// PTX text to instructions. Statements end with ';'; a label ends with ':'; blocks in braces only scope names.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <cudasim/memory_map.h>
#include <cudasim/ptx_program.h>

namespace limpid::cudasim::ptx {
namespace {

const std::map<std::string, Type>& types() {
  static const std::map<std::string, Type> types = {
      {"pred", Type::pred}, {"b8", Type::b8}, {"b16", Type::b16}, {"b32", Type::b32}, {"b64", Type::b64}, {"u8", Type::u8},
      {"u16", Type::u16}, {"u32", Type::u32}, {"u64", Type::u64}, {"s8", Type::s8}, {"s16", Type::s16}, {"s32", Type::s32},
      {"s64", Type::s64}, {"f16", Type::f16}, {"f16x2", Type::f16x2}, {"bf16", Type::bf16}, {"bf16x2", Type::bf16x2},
      {"f32", Type::f32}, {"f64", Type::f64}};
  return types;
}
std::string without_underscore(std::string name) {  // and_, const_: names that C++ keeps for itself
  if (name.back() == '_') name.pop_back();
  return name;
}
const std::map<std::string, Op>& ops() {
  static const std::map<std::string, Op> ops = {
#define V(name) {without_underscore(#name), Op::name},
      LIMPID_PTX_OPS(V)
#undef V
  };
  return ops;
}
const std::map<std::string, Mod>& modifiers() {
  static const std::map<std::string, Mod> modifiers = {
#define V(name) {without_underscore(#name), Mod::name},
      LIMPID_PTX_MODIFIERS(V)
#undef V
  };
  return modifiers;
}
const std::map<std::string, int>& special_registers() {
  static const std::map<std::string, int> special = [] {
    std::map<std::string, int> names;
    int i = 0;
    for (const char* name : {"%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z",
                             "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "WARP_SZ", "%lanemask_eq", "%lanemask_lt",
                             "%lanemask_le", "%lanemask_gt", "%lanemask_ge"}) {
      names[name] = i++;
    }
    return names;
  }();
  return special;
}

std::string trimmed(const std::string& s) {
  const std::size_t begin = s.find_first_not_of(" \t\r\n"), end = s.find_last_not_of(" \t\r\n");
  return begin == std::string::npos ? std::string() : s.substr(begin, end - begin + 1);
}
// At separators outside of {}, [] and ().
std::vector<std::string> split(const std::string& s, char separator) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (char c : s) {
    depth += c == '{' || c == '[' || c == '(';
    depth -= c == '}' || c == ']' || c == ')';
    if (c == separator && depth == 0) {
      parts.push_back(trimmed(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (!trimmed(part).empty()) parts.push_back(trimmed(part));
  return parts;
}
bool starts_with(const std::string& s, const char* prefix) { return s.rfind(prefix, 0) == 0; }

// ".param .align 8 .b8 name[16]", ".reg .b32 %r<5>", ".shared .align 16 .b8 name[128]", with an initialiser or without.
struct Declaration {
  Type type = Type::none;
  std::string name, initialiser;
  std::size_t align = 1, count = 1;
  bool is_array = false, is_extern = false;
  std::size_t bytes() const { return size_of(type) * count; }
};

class Parser {
 public:
  Parser(Program& program, std::string name) : program_(program), name_(std::move(name)) {}

  void parse(const std::string& text) {
    std::string line;
    for (std::istringstream files(text); std::getline(files, line);) {  // they stand at the end
      if (starts_with(trimmed(line), ".file")) read_file(trimmed(line));
    }
    std::istringstream in(text);
    while (std::getline(in, line)) {
      line_++;
      const std::size_t comment = line.find("//");
      if (comment != std::string::npos) line.resize(comment);
      line = trimmed(line);
      if (starts_with(line, ".version") || starts_with(line, ".target") || starts_with(line, ".address_size")) continue;
      if (starts_with(line, ".section")) break;  // debugging information follows
      if (starts_with(line, ".file")) continue;
      if (starts_with(line, ".loc ") || starts_with(line, ".loc\t")) {
        read_location(line);
      } else {
        for (char c : line) take(c);
        take(' ');
      }
    }
    if (!trimmed(statement_).empty() || function_) fail("unexpected end", statement_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& where) const {
    throw std::runtime_error(name_ + ":" + std::to_string(line_) + ": " + what + ": " + trimmed(where));
  }

  // One character of the text: finds the ends of statements, labels and blocks.
  void take(char c) {
    const std::string so_far = trimmed(statement_);
    const bool header = starts_with(so_far, ".visible .entry") || starts_with(so_far, ".entry") || starts_with(so_far, ".weak") ||
                        starts_with(so_far, ".func") || starts_with(so_far, ".visible .func");
    if (c == '{' && header) {
      begin_function(so_far);
      statement_.clear();
    } else if (c == '{' && so_far.empty()) {
      scopes_.push_back({registers_, register_ranges_, slots_});  // inline assembly hides names of the code around it
    } else if (c == '}' && so_far.empty()) {
      if (!scopes_.empty()) {
        std::tie(registers_, register_ranges_, slots_) = std::move(scopes_.back());
        scopes_.pop_back();
      } else {
        end_function();
      }
    } else if (c == ':' && function_ && !so_far.empty() && so_far.find_first_of(" \t[{,.") == std::string::npos) {
      labels_[so_far] = static_cast<int>(function_->code.size());
      last_label_ = so_far;
      statement_.clear();
    } else if (c == ';') {
      if (!so_far.empty()) take_statement(so_far);
      statement_.clear();
    } else {
      statement_ += c;
    }
  }

  void take_statement(const std::string& s) {
    if (s[0] != '.') return function_ ? add_instruction(s) : fail("statement outside of a function", s);
    if (starts_with(s, ".pragma")) return;
    if (starts_with(s, ".branchtargets")) {
      tables_[last_label_] = split(s.substr(std::strlen(".branchtargets")), ',');
      return;
    }
    if (starts_with(s, ".func") || starts_with(s, ".visible .func") || starts_with(s, ".weak .func") || starts_with(s, ".extern .func")) return;  // announced only
    if (starts_with(s, ".reg")) return declare_registers(s);
    const Declaration d = read_declaration(s);
    if (s.find(".shared") != std::string::npos) {
      program_.shared_by_name[d.name] = static_cast<int>(program_.shared.size());
      program_.shared.push_back({d.bytes(), d.is_extern});
    } else if (starts_with(s, ".local") || starts_with(s, ".param")) {
      if (!function_) fail("declaration outside of a function", s);
      const Slot slot = slots_[d.name] = place_in_frame(d);
      if (starts_with(s, ".local")) function_->local = slot;  // nvcc declares one a function
    } else if (s.find(".global") != std::string::npos || s.find(".const") != std::string::npos) {
      declare_data(d, s);
    } else {
      fail("unknown directive", s);
    }
  }

  // ---------------------------------------------------------------- declarations

  Declaration read_declaration(std::string s) const {
    Declaration d;
    const std::size_t equals = s.find('=');
    if (equals != std::string::npos) {
      d.initialiser = trimmed(s.substr(equals + 1));
      s.resize(equals);
    }
    std::istringstream words(s);
    std::string word;
    while (words >> word) {
      if (word == ".align") {
        words >> d.align;
      } else if (word == ".extern") {
        d.is_extern = true;
      } else if (word[0] == '.') {
        const auto type = types().find(word.substr(1));
        if (type != types().end()) d.type = type->second;
      } else {
        d.name = word;
      }
    }
    const std::size_t bracket = d.name.find('[');
    if (bracket != std::string::npos) {
      d.count = std::strtoull(d.name.c_str() + bracket + 1, nullptr, 10);
      d.is_array = true;
      d.name.resize(bracket);
    } else {
      d.align = std::max<std::size_t>(d.align, size_of(d.type));
    }
    if (d.type == Type::none || d.name.empty()) fail("declaration that is not understood", s);
    return d;
  }

  Slot place_in_frame(const Declaration& d) {
    const std::size_t offset = (function_->frame_bytes + d.align - 1) / d.align * d.align;
    function_->frame_bytes = offset + d.bytes();
    return {offset, d.bytes()};
  }

  void declare_registers(const std::string& s) {
    std::istringstream words(s);
    std::string reg, type, rest;
    words >> reg >> type;
    std::getline(words, rest);
    for (const std::string& name : split(rest, ',')) {
      const std::size_t bracket = name.find('<');
      const int count = bracket == std::string::npos ? 1 : std::atoi(name.c_str() + bracket + 1);
      if (bracket == std::string::npos) {
        registers_[name] = function_->registers;
      } else {
        register_ranges_[name.substr(0, bracket)] = function_->registers;
      }
      function_->registers += count;
    }
  }

  void declare_data(const Declaration& d, const std::string& s) {
    std::vector<unsigned char> bytes(d.bytes(), 0);
    std::string list = d.initialiser;
    if (!list.empty() && list.front() == '{') list = list.substr(1, list.size() - 2);
    std::size_t at = 0;
    for (const std::string& value : split(list, ',')) {
      if (!std::isdigit(static_cast<unsigned char>(value[0])) && value[0] != '-') fail("initialiser that is no number", s);
      const std::uint64_t bits = number(value);
      if (at + size_of(d.type) > bytes.size()) fail("more initialisers than elements", s);
      std::memcpy(bytes.data() + at, &bits, size_of(d.type));
      at += size_of(d.type);
    }
    auto& kept = program_.data[d.name];
    if (!kept.empty()) return;  // the same table in another file
    kept = std::move(bytes);
    add_memory(kept.data(), kept.size(), Space::device, true, d.name);
  }

  // ---------------------------------------------------------------- functions

  void begin_function(const std::string& header) {
    const bool is_kernel = header.find(".entry") != std::string::npos;
    std::size_t at = header.find(is_kernel ? ".entry" : ".func") + std::strlen(is_kernel ? ".entry" : ".func");
    std::string results, parameters;
    at = header.find_first_not_of(" \t", at);
    if (header[at] == '(') {
      const std::size_t end = header.find(')', at);
      results = header.substr(at + 1, end - at - 1);
      at = end + 1;
    }
    const std::size_t open = header.find('(', at);
    const std::string name = trimmed(header.substr(at, open == std::string::npos ? open : open - at));
    if (open != std::string::npos) parameters = header.substr(open + 1, header.find(')', open) - open - 1);
    auto function = std::make_unique<Function>();
    function_ = function.get();
    function_->name = name;
    function_->is_kernel = is_kernel;
    kept_function_ = std::move(function);
    registers_.clear(), register_ranges_.clear(), labels_.clear(), slots_.clear(), tables_.clear();
    for (const std::string& p : split(parameters, ',')) {
      const Declaration d = read_declaration(p);
      function_->parameters.push_back(slots_[d.name] = place_in_frame(d));
    }
    for (const std::string& p : split(results, ',')) {
      const Declaration d = read_declaration(p);
      function_->results.push_back(slots_[d.name] = place_in_frame(d));
    }
  }

  void end_function() {
    if (!function_) fail("closing brace outside of a function", statement_);
    for (Instruction& instruction : function_->code) {
      for (Operand& operand : instruction.operands) resolve(instruction, operand);
    }
    program_.functions.try_emplace(function_->name, std::move(kept_function_));  // a template may stand in several files
    function_ = nullptr;
  }

  // Names that could not be known when they were read: labels ahead, and functions.
  void resolve(Instruction& instruction, Operand& operand) {
    if (operand.kind == Operand::Kind::memory) return resolve(instruction, operand.parts[0]);
    if (operand.kind != Operand::Kind::label) return;
    const auto label = labels_.find(operand.name);
    const auto table = tables_.find(operand.name);
    if (table != tables_.end()) {
      operand.kind = Operand::Kind::vector;
      for (const std::string& target : table->second) {
        if (!labels_.contains(target)) fail("unknown label", target);
        operand.parts.emplace_back().kind = Operand::Kind::label;
        operand.parts.back().index = labels_[target];
      }
    } else if (label != labels_.end()) {
      operand.index = label->second;
    } else if (instruction.op == Op::call) {
      operand.kind = Operand::Kind::function;
    } else {
      fail("unknown name " + operand.name, instruction.text);
    }
  }

  // ---------------------------------------------------------------- instructions

  void add_instruction(std::string s) {
    Instruction instruction;
    instruction.text = s;
    instruction.place = location_.line > 0 ? location_ : SourcePlace{file_name(name_), line_};
    if (s[0] == '@') {
      std::size_t end = s.find_first_of(" \t");
      instruction.guard_negated = s[1] == '!';
      instruction.guard = read_operand(s.substr(instruction.guard_negated ? 2 : 1, end - (instruction.guard_negated ? 2 : 1))).index;
      s = trimmed(s.substr(end));
    }
    const std::size_t end = s.find_first_of(" \t");
    const std::vector<std::string> words = split(s.substr(0, end), '.');
    const auto op = ops().find(words[0]);
    if (op == ops().end()) fail("unsupported instruction", instruction.text);
    instruction.op = op->second;
    for (std::size_t i = 1; i < words.size(); i++) read_modifier(instruction, words[i]);
    if (end != std::string::npos) {
      for (const std::string& operand : split(s.substr(end), ',')) {
        if (operand[0] == '(') {  // arguments of a call
          Operand list;
          list.kind = Operand::Kind::vector;
          for (const std::string& part : split(operand.substr(1, operand.size() - 2), ',')) list.parts.push_back(read_operand(part));
          instruction.operands.push_back(std::move(list));
        } else {
          instruction.operands.push_back(read_operand(operand));
        }
      }
    }
    function_->code.push_back(std::move(instruction));
  }

  void read_modifier(Instruction& instruction, const std::string& word) const {
    const auto type = types().find(word);
    const auto mod = modifiers().find(word);
    if (type != types().end()) {
      (instruction.type == Type::none ? instruction.type : instruction.second_type) = type->second;
    } else if (starts_with(word, "L1::") || starts_with(word, "L2::")) {
      instruction.mods.set(static_cast<std::size_t>(Mod::ignored));  // a cache hint
    } else if (mod != modifiers().end()) {
      instruction.mods.set(static_cast<std::size_t>(mod->second));
      const bool compares = (mod->second >= Mod::eq && mod->second <= Mod::nan) || mod->second == Mod::lo || mod->second == Mod::hi;
      if (instruction.op == Op::setp && compares) instruction.compare = static_cast<std::uint8_t>(mod->second);
      if (mod->second == Mod::v2) instruction.width = 2;
      if (mod->second == Mod::v4) instruction.width = 4;
      if (mod->second == Mod::v8) instruction.width = 8;
    } else if (starts_with(word, "shared::")) {
      instruction.mods.set(static_cast<std::size_t>(Mod::shared));
    } else {
      fail("unsupported modifier ." + word, instruction.text);
    }
  }

  std::uint64_t number(const std::string& s) const {
    if (starts_with(s, "0f") || starts_with(s, "0F") || starts_with(s, "0d") || starts_with(s, "0D")) {
      return std::strtoull(s.c_str() + 2, nullptr, 16);
    }
    return s[0] == '-' ? static_cast<std::uint64_t>(std::strtoll(s.c_str(), nullptr, 0)) : std::strtoull(s.c_str(), nullptr, 0);
  }

  int find_register(const std::string& name) const {
    const auto exact = registers_.find(name);
    if (exact != registers_.end()) return exact->second;
    std::size_t digits = name.size();
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1]))) digits--;
    const auto range = register_ranges_.find(name.substr(0, digits));
    return range == register_ranges_.end() ? -1 : range->second + std::atoi(name.c_str() + digits);
  }

  Operand read_operand(std::string s) {
    using Kind = Operand::Kind;
    Operand operand;
    if (s[0] == '!') {
      operand = read_operand(s.substr(1));
      operand.negated = true;
      return operand;
    }
    if (s == "_") {
      operand.kind = Kind::sink;
    } else if (s[0] == '{') {
      operand.kind = Kind::vector;
      for (const std::string& part : split(s.substr(1, s.size() - 2), ',')) operand.parts.push_back(read_operand(part));
    } else if (s[0] == '[') {
      std::string base = s.substr(1, s.size() - 2);
      const std::size_t plus = base.find('+');
      if (plus != std::string::npos) operand.offset = static_cast<std::int64_t>(number(trimmed(base.substr(plus + 1))));
      operand.parts.push_back(read_operand(trimmed(base.substr(0, plus))));
      operand.kind = Kind::memory;
    } else if (special_registers().contains(s)) {
      operand.kind = Kind::special;
      operand.index = special_registers().at(s);
    } else if (std::isdigit(static_cast<unsigned char>(s[0])) || s[0] == '-') {
      operand.value = number(s);
    } else if (const std::size_t bar = s.find('|'); bar != std::string::npos) {
      operand = read_operand(trimmed(s.substr(0, bar)));
      const Operand second = read_operand(trimmed(s.substr(bar + 1)));
      operand.second = second.kind == Kind::sink ? -1 : second.index;
    } else if (const int reg = find_register(s); reg >= 0) {
      operand.kind = Kind::reg;
      operand.index = reg;
    } else if (slots_.contains(s)) {
      operand.kind = Kind::frame;
      operand.index = static_cast<int>(slots_[s].offset);
      operand.value = slots_[s].bytes;
    } else if (program_.shared_by_name.contains(s)) {
      operand.kind = Kind::shared;
      operand.index = program_.shared_by_name[s];
    } else if (program_.data.contains(s)) {
      operand.kind = Kind::data;
      operand.value = reinterpret_cast<std::uintptr_t>(program_.data[s].data());
    } else if (s[0] == '%') {
      fail("unsupported register", s);
    } else {
      operand.kind = Kind::label;
      operand.name = s;
    }
    return operand;
  }

  // ---------------------------------------------------------------- lines of the source (-lineinfo)

  const char* file_name(const std::string& path) {
    const std::string base = path.substr(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
    for (const auto& file : program_.files) {
      if (*file == base) return file->c_str();
    }
    program_.files.push_back(std::make_unique<std::string>(base));
    return program_.files.back()->c_str();
  }
  void read_file(const std::string& line) {  // .file 1 "/path/kernel.cu"
    std::istringstream words(line.substr(std::strlen(".file")));
    int number = 0;
    words >> number;
    const std::size_t open = line.find('"'), close = line.find('"', open + 1);
    if (close != std::string::npos) file_names_[number] = file_name(line.substr(open + 1, close - open - 1));
  }
  // .loc 2 50 3, function_name $L__info_string0, inlined_at 1 29 9: a line of the language headers counts as its caller's.
  void read_location(const std::string& line) {
    SourcePlace place;
    for (std::size_t at = std::strlen(".loc"); at != std::string::npos;) {
      int file = 0, number = 0;
      std::istringstream words(line.substr(at));
      words >> file >> number;
      place = {file_names_.contains(file) ? file_names_[file] : "ptx", number};
      const std::string name = place.file;
      if ((name.ends_with(".cu") || name.ends_with(".cuh")) && name != "cuda_lang.cuh") break;
      const std::size_t inlined = line.find("inlined_at", at);
      at = inlined == std::string::npos ? inlined : inlined + std::strlen("inlined_at");
    }
    location_ = place;
  }

  Program& program_;
  std::string name_;
  int line_ = 0;
  std::string statement_, last_label_;
  Function* function_ = nullptr;
  std::unique_ptr<Function> kept_function_;
  using Numbers = std::map<std::string, int>;
  using Slots = std::map<std::string, Slot>;
  Numbers registers_, register_ranges_, labels_;
  Slots slots_;
  std::vector<std::tuple<Numbers, Numbers, Slots>> scopes_;  // of the blocks around
  std::map<std::string, std::vector<std::string>> tables_;
  std::map<int, const char*> file_names_;
  SourcePlace location_;
};
}  // namespace

unsigned size_of(Type type) {
  switch (type) {
    case Type::none: return 0;
    case Type::pred: case Type::b8: case Type::u8: case Type::s8: return 1;
    case Type::b16: case Type::u16: case Type::s16: case Type::f16: case Type::bf16: return 2;
    case Type::b64: case Type::u64: case Type::s64: case Type::f64: return 8;
    default: return 4;
  }
}

void parse(Program& program, const std::string& text, const std::string& name) { Parser(program, name).parse(text); }

}  // namespace limpid::cudasim::ptx
