// Runs decoded PTX, one thread at a time, with the emulator's barriers, warp operations, shared memory and access checks.
#include <alloca.h>

#include <algorithm>
#include <cstring>

#include <cudasim/block.h>
#include <cudasim/checker.h>
#include <cudasim/ptx_arithmetic.h>
#include <cudasim/ptx_numbers.h>
#include <cudasim/ptx_program.h>

namespace limpid::cudasim::ptx {
namespace {

using Kind = Operand::Kind;
// An address in shared memory, as PTX sees it: the symbol's number and the byte within it.
constexpr unsigned kSharedBits = 18;

class Thread {
 public:
  // registers and frame belong to the caller's stack, which the access checker does not look at.
  Thread(const Program& program, const Function& function, std::uint64_t* registers, unsigned char* frame)
      : program_(program), function_(function), registers_(registers), frame_(frame) {}

  void run() {
    const auto count = static_cast<int>(function_.code.size());
    for (int at = 0; at < count;) {
      index_ = at;
      now_ = &function_.code[static_cast<std::size_t>(at++)];
      if (now_->guard >= 0 && (registers_[now_->guard] != 0) == now_->guard_negated) continue;
      if (now_->op == Op::ret || now_->op == Op::exit) {
        if (now_->op == Op::exit && !function_.is_kernel) unsupported();
        return;
      }
      if (now_->op == Op::bra) {
        at = operand(0).index;
      } else if (now_->op == Op::brx) {
        const std::uint64_t target = integer(Type::u32, value(0));
        if (target >= operand(1).parts.size()) unsupported();
        at = operand(1).parts[target].index;
      } else {
        step();
      }
    }
  }

 private:
  const Operand& operand(std::size_t k) const { return now_->operands[k]; }
  Site site() const { return {now_->place.file, now_->place.line, index_}; }
  [[noreturn]] void unsupported() const {
    fail(site(), cudaErrorUnknown, "the PTX interpreter does not know this: %s", now_->text.c_str());
  }

  std::uint64_t value_of(const Operand& o) const {
    switch (o.kind) {
      case Kind::reg: return o.negated ? registers_[o.index] == 0 : registers_[o.index];
      case Kind::immediate:
      case Kind::data: return o.value;
      case Kind::special: return special(o.index);
      case Kind::frame: return reinterpret_cast<std::uintptr_t>(frame_ + o.index);
      case Kind::shared: return static_cast<std::uint64_t>(o.index + 1) << kSharedBits;
      case Kind::vector: {  // packed, the first part lowest
        const unsigned bits = bits_of(now_->type) / static_cast<unsigned>(o.parts.size());
        std::uint64_t packed = 0;
        for (std::size_t k = 0; k < o.parts.size(); k++) packed |= low_bits(value_of(o.parts[k]), bits) << (k * bits);
        return packed;
      }
      default: unsupported();
    }
  }
  std::uint64_t value(std::size_t k) const { return value_of(operand(k)); }
  Values values(std::size_t first) const {
    const std::size_t count = now_->operands.size();
    return {value(first), count > first + 1 ? value(first + 1) : 0, count > first + 2 ? value(first + 2) : 0};
  }

  static std::uint64_t special(int index) {
    const ThreadRegisters& r = limpid::cudasim::registers;
    const auto lane = static_cast<std::uint32_t>(r.lane);
    const std::uint32_t below = (std::uint32_t(1) << lane) - 1, self = std::uint32_t(1) << lane;
    const std::uint32_t all[] = {r.thread_index.x, r.thread_index.y, r.thread_index.z, r.block_dim.x, r.block_dim.y,
                                 r.block_dim.z, r.block_index.x, r.block_index.y, r.block_index.z, r.grid_dim.x, r.grid_dim.y,
                                 r.grid_dim.z, lane, 32, self, below, below | self, ~(below | self), ~below};
    return all[index];
  }

  void set(std::uint64_t v) { set(operand(0), v); }
  void set(const Operand& o, std::uint64_t v) {
    if (o.kind == Kind::sink) return;
    if (o.kind == Kind::vector) {
      const unsigned bits = bits_of(now_->type) / static_cast<unsigned>(o.parts.size());
      for (std::size_t k = 0; k < o.parts.size(); k++) set(o.parts[k], low_bits(v >> (k * bits), bits));
      return;
    }
    if (o.kind != Kind::reg) unsupported();
    registers_[o.index] = v;
  }
  void set_checked(std::uint64_t v, bool supported) {
    if (!supported) unsupported();
    set(v);
  }

