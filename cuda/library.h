// Shared libraries that limpid loads when it first needs them: the program starts without them, and says what is
// missing. Names are tried in order, first as the system finds them, then in the usual folder of the CUDA toolkit.
#pragma once

#include <string>
#include <vector>

namespace limpid::cu {

class Library {
 public:
  // `names` are the versions that will do, the best first; `others` are only looked for to tell which version is there
  // instead. `without` says what works when it is missing.
  Library(std::vector<std::string> names, std::vector<std::string> others, std::string without);

  bool loaded() const { return handle_ != nullptr; }
  bool usable() const { return loaded() && problem_.empty(); }
  const std::string& wanted() const { return wanted_; }  // "libcudart.so.13 or libcudart.so.12"
  const std::string& name() const { return name_; }      // the one that was loaded; "" when none
  const std::string& path() const { return path_; }      // of its file
  const std::string& other() const { return other_; }    // the version that is there instead; "" when none
  // Why it cannot be used, in a sentence; "" when it can.
  const std::string& problem() const { return problem_; }
  const std::string& without() const { return without_; }

  // nullptr when the library lacks it.
  void* find(const char* symbol) const;
  // The same into a function pointer. A symbol that is missing makes the library unusable, with a problem that names
  // it.
  template <class Function>
  void bind(const char* symbol, Function*& into) {
    into = reinterpret_cast<Function*>(find(symbol));
    if (!into && loaded()) refuse(std::string("it has no ") + symbol);
  }
  // Loaded, but of no use: `why` becomes the problem.
  void refuse(const std::string& why);

 private:
  std::string wanted_, without_, name_, path_, other_, problem_;
  void* handle_ = nullptr;  // never closed: its functions may run until the end of the program
};

}  // namespace limpid::cu
