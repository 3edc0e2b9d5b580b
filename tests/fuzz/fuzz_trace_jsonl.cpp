// The JSONL trace reader.
#include <limpid/memory/trace_file.h>

#include "fuzz.h"
#include "trace_test.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return limpid_fuzz::try_read(data, size, [](std::string_view s) { return limpid::memory::parse_trace_jsonl(s); });
}

std::vector<std::string> fuzz_seeds() {
  using namespace limpid_test;
  std::vector<std::string> seeds = {jsonl_of(TraceLog()), jsonl_of(log_of("+1:1M +2:600 -1 e !0:5M -2"))};
  Allocator allocator(std::make_shared<SimulatedMemory>(100 * kMiB));
  RandomRun run(allocator, 1);
  run.steps(60);
  seeds.push_back(jsonl_of(capture_trace(allocator)));
  return seeds;
}