  // ---------------------------------------------------------------- memory

  unsigned char* shared_address(std::uint64_t address) const {
    address = integer(Type::u32, address);
    const std::size_t symbol = (address >> kSharedBits) - 1;
    if (symbol >= program_.shared.size()) fail(site(), cudaErrorIllegalAddress, "shared address 0x%llx is in no array", static_cast<unsigned long long>(address));
    const SharedSymbol& known = program_.shared[symbol];
    void* base = known.dynamic ? dynamic_shared() : static_shared(&known, known.bytes, site());
    return static_cast<unsigned char*>(base) + (address & ((1u << kSharedBits) - 1));
  }
  // The inverse, for a generic address that is used as a shared one.
  std::uint64_t shared_number(std::uint64_t generic) const {
    for (std::size_t s = 0; s < program_.shared.size(); s++) {
      const SharedSymbol& known = program_.shared[s];
      void* base = known.dynamic ? dynamic_shared() : static_shared(&known, known.bytes, site());
      const std::uint64_t offset = generic - reinterpret_cast<std::uintptr_t>(base);
      if (base && offset < (1u << kSharedBits) && (known.dynamic || offset <= known.bytes)) return (s + 1) << kSharedBits | offset;
    }
    unsupported();
  }

  unsigned char* address(const Operand& o, unsigned bytes, bool write, bool atomic) const {
    const std::uint64_t at = value_of(o.parts[0]) + static_cast<std::uint64_t>(o.offset);
    if (now_->has(Mod::param) || now_->has(Mod::local)) {
      const Slot inside = now_->has(Mod::local) ? function_.local : Slot{0, function_.frame_bytes};
      const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(frame_) + inside.offset;
      if (at < begin || at + bytes > begin + inside.bytes) {
        fail(site(), cudaErrorIllegalAddress, "%s of %u bytes outside of the thread's local memory", write ? "write" : "read", bytes);
      }
      return reinterpret_cast<unsigned char*>(at);
    }
    unsigned char* pointer = now_->has(Mod::shared) ? shared_address(at) : reinterpret_cast<unsigned char*>(at);
    // From 8 bytes on it may be a struct with padding.
    check_access(pointer, bytes, {.write = write, .atomic = atomic, .align = bytes, .every_byte = bytes < 8 || atomic},
                 {.code = nullptr, .site = site()});
    return pointer;
  }

  void load() {
    const unsigned size = size_of(now_->type);
    const unsigned char* from = address(operand(1), size * now_->width, false, false);
    for (unsigned k = 0; k < now_->width; k++) {
      std::uint64_t v = 0;
      std::memcpy(&v, from + k * size, size);
      v = integer(now_->type, v);
      set(now_->width > 1 ? operand(0).parts[k] : operand(0), v);
    }
  }
  void store() {
    const unsigned size = size_of(now_->type);
    unsigned char* to = address(operand(0), size * now_->width, true, false);
    for (unsigned k = 0; k < now_->width; k++) {
      const std::uint64_t v = now_->width > 1 ? value_of(operand(1).parts[k]) : value(1);
      std::memcpy(to + k * size, &v, size);
    }
  }
  void copy_async() const {  // at once: the waits that follow find it done
    if (now_->has(Mod::commit_group) || now_->has(Mod::wait_group) || now_->has(Mod::wait_all)) return;
    const auto bytes = static_cast<unsigned>(value(2));
    if (now_->operands.size() > 3 || !now_->has(Mod::async)) unsupported();
    unsigned char* to = address(operand(0), bytes, true, false);
    const auto* from = reinterpret_cast<const unsigned char*>(value_of(operand(1).parts[0]) + static_cast<std::uint64_t>(operand(1).offset));
    check_access(from, bytes, {.write = false, .atomic = false, .align = bytes, .every_byte = true}, {.code = nullptr, .site = site()});
    std::memcpy(to, from, bytes);
  }

