#include "common.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>
#include <sstream>

#include <limpid/tensor/backend.h>
#include <limpid/train/run_folder.h>

namespace limpid::cli {
namespace {

std::atomic<bool> stop_flag{false};
std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_ns{0};  // when it came
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Two signals at once are one wish: a terminal and a shell both send Ctrl-C, a service manager repeats itself.
constexpr std::int64_t kAgainNs = 1'000'000'000;

extern "C" void on_stop_signal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    first_ns.store(now_ns());
    stop_flag.store(true);
    constexpr char kText[] =
        "\nstopping after this step or evaluated batch, with a checkpoint if there is --out; again in a second or "
        "later: at once, without\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  } else if (first_ns.load() != 0 && now_ns() - first_ns.load() >= kAgainNs) {
    ::_exit(128 + signal);
  }
  errno = saved_errno;
}

}  // namespace

const char* const kDeviceHelp = "cpu, cuda or cuda:N (the GPU number N); default: the first GPU that limpid can compute on, else cpu";

std::string chosen_device(const CLI::Option& option, const std::string& given) {
  return to_string(option.count() > 0 ? parse_device(given) : best_device());
}

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
  std::int64_t values = 1;
  constexpr std::int64_t kMostValues = std::int64_t{1} << 40;
  for (std::int64_t size : sizes) {
    LIMPID_CHECK(!__builtin_mul_overflow(values, size, &values) && values <= kMostValues, ArgumentError,
                 "--input has at most 2^40 values; got ", text);
  }
  LIMPID_CHECK(sizes.size() == 3, ArgumentError, "--input is channels x height x width, e.g. 3x224x224; got ", text);
  return sizes;
}

std::string real_problem(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return "";
  return concat("expected a number such as 0.9 or 1e-3, got ", text);
}

CLI::Option* add_real(CLI::App& app, const std::string& name, double& value, const std::string& help) {
  return app.add_option(name, value, help)->check(real_problem, "");
}

CLI::Option* add_fuse(CLI::App& app, bool& fuse) {
  return app
      .add_option_function<std::string>(
          "--fuse", [&fuse](const std::string& text) { fuse = text == "on"; },
          "on or off: compute neighbouring layers (convolution, activation, pooling) as one operation, which keeps "
          "fewer bytes "
          "for the gradient and may change the last digits of the numbers; off: one operation a layer")
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str("on");
}

void refuse_both(const CLI::Option* a, const CLI::Option* b, const char* why) {
  LIMPID_CHECK(a->count() == 0 || b->count() == 0, ArgumentError, a->get_name(), " and ", b->get_name(),
               " do not go together: ", why);
}

void refuse_without(const CLI::Option* option, const CLI::Option* needed, const char* why) {
  LIMPID_CHECK(option->count() == 0 || needed->count() > 0, ArgumentError, option->get_name(), " needs ",
               needed->get_name(), ": ", why);
}

void refuse_overwriting(const char* option, const std::string& out, const std::vector<std::string>& inputs) {
  namespace fs = std::filesystem;
  struct stat target {};
  if (::stat(out.c_str(), &target) != 0) return;  // nothing there
  auto is_target = [&](const std::string& path) {
    struct stat found {};
    return ::stat(path.c_str(), &found) == 0 && found.st_dev == target.st_dev && found.st_ino == target.st_ino;
  };
  std::error_code ignored;
  std::set<fs::path> folders;
  auto add_folders = [&](const std::string& path) {
    // A run's files lie at most two folders below it.
    fs::path at = fs::weakly_canonical(path, ignored);
    for (int up = 0; up < 4 && !at.empty(); up++, at = at.parent_path()) folders.insert(at);
  };
  for (const std::string& input : inputs) {
    const std::string file = fs::is_directory(input, ignored) ? input + "/trace.bin" : input;
    LIMPID_CHECK(!is_target(file), ArgumentError, option, " ", out, " would overwrite the input ", file);
    add_folders(input);
  }
  add_folders(out);
  for (const fs::path& folder : folders) {
    if (!train::RunFolder::holds_run(folder.string())) continue;
    for (const std::string& file : train::RunFolder::files_of(folder.string())) {
      LIMPID_CHECK(!is_target(file), ArgumentError, option, " ", out, " would overwrite a file of the run: ", file);
    }
  }
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
  action.sa_flags = SA_RESTART;  // nothing waits without end: files are regular (base/file.h)
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  return stop_flag;
}

int stop_signal() { return first_signal.load(); }

void print_json(const nlohmann::ordered_json& json) {
  std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

std::string counted(std::int64_t count, const char* thing) {
  return concat(format_count(count), " ", thing, count == 1 ? "" : "s");
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * fraction);
  return text;
}

}  // namespace limpid::cli
