// What the examples share, and nothing of what they show: options "--name N", --help, errors as sentences.
// Exit codes: 0 as expected, 1 not as expected or an error, 2 bad arguments.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <limpid/base/error.h>

struct Option {
  const char* name;  // "--samples"
  std::int64_t fallback;
  const char* help;
  std::int64_t least = 1;
};

struct Example {
  const char* shows;
  std::vector<Option> options = {};
  const char* small_run = "";  // options of a short run
};

class Arguments {
 public:
  // ArgumentError for what is unknown, has no value, or no whole number in range.
  Arguments(int argc, char** argv, const Example& example) {
    constexpr std::int64_t kMost = 1'000'000'000;
    std::string known = "--help";
    for (const Option& o : example.options) values_[o.name] = o.fallback, known += std::string(", ") + o.name;
    for (int i = 1; i < argc; i++) {
      const std::string_view name = argv[i];
      help_ |= name == "--help" || name == "-h";
      if (help_) return;
      const Option* option = nullptr;
      for (const Option& o : example.options)
        if (name == o.name) option = &o;
      LIMPID_CHECK(option, limpid::ArgumentError, "there is no option ", name, "; there are ", known);
      LIMPID_CHECK(++i < argc, limpid::ArgumentError, name, " needs a whole number");
      const std::string_view text = argv[i];
      std::int64_t& value = values_[option->name];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      LIMPID_CHECK(error == std::errc() && end == text.data() + text.size() && value >= option->least && value <= kMost,
                   limpid::ArgumentError, name, " is a whole number from ", option->least, " to ", kMost, ", got ",
                   text);
    }
  }
  bool help() const { return help_; }
  std::int64_t operator[](std::string_view name) const { return values_.at(name); }

 private:
  std::map<std::string_view, std::int64_t> values_;
  bool help_ = false;
};

// An example's main(): `run` is called unless the arguments are bad or ask for help.
template <class Run>
int run_example(int argc, char** argv, const Example& example, Run&& run) {
  const std::string path = argc > 0 ? argv[0] : "example", name = path.substr(path.rfind('/') + 1);
  auto report = [&](const char* what, int code) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", name.c_str(), what);
    return code;
  };
  try {
    const Arguments arguments(argc, argv, example);
    if (!arguments.help()) return run(arguments);
    std::printf("%s\n\nOptions:\n", example.shows);
    for (const Option& o : example.options)
      std::printf("  %-10s N   %s (%lld)\n", o.name, o.help, static_cast<long long>(o.fallback));
    std::printf("  %-14s%s\n\nExample:\n  %s %s\n", "--help", "This text", name.c_str(), example.small_run);
    return 0;
  } catch (const limpid::ArgumentError& error) {
    return report(error.what(), 2);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}
