// A reader of Python pickles that can only make data: None, booleans, integers, floats, texts, tuples, lists and dicts.
// Every opcode that would import, call or build anything is refused by name, so a hostile file can do nothing but fail.
// Protocols 2 to 5. Memory is linear in the size of the input; nesting costs no stack.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace limpid::memory {

enum class PickleType : std::uint8_t { none, boolean, integer, real, text, tuple, list, dict };
const char* to_string(PickleType type);

class PickleDocument;

// A value inside a document; valid as long as the document and the bytes it was read from. Values may be shared and
// even contain themselves: follow them along a known structure, never blindly.
class PickleValue {
 public:
  PickleType type() const;
  bool is(PickleType t) const { return type() == t; }
  std::int64_t integer() const;                     // also of a boolean; DataError for other types
  double real() const;                              // also of an integer
  std::string_view text() const;                    // DataError for other types
  std::size_t size() const;                         // of a tuple, list or dict (pairs)
  PickleValue operator[](std::size_t index) const;  // of a tuple or list
  PickleValue key(std::size_t index) const;         // of a dict's pair
  PickleValue value(std::size_t index) const;
  std::optional<PickleValue> find(std::string_view key) const;  // in a dict; the last pair with that key wins

 private:
  friend class PickleDocument;
  PickleValue(const PickleDocument* document, std::uint32_t node) : document_(document), node_(node) {}
  const PickleDocument* document_;
  std::uint32_t node_;
};

class PickleDocument {
 public:
  // DataError: not a pickle, damaged, or with an opcode outside the list. `bytes` must outlive the document.
  explicit PickleDocument(std::string_view bytes);
  PickleValue root() const { return PickleValue(this, root_); }

 private:
  friend class PickleValue;
  friend class PickleMachine;
  struct Node {
    std::int64_t integer = 0;  // integer, boolean; bits of a real; place of a text; index into lists_ for containers
    std::uint32_t length = 0;  // of a text
    PickleType type = PickleType::none;
  };
  std::string_view bytes_;
  std::vector<Node> nodes_;
  std::vector<std::vector<std::uint32_t>> lists_;  // children; of a dict key, value, key, value, ...
  std::uint32_t root_ = 0;
};

}  // namespace limpid::memory
