// The same list as the kernels have, so that the same target is named.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <limpid/train/machine.h>

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include <hwy/highway.h>

namespace limpid::train {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

MachineInfo machine_info() {
  MachineInfo info;
  info.cpu = cpu_name();
  info.cores = usable_cores();
  // Highway numbers its targets so that a better one is a lower bit.
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  info.isa = hwy::TargetName(targets & -targets);
  utsname system{};
  if (::uname(&system) == 0) info.system = std::string(system.sysname) + " " + system.release + " " + system.machine;
  info.memory_bytes =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
#if defined(__clang__)
  info.compiler = "Clang " __clang_version__;
#elif defined(__GNUC__)
  info.compiler = "GCC " __VERSION__;
#else
  info.compiler = "unknown";
#endif
#if defined(NDEBUG)
  info.build = "release";
#else
  info.build = "debug";
#endif
#if defined(__SANITIZE_ADDRESS__)
  info.build += ", address sanitizer";
#endif
#if defined(__SANITIZE_THREAD__)
  info.build += ", thread sanitizer";
#endif
  return info;
}

}  // namespace limpid::train