  void atomic() {
    const bool returns = now_->op == Op::atom;
    const std::size_t first = returns ? 1 : 0;  // the address
    const unsigned size = size_of(now_->type);
    unsigned char* at = address(operand(first), size, true, true);
    std::uint64_t old = 0;
    std::memcpy(&old, at, size);
    const std::uint64_t b = value(first + 1);
    bool supported = true;
    std::uint64_t next = 0;
    if (now_->has(Mod::add)) {
      next = arithmetic(*now_, Op::add, {old, b, 0}, supported);
    } else if (now_->has(Mod::min)) {
      next = arithmetic(*now_, Op::min, {old, b, 0}, supported);
    } else if (now_->has(Mod::max)) {
      next = arithmetic(*now_, Op::max, {old, b, 0}, supported);
    } else if (now_->has(Mod::and_)) {
      next = old & b;
    } else if (now_->has(Mod::or_)) {
      next = old | b;
    } else if (now_->has(Mod::xor_)) {
      next = old ^ b;
    } else if (now_->has(Mod::exch)) {
      next = b;
    } else if (now_->has(Mod::inc)) {
      next = old >= low_bits(b, bits_of(now_->type)) ? 0 : old + 1;
    } else if (now_->has(Mod::cas)) {
      next = old == low_bits(b, bits_of(now_->type)) ? value(first + 2) : old;
    } else {
      supported = false;
    }
    if (!supported) unsupported();
    std::memcpy(at, &next, size);
    if (returns) set(old);
  }

  void convert_address() {  // cvta: only shared addresses differ from generic ones
    const std::uint64_t a = value(1);
    if (!now_->has(Mod::shared)) return set(a);
    set(now_->has(Mod::to) ? shared_number(a) : reinterpret_cast<std::uintptr_t>(shared_address(a)));
  }

  // ---------------------------------------------------------------- barriers and warps

  void barrier() {
    if (now_->has(Mod::warp)) {
      const char nothing = 0;
      WarpValues all;
      return warp_exchange(static_cast<unsigned>(value(0)), WarpOp::sync, &nothing, 1, all, site());
    }
    const bool reduces = now_->has(Mod::popc) || now_->has(Mod::and_) || now_->has(Mod::or_);
    const std::size_t name = reduces ? 1 : 0;
    if (value(name) != 0 || now_->operands.size() > (reduces ? 3u : 1u)) unsupported();  // named barriers, parts of a block
    if (!reduces) {
      sync_threads(site());
      return;
    }
    const BarrierOp op = now_->has(Mod::popc) ? BarrierOp::count : now_->has(Mod::and_) ? BarrierOp::all : BarrierOp::any;
    set(static_cast<std::uint64_t>(sync_threads(site(), op, value(2) != 0)));
  }

  void shuffle() {  // d|p, a, b, c, mask; c: the last lane of a segment, and from bit 8 the bits that name the segment
    const auto a = static_cast<std::uint32_t>(value(1));
    const int b = static_cast<int>(value(2) & 31), c = static_cast<int>(value(3)), lane = limpid::cudasim::registers.lane;
    const int segment = c >> 8 & 31, last = (lane & segment) | (c & 31 & ~segment), first = lane & segment;
    WarpValues all;
    warp_exchange(static_cast<unsigned>(value(4)), WarpOp::shuffle, &a, sizeof a, all, site());
    int source = 0;
    bool inside = true;
    if (now_->has(Mod::up)) {
      source = lane - b;
      inside = source >= last;
    } else {
      source = now_->has(Mod::down) ? lane + b : now_->has(Mod::bfly) ? lane ^ b : first | (b & ~segment);
      inside = source <= last;
    }
    if (!inside) source = lane;
    if (!(all.arrived >> source & 1)) {
      fail(site(), cudaErrorLaunchFailure, "lane %d reads from lane %d, which is not in mask 0x%08x", lane, source, all.arrived);
    }
    std::uint32_t result = 0;
    std::memcpy(&result, all.values + static_cast<std::size_t>(source) * sizeof result, sizeof result);
    set(result);
    if (operand(0).second >= 0) registers_[operand(0).second] = inside;
  }

  void vote() {
    const unsigned char mine = value(1) != 0;
    WarpValues all;
    warp_exchange(static_cast<unsigned>(value(2)), WarpOp::vote, &mine, 1, all, site());
    std::uint32_t votes = 0;
    for (unsigned lane = 0; lane < 32; lane++) votes |= (all.arrived >> lane & 1) && all.values[lane] ? 1u << lane : 0;
    if (now_->has(Mod::ballot)) return set(votes);
    if (now_->has(Mod::any)) return set(votes != 0);
    if (now_->has(Mod::all)) return set(votes == all.arrived);
    unsupported();
  }

