// What the program is doing right now, as one small record per thread: the operation, the layer, the phase, the step.
// The memory trace, the finite check, the ledgers and (later) mixed-precision and fallback records all read this record;
// there is no second tagging mechanism. Guards restore the former values when they go out of scope.
#pragma once

#include <cstdint>
#include <string_view>

#include <limpid/base/names.h>

namespace limpid {

enum class Phase : std::uint8_t { none, forward, backward, optimizer, eval, data };
const char* to_string(Phase phase);

// One record per thread. Ids are interned names.
struct Scope {
  NameId op = 0;      // "conv2d"
  NameId module = 0;  // path of the layer, "layer1.0.conv1"
  Phase phase = Phase::none;
  std::uint32_t step = 0;         // attempted optimizer steps, from 0
  std::uint32_t micro_batch = 0;  // index inside the effective batch
};

namespace detail {
inline thread_local Scope current_scope;
}
inline const Scope& current_scope() { return detail::current_scope; }

// Names the operation (and nothing else) for its lifetime. `op` must come from intern(); ops keep it in a static.
class OpScope {
 public:
  explicit OpScope(NameId op) : former_(detail::current_scope.op) { detail::current_scope.op = op; }
  ~OpScope() { detail::current_scope.op = former_; }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  NameId former_;
};

// Replaces the whole record, e.g. by the one that a node kept from its forward pass.
class ScopeGuard {
 public:
  explicit ScopeGuard(const Scope& scope) : former_(detail::current_scope) { detail::current_scope = scope; }
  ~ScopeGuard() { detail::current_scope = former_; }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Scope former_;
};

// Appends `name` to the module path: "layer1" inside "net" gives "net.layer1". Empty names leave the path alone.
class ModuleScope {
 public:
  explicit ModuleScope(NameId path) : former_(detail::current_scope.module) { detail::current_scope.module = path; }
  ~ModuleScope() { detail::current_scope.module = former_; }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  NameId former_;
};

class PhaseScope {
 public:
  explicit PhaseScope(Phase phase) : former_(detail::current_scope.phase) { detail::current_scope.phase = phase; }
  ~PhaseScope() { detail::current_scope.phase = former_; }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase former_;
};

// Set by the training step; everything recorded afterwards on this thread carries them.
inline void set_step(std::uint32_t step) { detail::current_scope.step = step; }
inline void set_micro_batch(std::uint32_t micro_batch) { detail::current_scope.micro_batch = micro_batch; }

}  // namespace limpid
