// The binary trace reader. Mutants rarely pass the checksums of chunks, so every input is tried a second time with its
// checksums made right.
#include <zlib.h>

#include <limpid/memory/trace_file.h>

#include "fuzz.h"
#include "trace_test.h"

namespace {

std::string with_right_checksums(std::string bytes) {
  for (std::size_t at = 16; bytes.size() - std::min(at, bytes.size()) >= 9;) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; i++)
      length |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[at + 1 + i])) << (8 * i);
    length = std::min(length, bytes.size() - at - 9);
    for (std::size_t i = 0; i < 4; i++) bytes[at + 1 + i] = static_cast<char>(length >> (8 * i));
    const auto sum = crc32(0, reinterpret_cast<const Bytef*>(bytes.data() + at + 9), static_cast<uInt>(length));
    for (std::size_t i = 0; i < 4; i++) bytes[at + 5 + i] = static_cast<char>(sum >> (8 * i));
    at += 9 + length;
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto read = [](std::string_view bytes) { return limpid::memory::parse_trace_binary(bytes); };
  limpid_fuzz::try_read(data, size, read);
  const std::string fixed = with_right_checksums(std::string(limpid_fuzz::view(data, size)));
  return limpid_fuzz::try_read(reinterpret_cast<const std::uint8_t*>(fixed.data()), fixed.size(), read);
}

std::vector<std::string> fuzz_seeds() {
  using namespace limpid_test;
  std::vector<std::string> seeds = {binary_of(TraceLog()), binary_of(log_of("+1:1M +2:600 -1 e !0:5M -2"))};
  Allocator allocator(std::make_shared<SimulatedMemory>(100 * kMiB));
  RandomRun run(allocator, 1);
  run.steps(100);
  seeds.push_back(binary_of(capture_trace(allocator)));
  return seeds;
}
