// Reads the parts of ONNX files that the oracle test needs: graphs of nodes, attributes and dense tensors, straight
// from the protobuf wire format. Not an importer: no functions, no subgraphs, no sparse or external data. Broken bytes
// give a DataError, things limpid has no counterpart for give Unsupported. Field numbers: onnx.proto of the ONNX
// project (https://github.com/onnx/onnx).
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <limpid/tensor/tensor.h>

namespace onnx_test {

// A case cannot be run; what() is the reason, and the skipped cases are grouped by it.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Data stand either in raw_data (little endian) or in the list that belongs to the type.
struct TensorProto {
  std::vector<std::int64_t> dims;
  std::int64_t data_type = 0;
  std::string name;
  std::string raw_data;
  bool external = false;
  std::vector<float> float_data;
  std::vector<std::int64_t> int32_data;
  std::vector<std::int64_t> int64_data;
  std::vector<double> double_data;
};

struct Attribute {
  std::string name;
  float f = 0;
  std::int64_t i = 0;
  std::string s;
  TensorProto t;
  std::vector<float> floats;
  std::vector<std::int64_t> ints;
  std::vector<std::string> strings;
};

struct Node {
  std::vector<std::string> inputs;   // "" = left out
  std::vector<std::string> outputs;  // "" = not wanted
  std::string op_type;
  std::string domain;
  std::map<std::string, Attribute> attributes;
};

struct ValueInfo {
  std::string name;
  bool is_tensor = true;  // else a sequence, a map or an optional
};

struct Model {
  std::int64_t opset = 1;  // of the default domain
  std::vector<Node> nodes;
  std::vector<TensorProto> initializers;
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
};

Model parse_model(std::string_view bytes);
TensorProto parse_tensor(std::string_view bytes);

// TensorProto.DataType to limpid's; Unsupported for types that limpid has not.
limpid::DType dtype_from_onnx(std::int64_t data_type);
// A new plain tensor on the CPU. DataError when the data do not fill the shape.
limpid::Tensor to_tensor(const TensorProto& proto);

}  // namespace onnx_test
