// Time to replay 10 million operations with at most 10,000 live blocks, under every policy: seconds of CPU time, and
// the ratio to the first. The trace is made up: sizes of a training step and random ones, lifetimes from short to the
// whole run.
//   replay_bench [OPERATIONS] [LIVE] [POLICIES]
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>

#include <limpid/base/format.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/replay.h>
#include <limpid/memory/trace_file.h>

using namespace limpid;
using namespace limpid::memory;

namespace {

TraceLog make_trace(std::size_t operations, std::size_t max_live) {
  static constexpr std::uint64_t kSizes[] = {401408, 12845056, 6422528, 3211264, 40000,
                                             2048,   1605632,  512,     100,     9437184};
  TraceLog log;
  log.records.reserve(operations);
  std::mt19937_64 random(1);
  std::vector<TraceRecord> live;
  std::uint64_t next_id = 1;
  while (log.records.size() < operations) {
    // The number of live blocks goes up and down between a tenth and all of what is allowed.
    const std::size_t phase = log.records.size() / 1'000'000 % 4;
    const std::size_t target = max_live * (phase == 0 ? 10 : phase == 1 ? 5 : phase == 2 ? 1 : 8) / 10;
    const bool grow = live.size() < target ? random() % 10 < 8 : random() % 10 < 2;
    if (live.empty() || (grow && live.size() < max_live)) {
      TraceRecord r{};
      r.id = next_id++;
      r.bytes = random() % 2 ? kSizes[random() % 10] : 1 + random() % (std::uint64_t{1} << (9 + random() % 15));
      r.stream = random() % 16 == 0;
      r.kind = TraceKind::alloc;
      r.role = static_cast<Role>(random() % kRoleCount);
      live.push_back(r);
      log.records.push_back(r);
    } else {
      // Mostly the youngest, sometimes any.
      const std::size_t at =
          random() % 4 ? live.size() - 1 - random() % std::min<std::size_t>(live.size(), 64) : random() % live.size();
      std::swap(live[at], live.back());
      TraceRecord r = live.back();
      live.pop_back();
      r.kind = TraceKind::free;
      log.records.push_back(r);
    }
  }
  return log;
}

double seconds_of(auto&& action) {
  const std::clock_t start = std::clock();
  action();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t operations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
  const std::size_t max_live = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 10'000;
  TraceLog log = make_trace(operations, max_live);
  std::string bytes;
  const double write = seconds_of([&] { print_trace_binary(log, [&](std::string_view part) { bytes += part; }); });
  const double read = seconds_of([&] { log = parse_trace_binary(bytes); });
  std::printf("binary file: %.1f bytes a record, written at %.1f ns, read at %.1f ns a record\n",
              static_cast<double>(bytes.size()) / static_cast<double>(operations),
              1e9 * write / static_cast<double>(operations), 1e9 * read / static_cast<double>(operations));
  ReplayScript script;
  const double compile = seconds_of([&] { script = ReplayScript(log); });
  std::printf("%zu operations, %u live blocks at most, lower bound %s; made ready in %.2f s\n", script.ops.size(),
              script.slots, format_bytes(script.peak_live).c_str(), compile);
  double first = 0;
  for (const std::string& name : parse_policy_list(argc > 3 ? argv[3] : "all")) {
    ReplayOptions options;
    options.policy = policy_named(name);
    options.layouts = false;
    options.capacity = script.peak_live * 4;
    ReplayResult result;
    const double seconds = seconds_of([&] { result = replay(script, options); });
    if (first == 0) first = seconds;
    std::printf("%-12s %7.2f s  %6.1f ns an operation  x%.2f  peak reserved %s%s\n", name.c_str(), seconds,
                1e9 * seconds / static_cast<double>(result.operations), seconds / first,
                format_bytes(result.peak_reserved).c_str(), result.completed ? "" : "  OUT OF MEMORY");
    std::fflush(stdout);
  }
  return 0;
}
