#include <limpid/memory/oom.h>

#include <nlohmann/json.hpp>

#include <limpid/base/format.h>

namespace limpid::memory {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kShownPins = 8;

std::string blocks(std::uint64_t count) {
  return format_count(static_cast<std::int64_t>(count)) + (count == 1 ? " block" : " blocks");
}
const std::string& or_unnamed(const std::string& name) {
  static const std::string kUnnamed = "(unnamed)";
  return name.empty() ? kUnnamed : name;
}

// "for conv2d (layer conv1, forward, role activation)"
std::string where(const OutOfMemoryInfo& info) {
  std::string out = info.scope.op != 0 ? " for " + name_of(info.scope.op) : "", in;
  auto add = [&in](const std::string& part) { in += (in.empty() ? "" : ", ") + part; };
  if (info.scope.module != 0) add("layer " + name_of(info.scope.module));
  if (info.scope.phase != Phase::none) add(limpid::to_string(info.scope.phase));
  add(std::string("role ") + to_string(info.role));
  if (!info.name.empty()) add("name " + info.name);
  return out + " (" + in + ")";
}

// "train (pid 17) 3.00 GiB, python3 (pid 4711) 1.00 GiB"
std::string programs(const OutOfMemoryInfo& info) {
  std::string out;
  for (const DeviceProcess& p : info.processes) {
    out += (out.empty() ? "" : ", ") + or_unnamed(p.name) + " (pid " + std::to_string(p.pid) + ") " + format_bytes(p.bytes);
  }
  return out;
}

Json optional_json(const std::optional<std::uint64_t>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

const char* to_string(OomCause cause) {
  switch (cause) {
    case OomCause::capacity:
      return "capacity";
    case OomCause::external:
      return "external";
    case OomCause::limit:
      return "limit";
    case OomCause::pending:
      return "pending";
    case OomCause::other_stream:
      return "other stream";
    case OomCause::other_pool:
      return "other pool";
    case OomCause::granularity:
      return "granularity";
    case OomCause::fragmentation:
      return "fragmentation";
  }
  return "?";
}

std::string to_string(const OutOfMemoryInfo& info) {
  const std::string asked = info.sum_of.empty() ? "tried to allocate " + format_bytes(info.requested) + where(info)
                                                : info.sum_of + " need " + format_bytes(info.requested) + " together";
  std::string out = "out of memory: " + asked + " on " + info.device + ". Of " + format_bytes(info.capacity) +
                    " capacity, " + format_bytes(info.live) + " is live, " + format_bytes(info.cached) +
                    " is free in the cache (largest block " + format_bytes(info.largest_free) + "), ";
  if (info.pending > 0) out += format_bytes(info.pending) + " waits for other streams, ";
  out += format_bytes(info.device_free) + " is free on the device";
  if (info.limit) out += "; the memory fraction allows " + format_bytes(*info.limit);
  out += ".";
  if (!info.reason.empty()) out += std::string(" Cause: ") + to_string(info.cause) + ": " + info.reason + ".";
  for (std::size_t i = 0; i < info.holders.size(); i++) {
    const Holder& h = info.holders[i];
    out += (i == 0 ? " Largest holders: " : "; ") + std::string(to_string(h.role)) + " " + or_unnamed(h.name) + " " +
           format_bytes(h.bytes) + " in " + blocks(h.count);
  }
  if (!info.holders.empty()) out += ".";
  if (!info.processes.empty()) out += " Programs on " + info.device + ": " + programs(info) + ".";
  return out;
}

std::string report(const OutOfMemoryInfo& info) {
  std::string out;
  auto line = [&out](const char* label, const std::string& text) {
    out += label;
    out.append(12 - std::char_traits<char>::length(label), ' ');
    out += text + "\n";
  };
  line("cause", std::string(to_string(info.cause)) + ": " + info.reason);
  std::string request =
      format_count(static_cast<std::int64_t>(info.requested)) + " bytes (" + format_bytes(info.requested) + ")" +
      (info.sum_of.empty() ? where(info) : ", all that " + info.sum_of + " need; no single allocation");
  if (info.scope.phase != Phase::none) request += ", step " + format_count(info.scope.step);
  line("request", request);
  if (info.earlier_request) {
    line("", info.requested > *info.earlier_request
                 ? "larger than in earlier steps, where this place asked for at most " +
                       format_bytes(*info.earlier_request)
                 : "not larger than in earlier steps, where this place asked for up to " +
                       format_bytes(*info.earlier_request));
  }
  if (info.input) {
    std::string text = format_bytes(*info.input);
    if (info.largest_input_before) {
      text += *info.input > *info.largest_input_before ? ", larger than that of any earlier step (at most "
                                                       : ", not larger than those of earlier steps (up to ";
      text += format_bytes(*info.largest_input_before) + ")";
    } else {
      text += "; there was no step before";
    }
    line("input", text);
  }
  if (!info.processes.empty()) line("programs", programs(info));
  if (info.pins.blocks.empty()) {
    line("in the way", info.requested > info.capacity
                           ? "nothing: the request alone is larger than the device"
                           : "no live block whose release would help, in one segment or by giving back whole segments");
  } else {
    const PinSet& pins = info.pins;
    std::string text = blocks(pins.blocks.size()) + ", " + format_bytes(pins.bytes);
    text += pins.whole_segments ? "; without them whole segments go back, and the device has "
                                : "; without them there is a place of ";
    text += format_bytes(pins.hole);
    if (pins.replayed) text += *pins.replayed ? " (replayed: it fits)" : " (replayed: it does not fit all the same)";
    line("in the way", text);
    for (std::size_t i = 0; i < std::min(pins.blocks.size(), kShownPins); i++) {
      const Pin& pin = pins.blocks[i];
      line("", std::string(to_string(pin.role)) + " " + or_unnamed(pin.name) + " " + format_bytes(pin.bytes));
    }
    if (pins.blocks.size() > kShownPins) line("", "and " + blocks(pins.blocks.size() - kShownPins) + " more");
  }
  for (std::size_t i = 0; i < info.advice.size(); i++) {
    const Advice& a = info.advice[i];
    line(i == 0 ? "it fits" : "", a.change + ": " + format_bytes(a.peak_reserved) + " reserved at the peak");
  }
  if (!info.advice_note.empty()) line("advice", info.advice_note);
  return out;
}

std::string to_json(const OutOfMemoryInfo& info) {
  Json json;
  json["cause"] = to_string(info.cause);
  json["reason"] = info.reason;
  json["device"] = info.device;
  json["requested"] = info.requested;
  json["sum_of"] = info.sum_of.empty() ? Json(nullptr) : Json(info.sum_of);
  json["rounded"] = info.rounded;
  json["device_asked"] = info.device_asked;
  json["operation"] = info.scope.op == 0 ? Json(nullptr) : Json(name_of(info.scope.op));
  json["layer"] = info.scope.module == 0 ? Json(nullptr) : Json(name_of(info.scope.module));
  json["phase"] = limpid::to_string(info.scope.phase);
  json["step"] = info.scope.step;
  json["role"] = to_string(info.role);
  json["name"] = info.name.empty() ? Json(nullptr) : Json(info.name);
  json["live"] = info.live;
  json["reserved"] = info.reserved;
  json["cached"] = info.cached;
  json["pending"] = info.pending;
  json["device_free"] = info.device_free;
  json["capacity"] = info.capacity;
  json["limit"] = optional_json(info.limit);
  json["held_by_others"] = info.held_by_others;
  json["processes"] = Json::array();
  for (const DeviceProcess& p : info.processes)
    json["processes"].push_back({{"pid", p.pid}, {"name", p.name}, {"bytes", p.bytes}});
  json["largest_free"] = info.largest_free;
  json["earlier_request"] = optional_json(info.earlier_request);
  json["input"] = optional_json(info.input);
  json["largest_input_before"] = optional_json(info.largest_input_before);
  json["holders"] = Json::array();
  for (const Holder& h : info.holders)
    json["holders"].push_back({{"role", to_string(h.role)}, {"name", h.name}, {"bytes", h.bytes}, {"count", h.count}});
  Json pins;
  pins["count"] = info.pins.blocks.size();
  pins["bytes"] = info.pins.bytes;
  pins["hole"] = info.pins.hole;
  pins["whole_segments"] = info.pins.whole_segments;
  pins["replayed"] = info.pins.replayed ? Json(*info.pins.replayed) : Json(nullptr);
  pins["blocks"] = Json::array();
  for (const Pin& p : info.pins.blocks)
    pins["blocks"].push_back({{"id", p.id}, {"role", to_string(p.role)}, {"name", p.name}, {"bytes", p.bytes}});
  json["pins"] = std::move(pins);
  json["advice"] = Json::array();
  for (const Advice& a : info.advice)
    json["advice"].push_back({{"kind", a.kind}, {"change", a.change}, {"peak_reserved", a.peak_reserved}});
  json["advice_note"] = info.advice_note.empty() ? Json(nullptr) : Json(info.advice_note);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

OutOfMemoryError::OutOfMemoryError(OutOfMemoryInfo info) : Error(to_string(info)), info_(std::move(info)) {}

}  // namespace limpid::memory
