#include <limpid/memory/trim.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include <nlohmann/json.hpp>

#include <limpid/base/format.h>
#include <limpid/memory/allocator.h>

namespace limpid::memory {
namespace {

const char* kind_name(PoolKind kind) { return kind == PoolKind::small ? "small" : "large"; }

// What the segments of one pool and stream have together.
using Place = std::tuple<std::uint8_t, PoolKind, StreamId, bool>;
struct Sum {
  std::int64_t segments = 0;
  std::uint64_t bytes = 0;
};

TrimResult::Kept account_of(const Segment& segment) {
  TrimResult::Kept kept;
  kept.kind = segment.pool;
  kept.stream = segment.stream;
  kept.mapped = segment.expandable;
  kept.segment = segment.id;
  kept.bytes = segment.size;
  std::map<std::pair<Role, NameId>, Holder> holders;
  for (const Block* b = segment.first; b != segment.end; b = b->next) {
    if (b->state == BlockState::free) {
      kept.free += b->size;
      continue;
    }
    (b->state == BlockState::pending ? kept.pending : kept.live) += b->size;
    kept.blocks++;
    Holder& holder = holders[{b->role, b->name ? b->name : b->module ? b->module : b->op}];
    holder.bytes += b->requested;
    holder.count++;
  }
  for (auto& [key, holder] : holders) {
    holder.role = key.first;
    holder.name = limpid::name_of(key.second);
    kept.pins.push_back(holder);
  }
  std::stable_sort(kept.pins.begin(), kept.pins.end(),
                   [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  if (kept.pins.size() > TrimResult::kMaxPins) kept.pins.resize(TrimResult::kMaxPins);
  kept.reason = kept.live > 0      ? TrimResult::Reason::in_use
                : kept.pending > 0 ? TrimResult::Reason::pending
                                   : TrimResult::Reason::retained;
  return kept;
}

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string count_of(std::int64_t n, const char* thing) {
  return format_count(n) + " " + thing + (n == 1 ? "" : "s");
}

std::string place_of(const std::string& roles, PoolKind kind, StreamId stream) {
  return (roles.empty() ? "" : roles + ", ") + kind_name(kind) + " pool, stream " + std::to_string(stream);
}

}  // namespace

const char* TrimResult::name_of(Reason reason) {
  switch (reason) {
    case Reason::in_use: return "in use";
    case Reason::pending: return "waits for a stream";
    case Reason::retained: return "retained";
  }
  return "?";
}

TrimResult Allocator::trim(std::uint64_t keep) {
  std::lock_guard guard(lock_);
  TrimResult out;
  out.device = device_->name();
  out.keep = keep;
  out.reserved_before = books_.rows.reserved;
  const bool several = policies_.size() > 1;
  std::map<Place, Sum> sums;
  auto count = [&](int sign) {
    for_each_segment([&](const Segment& s, std::uint8_t pool) {
      Sum& sum = sums[{pool, s.pool, s.stream, s.expandable}];
      sum.segments += sign;
      sum.bytes += static_cast<std::uint64_t>(sign) * s.size;  // the difference is not negative
    });
  };
  count(1);
  release(keep);
  count(-1);
  out.reserved_after = books_.rows.reserved;
  for (const auto& [place, sum] : sums) {
    if (sum.bytes == 0) continue;
    const auto& [pool, kind, stream, mapped] = place;
    out.given.push_back({several ? settings_.pool_name(pool) : "", kind, stream, mapped, sum.segments, sum.bytes});
  }
  for_each_segment([&](const Segment& s, std::uint8_t pool) {
    out.kept.push_back(account_of(s));
    if (several) out.kept.back().roles = settings_.pool_name(pool);
  });
  std::stable_sort(out.kept.begin(), out.kept.end(), [](const TrimResult::Kept& a, const TrimResult::Kept& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.segment < b.segment;
  });
  return out;
}

std::string to_string(const TrimResult& r) {
  std::string out = "trimmed " + r.device + ": " + format_bytes(r.bytes_given()) + " given back, " +
                    format_bytes(r.reserved_after) + " of " + format_bytes(r.reserved_before) + " stay" +
                    (r.keep > 0 ? ", at least " + format_bytes(r.keep) + " wanted" : "") + "\n";
  for (const TrimResult::Given& g : r.given) {
    out += "  back   " + pad(format_bytes(g.bytes), 12) +
           pad(g.mapped ? std::string("pages") : count_of(g.segments, "segment"), 14) +
           place_of(g.roles, g.kind, g.stream) + "\n";
  }
  for (const TrimResult::Kept& k : r.kept) {
    out += "  stays  " + pad(format_bytes(k.bytes), 12) + pad("segment " + std::to_string(k.segment), 14) +
           place_of(k.roles, k.kind, k.stream) + ": " + TrimResult::name_of(k.reason);
    if (k.reason == TrimResult::Reason::in_use) {
      out += ", " + format_bytes(k.live) + " in " + count_of(static_cast<std::int64_t>(k.blocks), "block") + ", " +
             format_bytes(k.free) + " free between them";
    }
    out += "\n";
    for (const Holder& h : k.pins) {
      out += "           " + pad(std::string(to_string(h.role)), 12) + pad(format_bytes(h.bytes), 12) +
             (h.name.empty() ? "(unnamed)" : h.name) + (h.count > 1 ? " x" + std::to_string(h.count) : "") + "\n";
    }
  }
  return out;
}

std::string to_json(const TrimResult& r) {
  using Json = nlohmann::ordered_json;
  Json json = {{"device", r.device},
               {"keep", r.keep},
               {"reserved_before", r.reserved_before},
               {"reserved_after", r.reserved_after},
               {"given_back", Json::array()},
               {"kept", Json::array()}};
  auto roles = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  for (const TrimResult::Given& g : r.given) {
    json["given_back"].push_back({{"roles", roles(g.roles)},
                                  {"pool", kind_name(g.kind)},
                                  {"stream", g.stream},
                                  {"mapped", g.mapped},
                                  {"segments", g.segments},
                                  {"bytes", g.bytes}});
  }
  for (const TrimResult::Kept& k : r.kept) {
    Json pins = Json::array();
    for (const Holder& h : k.pins) {
      pins.push_back({{"role", to_string(h.role)}, {"name", h.name}, {"bytes", h.bytes}, {"blocks", h.count}});
    }
    json["kept"].push_back({{"roles", roles(k.roles)},
                            {"pool", kind_name(k.kind)},
                            {"stream", k.stream},
                            {"mapped", k.mapped},
                            {"segment", k.segment},
                            {"bytes", k.bytes},
                            {"live", k.live},
                            {"pending", k.pending},
                            {"free", k.free},
                            {"blocks", k.blocks},
                            {"why", TrimResult::name_of(k.reason)},
                            {"pins", std::move(pins)}});
  }
  return json.dump();
}

}  // namespace limpid::memory