  void match_lanes() {
    if (!now_->has(Mod::any)) unsupported();
    const std::uint64_t mine = value(1);
    const unsigned size = size_of(now_->type);
    WarpValues all;
    warp_exchange(static_cast<unsigned>(value(2)), WarpOp::match, &mine, size, all, site());
    std::uint32_t equal = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
      if ((all.arrived >> lane & 1) && std::memcmp(all.values + lane * size, &mine, size) == 0) equal |= 1u << lane;
    }
    set(equal);
  }

  void reduce_lanes() {
    const auto mine = static_cast<std::uint32_t>(value(1));
    WarpValues all;
    warp_exchange(static_cast<unsigned>(value(2)), WarpOp::reduce, &mine, sizeof mine, all, site());
    bool any = false, supported = true;
    std::uint64_t result = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
      if (!(all.arrived >> lane & 1)) continue;
      std::uint32_t other = 0;
      std::memcpy(&other, all.values + lane * sizeof other, sizeof other);
      if (!any) {
        result = other;
      } else if (now_->has(Mod::and_)) {
        result &= other;
      } else if (now_->has(Mod::or_)) {
        result |= other;
      } else if (now_->has(Mod::xor_)) {
        result ^= other;
      } else {
        const Op op = now_->has(Mod::add) ? Op::add : now_->has(Mod::min) ? Op::min : now_->has(Mod::max) ? Op::max : Op::trap;
        result = arithmetic(*now_, op, {result, other, 0}, supported);
      }
      any = true;
    }
    set_checked(result, supported);
  }

  // ---------------------------------------------------------------- arithmetic with a carry, predicates, calls

  void carry_arithmetic() {  // add.cc, addc, sub.cc, subc, mad.lo.cc, madc.hi: 32 and 64 bits, unsigned carry
    using Wide = unsigned __int128;
    const unsigned bits = bits_of(now_->type);
    const bool takes = now_->op == Op::addc || now_->op == Op::subc || now_->op == Op::madc;
    const std::uint64_t in = takes && carry_ ? 1 : 0;
    const Values v = values(1);
    const Wide a = low_bits(v.a, bits), b = low_bits(v.b, bits), c = low_bits(v.c, bits);
    Wide r = 0;
    switch (now_->op) {
      case Op::add:
      case Op::addc: r = a + b + in; break;
      case Op::sub:
      case Op::subc: r = a - b - in; break;
      case Op::mad:
      case Op::madc: {
        if (is_signed(now_->type)) unsupported();
        const Wide product = a * b;
        r = (now_->has(Mod::hi) ? product >> bits : low_bits(static_cast<std::uint64_t>(product), bits)) + c + in;
        break;
      }
      default: unsupported();
    }
    if (now_->has(Mod::cc)) carry_ = (r >> bits & 1) != 0;
    set(low_bits(static_cast<std::uint64_t>(r), bits));
  }

  void set_predicate() {
    bool supported = true;
    bool result = compare(*now_, value(1), value(2), supported);
    bool opposite = !result;
    if (now_->operands.size() > 3) {
      const bool with = value(3) != 0;
      auto combine = [&](bool p) { return now_->has(Mod::and_) ? p && with : now_->has(Mod::or_) ? p || with : p != with; };
      result = combine(result);
      opposite = combine(opposite);
    }
    set_checked(result, supported);
    if (operand(0).second >= 0) registers_[operand(0).second] = opposite;
  }

  void test_property() {
    const double v = real(now_->type, value(1));
    if (now_->has(Mod::finite)) return set(std::isfinite(v));
    if (now_->has(Mod::infinite)) return set(std::isinf(v));
    if (now_->has(Mod::notanumber)) return set(std::isnan(v));
    unsupported();
  }

