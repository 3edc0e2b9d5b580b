// The pickle reader and the importer of PyTorch snapshots. More seeds: the files of tests/golden/snapshots.
#include <limpid/memory/trace_export.h>
#include <limpid/memory/trace_import.h>

#include "fuzz.h"
#include "trace_test.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return limpid_fuzz::try_read(data, size, [](std::string_view s) { return limpid::memory::parse_torch_snapshot(s); });
}

std::vector<std::string> fuzz_seeds() {
  using namespace limpid_test;
  std::vector<std::string> seeds;
  for (const char* script : {"", "+1:1M +2:600 -1 e !0:5M -2", "+1:20M +2:600 +3:3M -2"}) {
    std::string bytes;
    print_torch_snapshot(log_of(script), {}, [&bytes](std::string_view part) { bytes += part; });
    seeds.push_back(bytes);
  }
  return seeds;
}
