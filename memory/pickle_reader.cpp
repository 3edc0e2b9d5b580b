#include <limpid/memory/pickle_reader.h>

#include <bit>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

// Opcodes of Python's pickletools. The first list is all that is accepted.
enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinUnicode = 'X',
  kAppend = 'a',
  kAppends = 'e',
  kDict = 'd',
  kEmptyDict = '}',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// Known opcodes that are refused, for the message. All of them import, call, build, or reach outside the file.
const char* refused_name(std::uint8_t opcode) {
  switch (opcode) {
    case 'c':
      return "GLOBAL, which imports code";
    case 0x93:
      return "STACK_GLOBAL, which imports code";
    case 'R':
      return "REDUCE, which calls a function";
    case 'b':
      return "BUILD, which runs an object's code";
    case 'i':
      return "INST, which imports and calls code";
    case 'o':
      return "OBJ, which calls code";
    case 0x81:
      return "NEWOBJ, which calls code";
    case 0x92:
      return "NEWOBJ_EX, which calls code";
    case 'P':
      return "PERSID, which asks the program for an object";
    case 'Q':
      return "BINPERSID, which asks the program for an object";
    case 0x82:
      return "EXT1, which calls code";
    case 0x83:
      return "EXT2, which calls code";
    case 0x84:
      return "EXT4, which calls code";
    case 0x97:
      return "NEXT_BUFFER, which asks the program for an object";
    default:
      return nullptr;
  }
}

constexpr std::uint32_t kMarkNode = UINT32_MAX;

}  // namespace

const char* to_string(PickleType type) {
  static constexpr const char* kNames[] = {"None", "bool", "int", "float", "str", "tuple", "list", "dict"};
  return kNames[static_cast<int>(type)];
}

// Runs the opcodes: a stack of node numbers with marks among them, and a memo.
class PickleMachine {
 public:
  PickleMachine(PickleDocument& document, std::string_view bytes) : document_(document), bytes_(bytes) {}

  void run() {
    LIMPID_CHECK(byte() == kProto, DataError, "[pickle] not a pickle of protocol 2 to 5");
    const std::uint8_t protocol = byte();
    LIMPID_CHECK(protocol >= 2 && protocol <= 5, DataError, "[pickle] protocol ", static_cast<int>(protocol),
                 " is not one of 2 to 5");
    while (step()) {
    }
  }

 private:
  using Node = PickleDocument::Node;

  bool step() {
    const std::size_t where = at_;
    const std::uint8_t opcode = byte();
    switch (opcode) {
      case kStop:
        LIMPID_CHECK(stack_.size() == 1 && stack_[0] != kMarkNode, DataError, "[pickle] ends with ", stack_.size(),
                     " values on the stack instead of one");
        document_.root_ = stack_[0];
        return false;
      case kFrame:
        number(8);
        break;  // only a hint for readers of streams
      case kMark:
        stack_.push_back(kMarkNode);
        break;
      case kPop:
        need(1);
        stack_.pop_back();
        break;
      case kPopMark:
        stack_.resize(mark());
        break;
      case kNone:
        push({});
        break;
      case kNewTrue:
        push(integer_node(PickleType::boolean, 1));
        break;
      case kNewFalse:
        push(integer_node(PickleType::boolean, 0));
        break;
      case kBinInt:
        push(integer_node(PickleType::integer, static_cast<std::int32_t>(number(4))));
        break;
      case kBinInt1:
        push(integer_node(PickleType::integer, static_cast<std::int64_t>(number(1))));
        break;
      case kBinInt2:
        push(integer_node(PickleType::integer, static_cast<std::int64_t>(number(2))));
        break;
      case kLong1:
        push(integer_node(PickleType::integer, long_number(number(1))));
        break;
      case kBinFloat: {
        std::uint64_t bits = 0;  // big-endian
        for (int i = 0; i < 8; i++) bits = bits << 8 | byte();
        Node node;
        node.type = PickleType::real;
        node.integer = static_cast<std::int64_t>(bits);
        push(node);
        break;
      }
      case kShortBinUnicode:
        push_text(number(1));
        break;
      case kBinUnicode:
        push_text(number(4));
        break;
      case kBinUnicode8:
        push_text(number(8));
        break;
      case kEmptyTuple:
        push_container(PickleType::tuple, stack_.size());
        break;
      case kEmptyList:
        push_container(PickleType::list, stack_.size());
        break;
      case kEmptyDict:
        push_container(PickleType::dict, stack_.size());
        break;
      case kTuple1:
        need(1), push_container(PickleType::tuple, stack_.size() - 1);
        break;
      case kTuple2:
        need(2), push_container(PickleType::tuple, stack_.size() - 2);
        break;
      case kTuple3:
        need(3), push_container(PickleType::tuple, stack_.size() - 3);
        break;
      case kTuple:
        from_mark(PickleType::tuple);
        break;
      case kList:
        from_mark(PickleType::list);
        break;
      case kDict:
        from_mark(PickleType::dict);
        break;
      case kAppend:
        add(PickleType::list, 1);
        break;
      case kAppends:
        add_from_mark(PickleType::list);
        break;
      case kSetItem:
        add(PickleType::dict, 2);
        break;
      case kSetItems:
        add_from_mark(PickleType::dict);
        break;
      case kMemoize:
        put(memo_.size());
        break;
      case kBinPut:
        put(number(1));
        break;
      case kLongBinPut:
        put(number(4));
        break;
      case kBinGet:
        get(number(1));
        break;
      case kLongBinGet:
        get(number(4));
        break;
      default: {
        const char* name = refused_name(opcode);
        LIMPID_CHECK(!name, DataError, "[pickle] refused at byte ", where, ": opcode ", name ? name : "",
                     "; a memory snapshot holds plain data only");
        LIMPID_THROW(DataError, "[pickle] opcode ", static_cast<int>(opcode), " at byte ", where,
                     " is not one of plain data");
      }
    }
    return true;
  }

