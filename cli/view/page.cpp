#include "page.h"

#include <zlib.h>

#include <bit>
#include <cstring>
#include <map>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/version.h>

#include "assets.h"
#include "page_text.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;
using memory::Placement;

static_assert(std::endian::native == std::endian::little, "the page's arrays are little-endian");

// Typed arrays, one after another, each aligned to 8 bytes.
class Blob {
 public:
  // What JavaScript needs to find the array again.
  template <class T, class Items, class Get>
  Json add(const char* type, const Items& items, Get get) {
    bytes_.resize((bytes_.size() + 7) / 8 * 8);
    const std::size_t at = bytes_.size();
    bytes_.resize(at + items.size() * sizeof(T));
    char* to = bytes_.data() + at;
    for (const auto& item : items) {
      const T value = static_cast<T>(get(item));
      std::memcpy(to, &value, sizeof value);
      to += sizeof value;
    }
    return {{"type", type}, {"at", at}, {"count", items.size()}};
  }
  template <class Items, class Get>
  Json add_f64(const Items& items, Get get) {
    return add<double>("f64", items, get);
  }
  template <class Items, class Get>
  Json add_u32(const Items& items, Get get) {
    return add<std::uint32_t>("u32", items, get);
  }
  template <class Items, class Get>
  Json add_u8(const Items& items, Get get) {
    return add<std::uint8_t>("u8", items, get);
  }
  // Differences, which deflate better: each value minus the one before, modulo 2^32.
  template <class Items, class Get>
  Json add_delta(const Items& items, Get get) {
    std::uint32_t before = 0;
    return add<std::uint32_t>("delta", items, [&](const auto& item) {
      const std::uint32_t value = get(item), difference = value - before;
      before = value;
      return difference;
    });
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

std::string deflate(const std::string& bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::string out(size, '\0');
  const int result = compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                               reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uLong>(bytes.size()), 6);
  LIMPID_CHECK(result == Z_OK, InternalError, "[view] zlib failed with code ", result);
  out.resize(size);
  return out;
}

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; k++) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<std::uint8_t>(bytes[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; k++) {
      out.push_back(i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63]);
    }
  }
  return out;
}

Json rows_json(const memory::LedgerRows& rows) {
  Json roles = Json::array();
  for (std::uint64_t bytes : rows.live) roles.push_back(bytes);
  return {{"roles", roles},
          {"live", rows.live_total},
          {"rounding", rows.rounding},
          {"slack", rows.slack},
          {"pending", rows.pending_free},
          {"free_in_used", rows.free_in_used},
          {"free_whole", rows.free_whole},
          {"reserved", rows.reserved}};
}

// The names that the run uses, in order of first use.
class UsedNames {
 public:
  explicit UsedNames(const memory::TraceLog& log) : log_(log) { add(0); }
  std::size_t add(NameId id) {
    auto [it, is_new] = places_.try_emplace(id, texts_.size());
    if (is_new) texts_.push_back(log_.name(id));
    return it->second;
  }
  const Json& texts() const { return texts_; }

 private:
  const memory::TraceLog& log_;
  std::map<NameId, std::size_t> places_;
  Json texts_ = Json::array();
};

