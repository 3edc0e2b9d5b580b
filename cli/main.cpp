// The limpid command: parses, runs one subcommand, and turns errors into exit codes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/cuda/error.h>
#include <limpid/memory/oom.h>
#include <limpid/version.h>

#include "commands.h"

namespace limpid::cli {
namespace {

int report(const std::string& what, int code) {
  std::fprintf(stderr, "limpid: %s\n", printable_lines(what).c_str());  // it may have words of a damaged file
  return code;
}

// A closed descriptor would be given to the next file that is opened, and progress written into that file. A closed
// stdout stays one that cannot be written.
void open_standard_files() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) ::_exit(kBadData);
  }
}

// `code`, or the failure to write the results.
int finish(int code) {
  std::cout.flush();
  const bool failed_now = std::fflush(stdout) != 0;
  const std::string reason = failed_now ? std::strerror(errno) : "write error";
  if (!failed_now && !std::ferror(stdout) && std::cout) return code;
  report("cannot write to standard output: " + reason, kBadData);
  return code == kOk ? kBadData : code;
}

// The words behind the program's name. `help` is --help, `help train` is `train --help`.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words[0] != "help") return words;
  words.erase(words.begin());
  words.push_back("--help");
  return words;
}

// An empty value is not "not given": a script with an unset variable would run without the cap that it asked for.
void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_min() == 0) continue;  // a flag
    option->check([](const std::string& value) {
      return value.empty() ? std::string("the value is empty; give one or leave the option out") : std::string();
    });
  }
  for (CLI::App* sub : app.get_subcommands({})) refuse_empty_values(*sub);
}

int run(int argc, char** argv) {
  CLI::App app("limpid: train small networks and see every byte and every sample.", "limpid");
  app.set_version_flag("--version", "limpid " LIMPID_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 a check failed, 2 bad arguments, 3 out of memory, 4 bad data or a file that cannot be read\n"
      "or written (standard output included), 129/130/143 a training run stopped with a checkpoint by a hang-up,\n"
      "Ctrl-C or SIGTERM. Progress goes to stderr, results to stdout; with --json the last line on stdout is one JSON\n"
      "object.");
  Action action;
  add_train(app, action);
  add_eval(app, action);
  add_predict(app, action);
  add_info(app, action);
  add_summary(app, action);
  add_plan(app, action);
  add_mem(app, action);
  add_check(app, action);
  add_sweep(app, action);
  add_diff(app, action);
  add_report(app, action);
  add_bench(app, action);
  refuse_empty_values(app);
  std::vector<std::string> words = words_of(argc, argv);
  if (!words.empty() && !words[0].starts_with("-")) {
    std::string known;
    bool found = false;
    for (const CLI::App* sub : std::as_const(app).get_subcommands({})) {
      found |= sub->get_name() == words[0];
      known += (known.empty() ? "" : ", ") + sub->get_name();
    }
    if (!found) return report("there is no subcommand " + words[0] + "; there are " + known, kBadArguments);
  }
  try {
    std::reverse(words.begin(), words.end());  // the parser takes them from the back
    app.parse(words);
  } catch (const CLI::ParseError& e) {
    // Help and version are parse "errors" with code 0.
    if (e.get_exit_code() == 0) return app.exit(e);
    return report(std::string(e.what()) + "; --help lists the options", kBadArguments);
  }
  try {
    return action();
  } catch (const memory::OutOfMemoryError& e) {
    return report(e.what(), kOutOfMemory);
  } catch (const std::bad_alloc&) {
    return report("the system has no memory left", kOutOfMemory);
  } catch (const ArgumentError& e) {
    return report(e.what(), kBadArguments);
  } catch (const DeviceError& e) {
    return report(e.what(), kBadArguments);
  } catch (const ShapeError& e) {
    return report(e.what(), kBadArguments);
  } catch (const DataError& e) {
    return report(e.what(), kBadData);
  } catch (const IoError& e) {
    return report(e.what(), kBadData);
  } catch (const std::exception& e) {
    return report(e.what(), kFailedCheck);
  }
}

}  // namespace
}  // namespace limpid::cli

int main(int argc, char** argv) {
  using namespace limpid::cli;
  open_standard_files();
  // A file-size limit then shows as a failed write, as a full disk does; so does a pipe that nobody reads.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  // For finding the kernel that fails: every launch waits (cuda/error.h).
  const char* const sync = std::getenv("LIMPID_CUDA_SYNC");
  limpid::cu::set_launch_sync(sync && *sync && std::string_view(sync) != "0");
  return finish(run(argc, argv));
}
