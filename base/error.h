// Errors. limpid reports every failure by exception; the library never prints, exits or traps.
//
// A message is one sentence with both values, led by the operation:
//   [conv2d] weight expects 3 input channels, input has 4 (input f32[8,4,32,32] cpu)
// LIMPID_CHECK(cond, ShapeError, "[op] ...", value, ...) throws when cond is false; the parts after the kind are
// joined without separators by concat(). Any type with a to_string(x) found by ADL can be a part.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <limpid/base/macros.h>

namespace limpid {

// Base of all errors thrown by limpid. what() is the message alone; where() is "file:line" of the check.
class Error : public std::exception {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const noexcept { return message_; }
  const std::string& where() const noexcept { return where_; }
  void set_where(std::string where) { where_ = std::move(where); }
  // Puts words in front: which sample, which file. The type stays what it is.
  void add_context(const std::string& context) { message_.insert(0, context); }

 private:
  std::string message_;
  std::string where_;
};

#define LIMPID_DEFINE_ERROR(Name)      \
  class Name : public Error {          \
   public:                             \
    using Error::Error;                \
  }
LIMPID_DEFINE_ERROR(ArgumentError);  // a value outside its documented range
LIMPID_DEFINE_ERROR(ShapeError);
LIMPID_DEFINE_ERROR(DTypeError);
LIMPID_DEFINE_ERROR(DeviceError);
LIMPID_DEFINE_ERROR(IndexError);
LIMPID_DEFINE_ERROR(AutogradError);
LIMPID_DEFINE_ERROR(DataError);      // a file or a data set is not what it should be
LIMPID_DEFINE_ERROR(IoError);        // the operating system refused: cannot open, disk full, ...
LIMPID_DEFINE_ERROR(InternalError);  // an invariant of limpid is broken: always a bug of ours
#undef LIMPID_DEFINE_ERROR
// OutOfMemoryError stands in memory/oom.h, CudaError in cuda/, DistError in dist/: they carry more than a sentence.

namespace detail {
inline std::string piece(std::string_view s) { return std::string(s); }
inline std::string piece(const char* s) { return s; }
inline std::string piece(const std::string& s) { return s; }
inline std::string piece(char c) { return std::string(1, c); }
inline std::string piece(bool b) { return b ? "true" : "false"; }
std::string piece(double v);  // shortest form that reads back to the same value
inline std::string piece(float v) { return piece(static_cast<double>(v)); }
template <class T>
  requires(!std::is_convertible_v<T, std::string_view>)
std::string piece(const T& v) {
  if constexpr (std::is_enum_v<T> || !std::is_integral_v<T>) {
    return to_string(v);
  } else {
    return std::to_string(v);
  }
}
template <class E>
[[noreturn]] LIMPID_NOINLINE void raise(const char* file, int line, std::string message) {
  E error(std::move(message));
  error.set_where(std::string(file) + ":" + std::to_string(line));
  throw error;
}
}  // namespace detail

// Joins its arguments into one string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  ((out += detail::piece(parts)), ...);
  return out;
}

}  // namespace limpid

#define LIMPID_THROW(Kind, ...) ::limpid::detail::raise<Kind>(__FILE__, __LINE__, ::limpid::concat(__VA_ARGS__))
#define LIMPID_CHECK(cond, Kind, ...)                                \
  do {                                                               \
    if (LIMPID_UNLIKELY(!(cond))) LIMPID_THROW(Kind, __VA_ARGS__);   \
  } while (0)
// Internal invariant; checked in release builds too. The message names the condition.
#define LIMPID_ASSERT(cond) LIMPID_CHECK(cond, ::limpid::InternalError, "internal invariant broken: " #cond)