  [[gnu::noinline]] void call() {
    const bool returns = operand(0).kind == Kind::vector;
    const Operand& target = operand(returns ? 1 : 0);
    const auto found = program_.functions.find(target.name);
    if (target.kind != Kind::function || found == program_.functions.end()) unsupported();
    const Function& callee = *found->second;
    auto* inner = static_cast<std::uint64_t*>(alloca(sizeof(std::uint64_t) * static_cast<std::size_t>(callee.registers + 1)));
    auto* inner_frame = static_cast<unsigned char*>(alloca(callee.frame_bytes + 64));
    inner_frame += 64 - reinterpret_cast<std::uintptr_t>(inner_frame) % 64;
    std::memset(inner, 0, sizeof(std::uint64_t) * static_cast<std::size_t>(callee.registers + 1));
    const std::size_t list = returns ? 2 : 1;
    for (std::size_t k = 0; k < callee.parameters.size(); k++) {
      std::memcpy(inner_frame + callee.parameters[k].offset, frame_ + operand(list).parts.at(k).index, callee.parameters[k].bytes);
    }
    Thread(program_, callee, inner, inner_frame).run();
    for (std::size_t k = 0; returns && k < callee.results.size(); k++) {
      std::memcpy(frame_ + operand(0).parts.at(k).index, inner_frame + callee.results[k].offset, callee.results[k].bytes);
    }
  }

  void step() {
    bool supported = true;
    const Instruction& i = *now_;
    if (i.has(Mod::cc) || i.op == Op::addc || i.op == Op::subc || i.op == Op::madc) return carry_arithmetic();
    switch (i.op) {
      case Op::mov: return set(value(1));
      case Op::ld: return load();
      case Op::st: return store();
      case Op::add: case Op::sub: case Op::mul: case Op::mad: case Op::fma: case Op::div: case Op::rem: case Op::min:
      case Op::max: case Op::neg: case Op::abs: {
        const std::uint64_t r = arithmetic(i, i.op, values(1), supported);
        return set_checked(r, supported);
      }
      case Op::and_: case Op::or_: case Op::xor_: case Op::not_: case Op::shl: case Op::shr: case Op::shf: case Op::bfi:
      case Op::bfe: case Op::brev: case Op::prmt: case Op::lop3: case Op::popc: case Op::clz: {
        if (i.op == Op::prmt && i.mods.any()) unsupported();
        const std::uint64_t r = bit_operation(i, values(1), i.operands.size() > 4 ? value(4) : 0, supported);
        return set_checked(r, supported);
      }
      case Op::ex2: case Op::lg2: case Op::rcp: case Op::sqrt: case Op::rsqrt: case Op::sin: case Op::cos: case Op::tanh:
      case Op::copysign: {
        const std::uint64_t r = function_value(i, values(1), supported);
        return set_checked(r, supported);
      }
      case Op::cvt: {
        const Values v = values(1);
        const std::uint64_t r = convert(i, v.a, v.b, supported);
        return set_checked(r, supported);
      }
      case Op::setp: return set_predicate();
      case Op::selp: return set(value(3) != 0 ? value(1) : value(2));
      case Op::testp: return test_property();
      case Op::cvta: return convert_address();
      case Op::call: return call();
      case Op::bar: case Op::barrier: return barrier();
      case Op::shfl: return shuffle();
      case Op::vote: return vote();
      case Op::match: return match_lanes();
      case Op::redux: return reduce_lanes();
      case Op::atom: case Op::red: return atomic();
      case Op::membar: case Op::fence: return thread_fence();
      case Op::cp: return copy_async();
      case Op::trap: fail(site(), cudaErrorLaunchFailure, "trap");
      default: unsupported();
    }
  }

  const Program& program_;
  const Function& function_;
  std::uint64_t* registers_;
  unsigned char* frame_;
  const Instruction* now_ = nullptr;
  int index_ = 0;
  bool carry_ = false;
};
}  // namespace

void run(const Program& program, const Function& kernel, const unsigned char* arguments) {
  const std::size_t bytes = sizeof(std::uint64_t) * static_cast<std::size_t>(kernel.registers + 1);
  if (bytes + kernel.frame_bytes > config().stack_bytes / 2) {
    fail({"ptx", 0, 0}, cudaErrorLaunchOutOfResources, "%s: %d registers and %zu bytes of local memory do not fit the thread's stack",
         kernel.name.c_str(), kernel.registers, kernel.frame_bytes);
  }
  auto* registers = static_cast<std::uint64_t*>(alloca(bytes));
  auto* frame = static_cast<unsigned char*>(alloca(kernel.frame_bytes + 64));
  frame += 64 - reinterpret_cast<std::uintptr_t>(frame) % 64;
  std::memset(registers, 0, bytes);
  for (const Slot& slot : kernel.parameters) std::memcpy(frame + slot.offset, arguments + slot.offset, slot.bytes);
  Thread(program, kernel, registers, frame).run();
}

}  // namespace limpid::cudasim::ptx
