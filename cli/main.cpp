// The limpid command: parses, runs one subcommand, and turns errors into exit codes.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include <CLI/CLI.hpp>

#include <limpid/base/error.h>
#include <limpid/memory/oom.h>
#include <limpid/version.h>

#include "commands.h"

namespace limpid::cli {
namespace {

int report(const char* what, int code) {
  std::fprintf(stderr, "limpid: %s\n", what);
  return code;
}

int run(int argc, char** argv) {
  CLI::App app("limpid: train small networks and see every byte and every sample.", "limpid");
  app.set_version_flag("--version", "limpid " LIMPID_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 a check failed, 2 bad arguments, 3 out of memory, 4 bad data or a file that cannot be read "
      "or "
      "written.\nProgress goes to stderr, results to stdout; with --json the last line on stdout is one JSON object.");
  Action action;
  add_train(app, action);
  add_eval(app, action);
  add_predict(app, action);
  add_info(app, action);
  add_summary(app, action);
  add_plan(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // Help and version are parse "errors" with code 0.
    return app.exit(e) == 0 ? kOk : kBadArguments;
  }
  // A file-size limit then shows as a failed write, as a full disk does.
  std::signal(SIGXFSZ, SIG_IGN);
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

int main(int argc, char** argv) { return limpid::cli::run(argc, argv); }
