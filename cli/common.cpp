#include "common.h"

#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include <limpid/base/error.h>

namespace limpid::cli {
namespace {

std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_stop_signal(int) {
  if (stop_flag.exchange(true)) ::_exit(130);
}

}  // namespace

std::vector<std::string> data_search_paths() {
  std::vector<std::string> paths;
  if (const char* list = std::getenv("LIMPID_DATA")) {
    std::istringstream stream(list);
    for (std::string path; std::getline(stream, path, ':');) {
      if (!path.empty()) paths.push_back(path);
    }
  }
  paths.push_back("/usr/local/share/datasets");
  paths.push_back("/usr/share/datasets");
  return paths;
}

std::vector<std::int64_t> parse_input(const std::string& text) {
  std::vector<std::int64_t> sizes;
  const char* p = text.data();
  const char* end = p + text.size();
  while (true) {
    std::int64_t size = 0;
    auto [rest, error] = std::from_chars(p, end, size);
    LIMPID_CHECK(error == std::errc() && size > 0, ArgumentError,
                 "--input is channels x height x width, e.g. 3x224x224; got ", text);
    sizes.push_back(size);
    if (rest == end) break;
    LIMPID_CHECK(*rest == 'x', ArgumentError, "--input is channels x height x width, e.g. 3x224x224; got ", text);
    p = rest + 1;
  }
  LIMPID_CHECK(sizes.size() == 3, ArgumentError, "--input is channels x height x width, e.g. 3x224x224; got ", text);
  return sizes;
}

std::string usual_input(const std::string& model) {
  if (model == "seed" || model == "resnet50") return "3x224x224";
  if (model == "mlp" || model == "lenet" || model == "lenet-bn") return "1x28x28";
  return "3x32x32";
}

const std::atomic<bool>& stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  return stop_flag;
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * fraction);
  return text;
}

}  // namespace limpid::cli
