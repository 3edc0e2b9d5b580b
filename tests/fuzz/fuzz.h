// A fuzz target is libFuzzer's function: any bytes in, nothing but a DataError may come out. `fuzz_seeds` gives valid
// inputs to start from. Link a target with fuzz_main.cpp for a driver of our own, or with -fsanitize=fuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/replay.h>
#include <limpid/memory/trace_log.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
std::vector<std::string> fuzz_seeds();

namespace limpid_fuzz {

inline std::string_view view(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A trace that was accepted must be fit for use: names are defined, sizes are sane, and it replays on a small device.
inline void use(const limpid::memory::TraceLog& log) {
  using namespace limpid::memory;
  for (const TraceRecord& r : log.records) {
    if (!problem_of(r, log.names.size()).empty()) __builtin_trap();
    log.label(r);
  }
  ReplayOptions options;
  options.capacity = std::uint64_t{1} << 30;
  options.layouts = false;
  try {
    replay(ReplayScript(log), options);
  } catch (const limpid::DataError&) {  // a block allocated twice
  }
}

template <class Read>
int try_read(const std::uint8_t* data, std::size_t size, Read&& read) {
  try {
    use(read(view(data, size)));
  } catch (const limpid::DataError&) {
  }
  return 0;
}

}  // namespace limpid_fuzz
