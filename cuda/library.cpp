#include <limpid/cuda/library.h>

#include <dlfcn.h>
#include <link.h>

namespace limpid::cu {
namespace {

// Where the toolkit's installer puts its libraries; the system's own search finds the others.
const char* const kToolkitFolder = "/usr/local/cuda/lib64/";

void* open_library(const std::string& name, std::string& problem) {
  for (const std::string& place : {name, kToolkitFolder + name}) {
    if (void* handle = ::dlopen(place.c_str(), RTLD_LAZY | RTLD_LOCAL)) return handle;
    // A file that is there and does not load is worth telling; "no such file" is told once, by the caller.
    const char* text = ::dlerror();
    if (text && std::string(text).find("No such file") == std::string::npos) problem = text;
  }
  return nullptr;
}

}  // namespace

Library::Library(std::vector<std::string> names, std::vector<std::string> others, std::string without)
    : without_(std::move(without)) {
  std::string why;
  for (const std::string& name : names) {
    wanted_ += (wanted_.empty() ? "" : " or ") + name;
    if (handle_) continue;
    handle_ = open_library(name, why);
    if (handle_) name_ = name;
  }
  if (handle_) {
    const link_map* map = nullptr;
    if (::dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map) path_ = map->l_name;
    return;
  }
  for (const std::string& name : others) {
    std::string unused;
    void* other = other_.empty() ? open_library(name, unused) : nullptr;
    if (!other) continue;
    other_ = name;
    ::dlclose(other);
  }
  problem_ = !why.empty() ? "cannot be loaded: " + why : other_.empty() ? "not found" : "found " + other_ + " only";
}

void* Library::find(const char* symbol) const {
  if (!handle_) return nullptr;
  return ::dlsym(handle_, symbol);
}

void Library::refuse(const std::string& why) {
  if (problem_.empty()) problem_ = why;
}

}  // namespace limpid::cu
