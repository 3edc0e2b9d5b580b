#include <limpid/base/names.h>

#include <deque>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace limpid {
namespace {

struct Table {
  std::shared_mutex mutex;
  std::deque<std::string> texts{std::string()};  // deque: references stay valid while it grows
  std::unordered_map<std::string_view, NameId> ids{{std::string_view(), 0}};
};

// Never destroyed, so that static tensors can still be named at exit.
Table& table() {
  static Table* t = new Table;
  return *t;
}

}  // namespace

NameId intern(std::string_view name) {
  Table& t = table();
  {
    std::shared_lock lock(t.mutex);
    auto it = t.ids.find(name);
    if (it != t.ids.end()) return it->second;
  }
  std::unique_lock lock(t.mutex);
  auto it = t.ids.find(name);
  if (it != t.ids.end()) return it->second;
  NameId id = static_cast<NameId>(t.texts.size());
  t.texts.emplace_back(name);
  t.ids.emplace(std::string_view(t.texts.back()), id);
  return id;
}

const std::string& name_of(NameId id) {
  static const std::string unknown = "?";
  Table& t = table();
  std::shared_lock lock(t.mutex);
  return id < t.texts.size() ? t.texts[id] : unknown;
}

}  // namespace limpid
