#include "onnx_reader.h"

#include <cstring>

#include <limpid/base/error.h>
#include <limpid/tensor/creation.h>

namespace onnx_test {
namespace {

using namespace limpid;

// Wire types of protobuf; groups (3, 4) are not used by ONNX.
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Walks the fields of one message.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  // False at the end of the message.
  bool next() {
    if (rest_.empty()) return false;
    std::uint64_t key = read_varint();
    number_ = static_cast<int>(key >> 3 & 0x1fffffff);
    LIMPID_CHECK(number_ != 0, DataError, "[onnx] field number 0");
    type_ = static_cast<int>(key & 7);
    switch (type_) {
      case kVarint:
        value_ = read_varint();
        break;
      case kFixed64:
        bytes_ = take(8);
        break;
      case kFixed32:
        bytes_ = take(4);
        break;
      case kBytes:
        bytes_ = take(read_varint());
        break;
      default:
        LIMPID_THROW(DataError, "[onnx] field ", number_, " has unknown wire type ", type_);
    }
    return true;
  }
  int number() const { return number_; }
  std::int64_t integer() const {
    expect(kVarint);
    return static_cast<std::int64_t>(value_);
  }
  std::string_view bytes() const {
    expect(kBytes);
    return bytes_;
  }
  std::string text() const { return std::string(bytes()); }
  float fixed_float() const {
    expect(kFixed32);
    return load<float>(bytes_);
  }
  // Repeated numbers come one a field or packed into one.
  void append_integers(std::vector<std::int64_t>& out) const {
    if (type_ == kVarint) {
      out.push_back(integer());
      return;
    }
    Fields packed(bytes());
    while (!packed.rest_.empty()) out.push_back(static_cast<std::int64_t>(packed.read_varint()));
  }
  template <class T>
  void append_fixed(std::vector<T>& out) const {
    if (type_ == (sizeof(T) == 4 ? kFixed32 : kFixed64)) {
      out.push_back(load<T>(bytes_));
      return;
    }
    std::string_view packed = bytes();
    LIMPID_CHECK(packed.size() % sizeof(T) == 0, DataError, "[onnx] field ", number_, " packs ", packed.size(),
                 " bytes, not a multiple of ", sizeof(T));
    for (; !packed.empty(); packed.remove_prefix(sizeof(T))) out.push_back(load<T>(packed));
  }

 private:
  void expect(int type) const {
    LIMPID_CHECK(type_ == type, DataError, "[onnx] field ", number_, " has wire type ", type_, ", expected ", type);
  }
  template <class T>
  static T load(std::string_view bytes) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string_view take(std::uint64_t count) {
    LIMPID_CHECK(count <= rest_.size(), DataError, "[onnx] truncated: ", count, " bytes wanted, ", rest_.size(),
                 " left");
    std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::uint64_t read_varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    LIMPID_THROW(DataError, "[onnx] a varint is longer than 10 bytes");
  }

  std::string_view rest_;
  int number_ = 0;
  int type_ = 0;
  std::uint64_t value_ = 0;
  std::string_view bytes_;
};

Attribute parse_attribute(std::string_view bytes) {
  Attribute out;
  for (Fields field(bytes); field.next();) {
    switch (field.number()) {
      case 1:
        out.name = field.text();
        break;
      case 2:
        out.f = field.fixed_float();
        break;
      case 3:
        out.i = field.integer();
        break;
      case 4:
        out.s = field.text();
        break;
      case 5:
        out.t = parse_tensor(field.bytes());
        break;
      case 7:
        field.append_fixed(out.floats);
        break;
      case 8:
        field.append_integers(out.ints);
        break;
      case 9:
        out.strings.push_back(field.text());
        break;
      default:
        break;
    }
  }
  return out;
}

Node parse_node(std::string_view bytes) {
  Node out;
  for (Fields field(bytes); field.next();) {
    switch (field.number()) {
      case 1:
        out.inputs.push_back(field.text());
        break;
      case 2:
        out.outputs.push_back(field.text());
        break;
      case 4:
        out.op_type = field.text();
        break;
      case 5: {
        Attribute attribute = parse_attribute(field.bytes());
        out.attributes[attribute.name] = attribute;
        break;
      }
      case 7:
        out.domain = field.text();
        break;
      default:
        break;
    }
  }
  return out;
}

ValueInfo parse_value_info(std::string_view bytes) {
  ValueInfo out;
  for (Fields field(bytes); field.next();) {
    if (field.number() == 1) out.name = field.text();
    if (field.number() == 2) {
      // TypeProto: field 1 is a dense tensor, 6 is a denotation, every other one another kind of type.
      for (Fields type(field.bytes()); type.next();) {
        if (type.number() != 1 && type.number() != 6) out.is_tensor = false;
      }
    }
  }
  return out;
}

void parse_graph(std::string_view bytes, Model& out) {
  for (Fields field(bytes); field.next();) {
    switch (field.number()) {
      case 1:
        out.nodes.push_back(parse_node(field.bytes()));
        break;
      case 5:
        out.initializers.push_back(parse_tensor(field.bytes()));
        break;
      case 11:
        out.inputs.push_back(parse_value_info(field.bytes()));
        break;
      case 12:
        out.outputs.push_back(parse_value_info(field.bytes()));
        break;
      default:
        break;
    }
  }
}

void parse_opset(std::string_view bytes, Model& out) {
  std::string domain;
  std::int64_t version = 1;
  for (Fields field(bytes); field.next();) {
    if (field.number() == 1) domain = field.text();
    if (field.number() == 2) version = field.integer();
  }
  if (domain.empty() || domain == "ai.onnx") out.opset = version;
}

// `values` converted to T; 16-bit floats in int32_data are bit patterns.
template <class T, class V>
void fill_from(Tensor& out, const std::vector<V>& values) {
  LIMPID_CHECK(static_cast<std::int64_t>(values.size()) == out.numel(), DataError, "[onnx] ", values.size(),
               " values for a tensor of shape ", out.shape());
  T* data = out.mutable_data<T>();
  for (std::size_t i = 0; i < values.size(); i++) {
    if constexpr (sizeof(T) == 2) {
      auto bits = static_cast<std::uint16_t>(values[i]);
      std::memcpy(static_cast<void*>(&data[i]), &bits, 2);
    } else {
      data[i] = static_cast<T>(values[i]);
    }
  }
}

}  // namespace

