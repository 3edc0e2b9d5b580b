// nvcc's PTX, decoded: what ptx_parser.cpp makes and ptx_run.cpp runs. The words are those of the PTX ISA manual.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace limpid::cudasim::ptx {

enum class Type : std::uint8_t {
  none, pred, b8, b16, b32, b64, u8, u16, u32, u64, s8, s16, s32, s64, f16, f16x2, bf16, bf16x2, f32, f64
};
unsigned size_of(Type type);  // bytes; 1 for pred

// Instructions that the interpreter knows.
#define LIMPID_PTX_OPS(V)                                                                                             \
  V(mov) V(ld) V(st) V(add) V(sub) V(mul) V(mad) V(fma) V(div) V(rem) V(min) V(max) V(neg) V(abs) V(and_) V(or_)      \
  V(xor_) V(not_) V(shl) V(shr) V(shf) V(bfi) V(bfe) V(brev) V(prmt) V(lop3) V(setp) V(selp) V(cvt) V(cvta) V(bra)    \
  V(brx) V(call) V(ret) V(exit) V(bar) V(barrier) V(shfl) V(vote) V(match) V(redux) V(atom) V(red) V(ex2) V(lg2)      \
  V(rcp) V(sqrt) V(rsqrt) V(sin) V(cos) V(tanh) V(copysign) V(popc) V(clz) V(addc) V(subc) V(madc) V(membar)          \
  V(fence) V(cp) V(testp) V(trap)
enum class Op : std::uint8_t {
#define V(name) name,
  LIMPID_PTX_OPS(V)
#undef V
};

// What may follow an instruction's name, other than types. Those after `ignored` change nothing here: caches, scopes, memory
// orders weaker than what one thread after the other gives anyway.
#define LIMPID_PTX_MODIFIERS(V)                                                                                       \
  V(wide) V(hi) V(lo) V(sat) V(ftz) V(rn) V(rz) V(rm) V(rp) V(rni) V(rzi) V(rmi) V(rpi) V(cc) V(global) V(shared)     \
  V(local) V(param) V(const_) V(to) V(v2) V(v4) V(v8) V(eq) V(ne) V(lt) V(le) V(gt) V(ge) V(ls) V(hs) V(equ) V(neu)   \
  V(ltu) V(leu) V(gtu) V(geu) V(num) V(nan) V(and_) V(or_) V(xor_) V(popc) V(add) V(min) V(max) V(exch) V(cas)        \
  V(inc) V(dec) V(up) V(down) V(bfly) V(idx) V(all) V(any) V(uni_) V(ballot) V(l) V(r) V(wrap) V(clamp) V(warp)       \
  V(async) V(commit_group) V(wait_group) V(wait_all) V(NaN) V(finite) V(infinite) V(notanumber) V(normal)             \
  V(subnormal) V(ignored) V(uni) V(sync) V(aligned) V(approx) V(full) V(noftz) V(nc) V(cta) V(gpu) V(sys) V(gl)       \
  V(volatile_) V(relaxed) V(acquire) V(release) V(acq_rel) V(sc) V(weak) V(ca) V(cg) V(cs) V(lu) V(cv) V(wb) V(wt)    \
  V(red)
enum class Mod : std::uint8_t {
#define V(name) name,
  LIMPID_PTX_MODIFIERS(V)
#undef V
  count
};

struct Operand {
  enum class Kind : std::uint8_t { reg, immediate, special, vector, memory, label, shared, frame, data, sink, function };
  Kind kind = Kind::immediate;
  bool negated = false;     // !%p
  int index = -1;           // register, special register, label's instruction, offset in the frame, shared symbol
  int second = -1;          // register b of a|b
  std::uint64_t value = 0;  // immediate, or address of static data
  std::int64_t offset = 0;  // of [base + offset]
  std::string name;         // label or function, until it is known
  std::vector<Operand> parts;
};

struct SourcePlace {
  const char* file = "ptx";  // kept by the program
  int line = 0;
};

struct Instruction {
  Op op;
  Type type = Type::none, second_type = Type::none;
  std::bitset<static_cast<std::size_t>(Mod::count)> mods;
  std::uint8_t compare = 0;  // Mod of setp's comparison
  std::uint8_t width = 1;    // elements of a vector access
  int guard = -1;            // predicate register
  bool guard_negated = false;
  std::vector<Operand> operands;
  SourcePlace place;
  std::string text;
  bool has(Mod mod) const { return mods[static_cast<std::size_t>(mod)]; }
};

struct Slot {
  std::size_t offset, bytes;  // in the function's frame
};

struct Function {
  std::string name;
  bool is_kernel = false;
  std::vector<Instruction> code;
  std::vector<Slot> parameters, results;
  int registers = 0;
  std::size_t frame_bytes = 0;  // parameters, local memory, arguments of calls
  Slot local{0, 0};             // local memory within it
};

struct SharedSymbol {
  std::size_t bytes;
  bool dynamic;
};

struct Program {
  std::map<std::string, std::unique_ptr<Function>> functions;
  std::vector<SharedSymbol> shared;
  std::map<std::string, int> shared_by_name;
  std::map<std::string, std::vector<unsigned char>> data;  // .global and .const
  std::vector<std::unique_ptr<std::string>> files;
};

// Adds a PTX text to the program. What it does not know throws std::runtime_error with the line and the instruction.
void parse(Program& program, const std::string& text, const std::string& name);
// Runs one thread of a kernel. `arguments` fill its parameters.
void run(const Program& program, const Function& kernel, const unsigned char* arguments);

}  // namespace limpid::cudasim::ptx
