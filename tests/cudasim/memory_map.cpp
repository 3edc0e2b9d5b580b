#include <cudasim/memory_map.h>

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include <cudasim/shadow.h>

namespace limpid::cudasim {
namespace {
// Regions by their first byte; those that begin at one address, by their end, so that the innermost comes first.
using Regions = std::map<std::pair<std::uintptr_t, std::uintptr_t>, Region>;
struct Map {
  Regions regions;
  std::unordered_map<std::uintptr_t, std::unique_ptr<ShadowPage>> pages;
  std::uintptr_t last_page = 0;
  ShadowPage* last_shadow = nullptr;
  const Region* last_region = nullptr;
  bool nested = false;  // some region lies within another
};
Map& map() {
  static Map* map = new Map;  // static objects may free memory after main
  return *map;
}
std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }
}  // namespace

const char* name_of(Space space) {
  switch (space) {
    case Space::device: return "device";
    case Space::shared: return "shared";
    case Space::parameter: return "parameter";
    case Space::host_mapped: return "host-mapped";
  }
  return "?";
}

ShadowPage& shadow_page(std::uintptr_t address) {
  Map& m = map();
  const std::uintptr_t page = address / kShadowPage + 1;  // 0: none yet
  if (page == m.last_page) return *m.last_shadow;
  auto& shadow = m.pages[page];
  if (!shadow) shadow = std::make_unique<ShadowPage>();
  m.last_page = page;
  m.last_shadow = shadow.get();
  return *shadow;
}

void forget_accesses() {
  for (auto& [page, shadow] : map().pages) shadow->granules.fill(Granule{});
}

void add_memory(const void* memory, std::size_t bytes, Space space, bool initialised, std::string what) {
  if (bytes == 0) return;
  Map& m = map();
  const std::uintptr_t begin = address_of(memory), end = begin + bytes;
  m.nested = m.nested || find_region(begin) != nullptr;
  m.regions[{begin, end}] = {begin, end, space, std::move(what)};
  m.last_region = nullptr;
  if (space == Space::parameter) return;  // never written, never racing: no shadow
  for_each_granule(begin, bytes, [&](ShadowPage& page, std::size_t i, std::uint8_t mask) {
    page.granules[i] = Granule{};
    page.initialised[i] = static_cast<std::uint8_t>(initialised ? page.initialised[i] | mask : page.initialised[i] & ~mask);
  });
}

void remove_memory(const void* memory) {
  Map& m = map();
  const auto at = m.regions.lower_bound({address_of(memory), 0});
  if (at == m.regions.end() || at->first.first != address_of(memory)) return;
  m.regions.erase(at);
  m.last_region = nullptr;
}

void mark_initialised(const void* memory, std::size_t bytes) {
  for_each_granule(address_of(memory), bytes, [](ShadowPage& page, std::size_t i, std::uint8_t mask) { page.initialised[i] |= mask; });
}

void mark_uninitialised(const void* memory, std::size_t bytes) {
  for_each_granule(address_of(memory), bytes, [](ShadowPage& page, std::size_t i, std::uint8_t mask) {
    page.initialised[i] = static_cast<std::uint8_t>(page.initialised[i] & ~mask);
  });
}

void copy_initialised(const void* target, const void* source, std::size_t bytes) {
  std::uintptr_t from = address_of(source), to = address_of(target);
  for (std::size_t i = 0; i < bytes; i++, from++, to++) {
    const bool known = shadow_page(from).initialised[granule_index(from)] >> (from % 4) & 1;
    std::uint8_t& bits = shadow_page(to).initialised[granule_index(to)];
    bits = static_cast<std::uint8_t>((bits & ~(1u << to % 4)) | (unsigned(known) << to % 4));
  }
}

const Region* find_region(std::uintptr_t address) {
  Map& m = map();
  if (!m.nested && m.last_region && address >= m.last_region->begin && address < m.last_region->end) return m.last_region;
  for (auto at = m.regions.upper_bound({address, UINTPTR_MAX}); at != m.regions.begin();) {
    const Region& region = (--at)->second;
    if (address < region.end) return m.last_region = &region;
    if (!m.nested) return nullptr;
  }
  return nullptr;
}

const Region* region_before(std::uintptr_t address) {
  const Region* best = nullptr;
  for (const auto& [key, region] : map().regions) {
    if (region.space == Space::parameter) continue;  // nobody indexes from there
    if (region.end <= address && (!best || region.end > best->end)) best = &region;
  }
  return best;
}

}  // namespace limpid::cudasim