TensorProto parse_tensor(std::string_view bytes) {
  TensorProto out;
  for (Fields field(bytes); field.next();) {
    switch (field.number()) {
      case 1:
        field.append_integers(out.dims);
        break;
      case 2:
        out.data_type = field.integer();
        break;
      case 4:
        field.append_fixed(out.float_data);
        break;
      case 5:
        field.append_integers(out.int32_data);
        break;
      case 7:
        field.append_integers(out.int64_data);
        break;
      case 8:
        out.name = field.text();
        break;
      case 9:
        out.raw_data = field.text();
        break;
      case 10:
        field.append_fixed(out.double_data);
        break;
      case 14:
        out.external = field.integer() != 0;
        break;
      default:
        break;
    }
  }
  return out;
}

Model parse_model(std::string_view bytes) {
  Model out;
  for (Fields field(bytes); field.next();) {
    if (field.number() == 7) parse_graph(field.bytes(), out);
    if (field.number() == 8) parse_opset(field.bytes(), out);
  }
  return out;
}

DType dtype_from_onnx(std::int64_t data_type) {
  static const char* const kNames[] = {"undefined", "float",  "uint8",     "int8",       "uint16",  "int16",
                                       "int32",     "int64",  "string",    "bool",       "float16", "double",
                                       "uint32",    "uint64", "complex64", "complex128", "bfloat16"};
  switch (data_type) {
    case 1:
      return float32;
    case 2:
      return uint8;
    case 6:
      return int32;
    case 7:
      return int64;
    case 9:
      return boolean;
    case 10:
      return float16;
    case 11:
      return float64;
    case 16:
      return bfloat16;
    default:
      break;
  }
  LIMPID_CHECK(data_type >= 0 && data_type <= 16, DataError, "[onnx] unknown data type ", data_type);
  throw Unsupported(concat("dtype not in limpid: ", kNames[data_type]));
}

Tensor to_tensor(const TensorProto& proto) {
  DType dtype = dtype_from_onnx(proto.data_type);
  if (proto.external) throw Unsupported("data in another file");
  if (proto.dims.size() > kMaxDims) throw Unsupported("more than 8 dims");
  std::int64_t numel = 1;
  for (std::int64_t dim : proto.dims) {
    LIMPID_CHECK(dim >= 0 && (dim == 0 || numel <= (std::int64_t{1} << 32) / dim), DataError, "[onnx] bad dim ", dim);
    numel *= dim;
  }
  // No list can be longer than the file, so this keeps a broken shape from asking for a huge tensor.
  std::size_t given =
      proto.float_data.size() + proto.int32_data.size() + proto.int64_data.size() + proto.double_data.size();
  if (given == 0) {
    LIMPID_CHECK(proto.raw_data.size() == static_cast<std::size_t>(numel) * size_of(dtype), DataError, "[onnx] ",
                 proto.raw_data.size(), " raw bytes for ", numel, " elements of ", dtype);
  } else {
    LIMPID_CHECK(given == static_cast<std::size_t>(numel), DataError, "[onnx] ", given, " values for ", numel,
                 " elements");
  }
  Tensor out = empty(Shape(proto.dims), {.dtype = dtype});
  if (given == 0) {
    if (dtype == boolean) {  // any byte but 0 is true; a bool must not hold another one
      bool* data = out.mutable_data<bool>();
      for (char byte : proto.raw_data) *data++ = byte != 0;
    } else if (numel > 0) {
      std::memcpy(out.raw_mutable_data(), proto.raw_data.data(), proto.raw_data.size());
    }
    return out;
  }
  switch (dtype) {
    case DType::float32:
      fill_from<float>(out, proto.float_data);
      break;
    case DType::float64:
      fill_from<double>(out, proto.double_data);
      break;
    case DType::int64:
      fill_from<std::int64_t>(out, proto.int64_data);
      break;
    case DType::int32:
      fill_from<std::int32_t>(out, proto.int32_data);
      break;
    case DType::uint8:
      fill_from<std::uint8_t>(out, proto.int32_data);
      break;
    case DType::boolean:
      fill_from<bool>(out, proto.int32_data);
      break;
    case DType::float16:
      fill_from<Half>(out, proto.int32_data);
      break;
    case DType::bfloat16:
      fill_from<BFloat16>(out, proto.int32_data);
      break;
  }
  return out;
}

}  // namespace onnx_test
