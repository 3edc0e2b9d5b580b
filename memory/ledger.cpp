#include <limpid/memory/ledger.h>

#include <limpid/base/error.h>
#include <limpid/base/format.h>

namespace limpid::memory {
namespace {

void row(std::string& out, const char* name, std::uint64_t bytes, int indent = 2) {
  std::string text(static_cast<std::size_t>(indent), ' ');
  text += name;
  if (text.size() < 24) text.append(24 - text.size(), ' ');
  std::string value = format_bytes(bytes);
  if (value.size() < 12) text.append(12 - value.size(), ' ');
  out += text + value + "\n";
}

}  // namespace

void Ledger::check() const {
  std::uint64_t sum = 0;
  for (std::uint64_t bytes : live) sum += bytes;
  LIMPID_CHECK(sum == live_total, InternalError, "[ledger] roles sum to ", sum, " bytes, live is ", live_total);
  LIMPID_CHECK(balanced(), InternalError, "[ledger] reserved is ", reserved, " bytes, its rows sum to ",
               live_total + rounding + slack + pending_free + free_in_used + free_whole);
  LIMPID_CHECK(capacity == other + reserved + device_free, InternalError, "[ledger] capacity is ", capacity,
               " bytes, its rows sum to ", other + reserved + device_free);
}

std::string to_string(const Ledger& ledger) {
  std::string out;
  row(out, "capacity", ledger.capacity, 0);
  row(out, "other", ledger.other);
  row(out, "free on the device", ledger.device_free);
  row(out, "reserved", ledger.reserved);
  for (int r = 0; r < kRoleCount; r++) {
    std::uint64_t bytes = ledger.live[static_cast<std::size_t>(r)];
    if (bytes > 0) row(out, to_string(static_cast<Role>(r)), bytes, 4);
  }
  row(out, "rounding", ledger.rounding, 4);
  row(out, "unsplit slack", ledger.slack, 4);
  row(out, "pending free", ledger.pending_free, 4);
  row(out, "free in used", ledger.free_in_used, 4);
  row(out, "free segments", ledger.free_whole, 4);
  row(out, "external", ledger.external, 0);
  return out;
}

}  // namespace limpid::memory