Json run_json(const ViewRun& run, Blob& blob) {
  const Placement& p = *run.placement;
  UsedNames names(*run.log);
  std::map<memory::StreamId, std::size_t> streams;
  Json stream_texts = Json::array();
  auto stream = [&](memory::StreamId id) {
    auto [it, is_new] = streams.try_emplace(id, stream_texts.size());
    if (is_new) stream_texts.push_back(std::to_string(id));
    return it->second;
  };
  Json arrays;
  arrays["kind_requested"] = blob.add_f64(p.kinds, [](const auto& k) { return k.requested; });
  arrays["kind_size"] = blob.add_f64(p.kinds, [](const auto& k) { return k.size; });
  arrays["kind_stream"] = blob.add_u32(p.kinds, [&](const auto& k) { return stream(k.stream); });
  arrays["kind_name"] = blob.add_u32(p.kinds, [&](const auto& k) { return names.add(k.name); });
  arrays["kind_op"] = blob.add_u32(p.kinds, [&](const auto& k) { return names.add(k.op); });
  arrays["kind_module"] = blob.add_u32(p.kinds, [&](const auto& k) { return names.add(k.module); });
  arrays["kind_role"] = blob.add_u8(p.kinds, [](const auto& k) { return k.role; });
  arrays["kind_phase"] = blob.add_u8(p.kinds, [](const auto& k) { return k.phase; });
  arrays["kind_pending"] = blob.add_u8(p.kinds, [](const auto& k) { return k.pending; });

  arrays["kind"] = blob.add_u32(p.blocks, [](const auto& b) { return b.kind; });
  arrays["region"] = blob.add_u32(p.blocks, [](const auto& b) { return b.region; });
  arrays["offset"] = blob.add_f64(p.blocks, [](const auto& b) { return b.offset; });
  arrays["begin"] = blob.add_delta(p.blocks, [](const auto& b) { return b.begin; });
  // Mostly short, mostly zero.
  arrays["life"] = blob.add_u32(p.blocks, [](const auto& b) { return b.end - b.begin; });
  arrays["before"] = blob.add_u32(p.blocks, [](const auto& b) { return b.begin - b.born; });
  arrays["after"] = blob.add_u32(p.blocks, [](const auto& b) { return b.died - b.end; });

  arrays["region_address"] = blob.add_f64(p.regions, [](const auto& r) { return r.address; });
  arrays["region_size"] = blob.add_f64(p.regions, [](const auto& r) { return r.size; });
  arrays["region_lane"] = blob.add_f64(p.regions, [](const auto& r) { return r.lane; });
  arrays["region_begin"] = blob.add_u32(p.regions, [](const auto& r) { return r.begin; });
  arrays["region_end"] = blob.add_u32(p.regions, [](const auto& r) { return r.end; });
  arrays["region_stream"] = blob.add_u32(p.regions, [&](const auto& r) { return stream(r.stream); });
  arrays["region_pool"] = blob.add_u8(p.regions, [](const auto& r) { return r.pool; });
  arrays["region_is_range"] = blob.add_u8(p.regions, [](const auto& r) { return r.is_range; });

  arrays["piece_region"] = blob.add_u32(p.pieces, [](const auto& x) { return x.region; });
  arrays["piece_offset"] = blob.add_f64(p.pieces, [](const auto& x) { return x.offset; });
  arrays["piece_size"] = blob.add_f64(p.pieces, [](const auto& x) { return x.size; });
  arrays["piece_begin"] = blob.add_u32(p.pieces, [](const auto& x) { return x.begin; });
  arrays["piece_end"] = blob.add_u32(p.pieces, [](const auto& x) { return x.end; });

  arrays["scope_begin"] = blob.add_delta(p.scopes, [](const auto& s) { return s.begin; });
  arrays["scope_step"] = blob.add_u32(p.scopes, [](const auto& s) { return s.step; });
  arrays["scope_micro_batch"] = blob.add_u32(p.scopes, [](const auto& s) { return s.micro_batch; });
  arrays["scope_phase"] = blob.add_u8(p.scopes, [](const auto& s) { return s.phase; });
  arrays["largest_free"] = blob.add_f64(p.largest_free, [](std::uint64_t bytes) { return bytes; });

  arrays["failed_event"] = blob.add_u32(p.failed, [](const auto& f) { return f.event; });
  arrays["failed_bytes"] = blob.add_f64(p.failed, [](const auto& f) { return f.bytes; });
  arrays["failed_name"] = blob.add_u32(p.failed, [&](const auto& f) { return names.add(f.name); });
  arrays["failed_op"] = blob.add_u32(p.failed, [&](const auto& f) { return names.add(f.op); });
  arrays["failed_module"] = blob.add_u32(p.failed, [&](const auto& f) { return names.add(f.module); });
  arrays["failed_role"] = blob.add_u8(p.failed, [](const auto& f) { return f.role; });

  Json json;
  json["title"] = run.title;
  json["policy"] = p.replay.policy;
  json["capacity"] = p.replay.capacity < memory::ReplayOptions::kUnlimited ? p.replay.capacity : 0;
  json["events"] = p.events;
  json["lanes"] = p.lanes;
  json["peak_event"] = p.peak_event;
  json["peak"] = rows_json(p.peak);
  json["reserved_peak"] = rows_json(p.replay.at_peak_reserved);
  json["device_calls"] = p.replay.device_calls();
  json["retries"] = p.replay.retries;
  json["completed"] = p.replay.completed;
  json["notes"] = run.log->notes;
  json["names"] = names.texts();
  json["streams"] = std::move(stream_texts);
  json["arrays"] = std::move(arrays);
  return json;
}

}  // namespace

std::string view_page(const std::string& title, const std::vector<ViewRun>& runs) {
  Blob blob;
  Json json;
  json["version"] = LIMPID_VERSION;
  json["roles"] = Json::array();
  for (int i = 0; i < memory::kRoleCount; i++) json["roles"].push_back(to_string(static_cast<memory::Role>(i)));
  json["phases"] = Json::array();
  for (int i = 0; i <= static_cast<int>(Phase::data); i++) json["phases"].push_back(to_string(static_cast<Phase>(i)));
  json["runs"] = Json::array();
  for (const ViewRun& run : runs) json["runs"].push_back(run_json(run, blob));
  json["bytes"] = blob.bytes().size();

  const std::string meta = dump_for_script(json), data = base64(deflate(blob.bytes()));
  const std::string plain_title = escape_html(title);
  const std::map<std::string_view, std::string_view> values = {{"window", plain_title},
                                                               {"title", plain_title},
                                                               {"style", assets::kStyle},
                                                               {"licence", assets::kChartLicence},
                                                               {"chart", assets::kChartJs},
                                                               {"script", assets::kScript},
                                                               {"meta", meta},
                                                               {"data", data}};
  return fill_template(assets::kTemplate, values);
}

}  // namespace limpid::cli
