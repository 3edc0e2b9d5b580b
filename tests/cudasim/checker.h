// The access checker: every load, store and atomic of a kernel comes here with its address.
//
// It finds accesses outside of known memory, misaligned ones, reads of bytes that nobody wrote, and races: two accesses of
// which one writes, by threads that nothing orders, in one block or in two blocks of the grid. What orders them: a barrier
// of the block; a warp operation that both lanes took part in; between blocks, an atomic after a __threadfence() on one side
// and an atomic on the other, each with a barrier towards the other threads of its block.
// The accesses of C++ code arrive from checker_entry.cpp, those of PTX from the interpreter.
#pragma once

#include <cstddef>

#include <cudasim/device_calls.h>

namespace limpid::cudasim {

struct AccessKind {
  bool write = false;
  bool atomic = false;
  unsigned align = 1;  // bytes
  // A read of bytes that nobody wrote is a finding; false: only if all of them are so. nvcc copies a struct with its padding.
  bool every_byte = true;
};

// Where an access stands in the source; asked for only when there is something to report.
struct AccessPlace {
  const void* code = nullptr;  // return address in compiled code, or null:
  Site site;
};

// By the emulated thread that runs now; on the host's own stack it does nothing. A finding ends the grid.
void check_access(const void* address, std::size_t bytes, AccessKind kind, AccessPlace place);
void check_begin_grid();
void check_fence();

}  // namespace limpid::cudasim
