#include <limpid/memory/oom.h>

#include <limpid/base/format.h>

namespace limpid::memory {

std::string to_string(const OutOfMemoryInfo& info) {
  std::string out = "out of memory: tried to allocate " + format_bytes(info.requested);
  if (info.scope.op != 0) out += " for " + name_of(info.scope.op);
  std::string where;
  auto add = [&where](const std::string& part) { where += (where.empty() ? "" : ", ") + part; };
  if (info.scope.module != 0) add("layer " + name_of(info.scope.module));
  if (info.scope.phase != Phase::none) add(limpid::to_string(info.scope.phase));
  add(std::string("role ") + to_string(info.role));
  if (!info.name.empty()) add("name " + info.name);
  out += " (" + where + ") on " + info.device + ". Of " + format_bytes(info.capacity) + " capacity, " +
         format_bytes(info.live) + " is live, " + format_bytes(info.cached) + " is free in the cache (largest block " +
         format_bytes(info.largest_free) + "), ";
  if (info.pending > 0) out += format_bytes(info.pending) + " waits for other streams, ";
  out += format_bytes(info.device_free) + " is free on the device";
  if (info.limit) out += "; the memory fraction allows " + format_bytes(*info.limit);
  out += ".";
  for (std::size_t i = 0; i < info.holders.size(); i++) {
    const Holder& h = info.holders[i];
    out += (i == 0 ? " Largest holders: " : "; ") + std::string(to_string(h.role)) + " " +
           (h.name.empty() ? "(unnamed)" : h.name) + " " + format_bytes(h.bytes) + " in " +
           format_count(static_cast<std::int64_t>(h.count)) + (h.count == 1 ? " block" : " blocks");
  }
  if (!info.holders.empty()) out += ".";
  return out;
}

OutOfMemoryError::OutOfMemoryError(OutOfMemoryInfo info) : Error(to_string(info)), info_(std::move(info)) {}

}  // namespace limpid::memory
