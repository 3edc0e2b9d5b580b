// Which addresses an emulated kernel may touch, and which bytes there have been written.
//
// Whoever hands out device memory (the simulated runtime, a test's buffer) says so here. It matters to the access checker
// only; the calls cost little where nothing is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace limpid::cudasim {

enum class Space : std::uint8_t { device, shared, parameter, host_mapped };
const char* name_of(Space space);

struct Region {
  std::uintptr_t begin = 0, end = 0;
  Space space = Space::device;
  std::string what;  // for messages: "test buffer", "arena"
};

// Makes [memory, memory + bytes) known. Reading a byte that is not initialised (here, by a kernel's write, or below) is a
// finding. A region within a known one takes its place until it is removed. 0 bytes: nothing happens.
void add_memory(const void* memory, std::size_t bytes, Space space, bool initialised, std::string what);
void remove_memory(const void* memory);
// A copy or fill from the host wrote these bytes.
void mark_initialised(const void* memory, std::size_t bytes);
// A copy inside the device: the target's bytes are as initialised as the source's.
void copy_initialised(const void* target, const void* source, std::size_t bytes);
// Fresh contents: the allocator has given the range to a new owner.
void mark_uninitialised(const void* memory, std::size_t bytes);

// The smallest known region around the address, or null.
const Region* find_region(std::uintptr_t address);
// The region that ends closest before the address, or null: what a read past the end was meant for.
const Region* region_before(std::uintptr_t address);

}  // namespace limpid::cudasim