  std::uint8_t byte() {
    LIMPID_CHECK(at_ < bytes_.size(), DataError, "[pickle] the file ends at byte ", at_, " without STOP");
    return static_cast<std::uint8_t>(bytes_[at_++]);
  }
  std::uint64_t number(int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= static_cast<std::uint64_t>(byte()) << (8 * i);
    return value;
  }
  // Two's complement of so many bytes.
  std::int64_t long_number(std::uint64_t length) {
    LIMPID_CHECK(length <= 9, DataError, "[pickle] an integer of ", length, " bytes does not fit in 64 bits");
    std::uint64_t value = 0;
    std::uint8_t last = 0;
    for (std::uint64_t i = 0; i < length; i++) {
      last = byte();
      if (i < 8) value |= static_cast<std::uint64_t>(last) << (8 * i);
    }
    LIMPID_CHECK(length < 9 || last == 0, DataError, "[pickle] an integer does not fit in 64 bits");
    if (length > 0 && length < 8 && last & 0x80) value |= UINT64_MAX << (8 * length);
    return static_cast<std::int64_t>(value);
  }
  void push(const Node& node) {
    LIMPID_CHECK(document_.nodes_.size() < kMarkNode, DataError, "[pickle] more than 2^32 values");
    stack_.push_back(static_cast<std::uint32_t>(document_.nodes_.size()));
    document_.nodes_.push_back(node);
  }
  static Node integer_node(PickleType type, std::int64_t value) {
    Node node;
    node.type = type;
    node.integer = value;
    return node;
  }
  void push_text(std::uint64_t length) {
    LIMPID_CHECK(length <= bytes_.size() - at_, DataError, "[pickle] a text of ", length, " bytes at byte ", at_,
                 " in a file of ", bytes_.size());
    Node node;
    LIMPID_CHECK(length <= UINT32_MAX, DataError, "[pickle] a text of ", length, " bytes");
    node.type = PickleType::text;
    node.integer = static_cast<std::int64_t>(at_);
    node.length = static_cast<std::uint32_t>(length);
    at_ += static_cast<std::size_t>(length);
    push(node);
  }
  void need(std::size_t values) const {
    bool ok = stack_.size() >= values;
    for (std::size_t i = 0; ok && i < values; i++) ok = stack_[stack_.size() - 1 - i] != kMarkNode;
    LIMPID_CHECK(ok, DataError, "[pickle] an opcode before byte ", at_, " finds too few values on the stack");
  }
  // The place of the topmost mark.
  std::size_t mark() const {
    for (std::size_t i = stack_.size(); i > 0; i--) {
      if (stack_[i - 1] == kMarkNode) return i - 1;
    }
    LIMPID_THROW(DataError, "[pickle] an opcode before byte ", at_, " finds no mark on the stack");
  }
  void push_container(PickleType type, std::size_t first) {
    Node node = integer_node(type, static_cast<std::int64_t>(document_.lists_.size()));
    document_.lists_.emplace_back(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(first);
    push(node);
  }
  void from_mark(PickleType type) {
    const std::size_t at = mark();
    LIMPID_CHECK(type != PickleType::dict || (stack_.size() - at - 1) % 2 == 0, DataError,
                 "[pickle] a dict of an odd number of values");
    push_container(type, at + 1);
    stack_.erase(stack_.end() - 2);  // the mark
  }
  void append_to(PickleType type, std::size_t target, std::size_t first) {
    LIMPID_CHECK(stack_[target] != kMarkNode && document_.nodes_[stack_[target]].type == type, DataError,
                 "[pickle] an opcode before byte ", at_, " adds to something that is not a ", to_string(type));
    const auto list = static_cast<std::size_t>(document_.nodes_[stack_[target]].integer);
    document_.lists_[list].insert(document_.lists_[list].end(), stack_.begin() + static_cast<std::ptrdiff_t>(first),
                                  stack_.end());
    stack_.resize(target + 1);
  }
  void add(PickleType type, std::size_t values) {
    need(values + 1);
    append_to(type, stack_.size() - values - 1, stack_.size() - values);
  }
  void add_from_mark(PickleType type) {
    const std::size_t at = mark();
    LIMPID_CHECK(at > 0, DataError, "[pickle] an opcode before byte ", at_, " has nothing to add to");
    LIMPID_CHECK(type != PickleType::dict || (stack_.size() - at - 1) % 2 == 0, DataError,
                 "[pickle] a dict of an odd number of values");
    append_to(type, at - 1, at + 1);
  }
  // A memo number may be anything below 2^32, but none is larger than the bytes read so far.
  void put(std::uint64_t index) {
    need(1);
    LIMPID_CHECK(index < bytes_.size(), DataError, "[pickle] memo number ", index, " in a file of ", bytes_.size(),
                 " bytes");
    if (index >= memo_.size()) memo_.resize(static_cast<std::size_t>(index) + 1, kMarkNode);
    memo_[static_cast<std::size_t>(index)] = stack_.back();
  }
  void get(std::uint64_t index) {
    LIMPID_CHECK(index < memo_.size() && memo_[static_cast<std::size_t>(index)] != kMarkNode, DataError,
                 "[pickle] memo number ", index, " was never stored");
    stack_.push_back(memo_[static_cast<std::size_t>(index)]);
  }

  PickleDocument& document_;
  std::string_view bytes_;
  std::size_t at_ = 0;
  std::vector<std::uint32_t> stack_, memo_;
};

PickleDocument::PickleDocument(std::string_view bytes) : bytes_(bytes) { PickleMachine(*this, bytes).run(); }

PickleType PickleValue::type() const { return document_->nodes_[node_].type; }

std::int64_t PickleValue::integer() const {
  LIMPID_CHECK(is(PickleType::integer) || is(PickleType::boolean), DataError, "[pickle] expected an int, found a ",
               to_string(type()));
  return document_->nodes_[node_].integer;
}

double PickleValue::real() const {
  if (!is(PickleType::real)) return static_cast<double>(integer());
  return std::bit_cast<double>(document_->nodes_[node_].integer);
}

std::string_view PickleValue::text() const {
  LIMPID_CHECK(is(PickleType::text), DataError, "[pickle] expected a str, found a ", to_string(type()));
  const PickleDocument::Node& node = document_->nodes_[node_];
  return document_->bytes_.substr(static_cast<std::size_t>(node.integer), node.length);
}

std::size_t PickleValue::size() const {
  LIMPID_CHECK(type() >= PickleType::tuple, DataError, "[pickle] expected a list, found a ", to_string(type()));
  const std::size_t n = document_->lists_[static_cast<std::size_t>(document_->nodes_[node_].integer)].size();
  return is(PickleType::dict) ? n / 2 : n;
}

PickleValue PickleValue::operator[](std::size_t index) const {
  LIMPID_CHECK(!is(PickleType::dict) && index < size(), DataError, "[pickle] no element ", index, " in a ",
               to_string(type()));
  return {document_, document_->lists_[static_cast<std::size_t>(document_->nodes_[node_].integer)][index]};
}

PickleValue PickleValue::key(std::size_t index) const {
  LIMPID_CHECK(is(PickleType::dict) && index < size(), DataError, "[pickle] no pair ", index, " in a ",
               to_string(type()));
  return {document_, document_->lists_[static_cast<std::size_t>(document_->nodes_[node_].integer)][2 * index]};
}

PickleValue PickleValue::value(std::size_t index) const {
  LIMPID_CHECK(is(PickleType::dict) && index < size(), DataError, "[pickle] no pair ", index, " in a ",
               to_string(type()));
  return {document_, document_->lists_[static_cast<std::size_t>(document_->nodes_[node_].integer)][2 * index + 1]};
}

std::optional<PickleValue> PickleValue::find(std::string_view wanted) const {
  LIMPID_CHECK(is(PickleType::dict), DataError, "[pickle] expected a dict, found a ", to_string(type()));
  for (std::size_t i = size(); i > 0; i--) {
    const PickleValue k = key(i - 1);
    if (k.is(PickleType::text) && k.text() == wanted) return value(i - 1);
  }
  return std::nullopt;
}

}  // namespace limpid::memory
