// Runs the limpid command as a process of its own: exit code, both outputs, signals and limits.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "temp_folder.h"

namespace limpid_test {

struct CommandOptions {
  rlim_t file_limit = RLIM_INFINITY;     // largest file it may write
  rlim_t address_limit = RLIM_INFINITY;  // most bytes of addresses it may have
  std::string data_path = {};         // $LIMPID_DATA
  std::optional<std::string> out = {};  // where stdout goes instead of into the result; "" = closed
  bool close_err = false;
};

struct CommandResult {
  int code = -1;  // exit code; -1 when a signal ended it
  int signal = 0;
  std::string out, err;
  // The last line on stdout.
  nlohmann::json json() const {
    std::istringstream stream(out);
    std::string last;
    for (std::string line; std::getline(stream, line);) last = line;
    return nlohmann::json::parse(last, nullptr, false);
  }
};

// A running command. The destructor kills it if it still runs.
class Command {
 public:
  explicit Command(const std::vector<std::string>& arguments, const CommandOptions& options = {}) {
    std::vector<std::string> words = {LIMPID_BINARY_DIR "/limpid"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = folder_ / "out", err = folder_ / "err";
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
      ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
      if (options.out) {
        ::close(1);
        if (!options.out->empty()) ::dup2(::open(options.out->c_str(), O_WRONLY), 1);
      }
      if (options.close_err) ::close(2);
      if (options.file_limit != RLIM_INFINITY) {
        rlimit limit{options.file_limit, RLIM_INFINITY};
        ::setrlimit(RLIMIT_FSIZE, &limit);
      }
      if (options.address_limit != RLIM_INFINITY) {
        rlimit limit{options.address_limit, RLIM_INFINITY};
        ::setrlimit(RLIMIT_AS, &limit);
      }
      if (!options.data_path.empty()) ::setenv("LIMPID_DATA", options.data_path.c_str(), 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Command() {
    if (running()) {
      send(SIGKILL);
      wait();
    }
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  bool running() {
    if (pid_ > 0 && !ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
    return pid_ > 0 && !ended_;
  }
  void send(int signal) {
    if (running()) ::kill(pid_, signal);
  }
  std::string err() const { return text(folder_ / "err"); }  // so far
  CommandResult wait() {
    if (!ended_) ::waitpid(pid_, &status_, 0);
    ended_ = true;
    CommandResult result;
    if (WIFEXITED(status_)) result.code = WEXITSTATUS(status_);
    if (WIFSIGNALED(status_)) result.signal = WTERMSIG(status_);
    result.out = text(folder_ / "out");
    result.err = text(folder_ / "err");
    return result;
  }

 private:
  static std::string text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream stream;
    stream << file.rdbuf();
    return stream.str();
  }
  TempFolder folder_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

inline CommandResult limpid_command(const std::vector<std::string>& arguments, const CommandOptions& options = {}) {
  return Command(arguments, options).wait();
}

}  // namespace limpid_test
