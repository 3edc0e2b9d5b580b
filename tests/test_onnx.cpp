// The test data of the ONNX project as an oracle: every case whose operators limpid's functions can express must give
// the stored outputs. Needs Debian's libonnx-testdata (CMake variable LIMPID_ONNX_DATA); says so and passes without it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <limpid/base/file.h>

#include "onnx_ops.h"
#include "tensor_test.h"

namespace {

using namespace limpid;
using namespace onnx_test;
namespace fs = std::filesystem;

// Debian 12's package (ONNX 1.12): its number of case folders, and how many of them pass.
constexpr int kDebianFolders = 1081;
constexpr int kDebianPassed = 790;

std::string read_bytes(const fs::path& path) {
  std::vector<std::uint8_t> bytes = read_file(path.string());
  return std::string(bytes.begin(), bytes.end());
}

// input_0.pb, input_1.pb, ... of a data set.
std::vector<Tensor> read_tensors(const fs::path& folder, const std::string& kind, const std::vector<ValueInfo>& infos) {
  std::vector<Tensor> out;
  for (std::size_t i = 0;; i++) {
    fs::path path = folder / (kind + "_" + std::to_string(i) + ".pb");
    if (!fs::exists(path)) return out;
    if (i < infos.size() && !infos[i].is_tensor) throw Unsupported("sequences and optionals");
    out.push_back(to_tensor(parse_tensor(read_bytes(path))));
  }
}

// The inputs a caller gives: those without an initializer.
std::vector<ValueInfo> free_inputs(const Model& model) {
  std::set<std::string> initialized;
  for (const TensorProto& t : model.initializers) initialized.insert(t.name);
  std::vector<ValueInfo> out;
  for (const ValueInfo& input : model.inputs) {
    if (!initialized.count(input.name)) out.push_back(input);
  }
  return out;
}

void require_known_operators(const Model& model) {
  for (const Node& node : model.nodes) {
    if (node.domain == "ai.onnx.ml" || !operators().count(node.op_type)) {
      throw Unsupported("op not in limpid: " + node.op_type);
    }
  }
}

std::vector<Tensor> run_graph(const Model& model, const std::vector<ValueInfo>& infos,
                              const std::vector<Tensor>& inputs) {
  std::map<std::string, Tensor> values;
  for (const TensorProto& t : model.initializers) values[t.name] = to_tensor(t);
  LIMPID_CHECK(inputs.size() <= infos.size(), DataError, "[onnx] ", inputs.size(), " inputs, expected ", infos.size());
  for (std::size_t i = 0; i < inputs.size(); i++) {
    Tensor x = inputs[i];
    if (is_floating(x.dtype())) x.requires_grad_();  // so that the functions record, as in training
    values[infos[i].name] = x;
  }
  auto find = [&](const std::string& name) {
    auto found = values.find(name);
    LIMPID_CHECK(found != values.end(), DataError, "[onnx] there is no value '", name, "'");
    return found->second;
  };
  for (const Node& node : model.nodes) {
    Call call{.node = node, .opset = model.opset, .inputs = {}, .value = find};
    for (const std::string& name : node.inputs) call.inputs.push_back(name.empty() ? Tensor() : find(name));
    std::vector<Tensor> outputs = operators().at(node.op_type)(call).outputs;
    for (std::size_t i = 0; i < node.outputs.size(); i++) {
      if (node.outputs[i].empty()) continue;
      if (i >= outputs.size()) throw Unsupported("output " + std::to_string(i) + " of " + node.op_type);
      values[node.outputs[i]] = outputs[i];
    }
  }
  std::vector<Tensor> out;
  for (const ValueInfo& output : model.outputs) out.push_back(find(output.name));
  return out;
}

// Relative and absolute. The window functions' stored outputs were made with a rounded pi: hann(10)[2] is 0.345474 in
// the file where 0.5 - 0.5 cos(0.4 pi) = 0.345492.
double tolerance(DType dtype, const std::string& name) {
  if (name.find("window_") != std::string::npos) return 1e-4;
  switch (dtype) {
    case DType::float64:
      return 1e-10;
    case DType::float32:
      return 1e-5;
    case DType::float16:
      return 1e-3;
    case DType::bfloat16:
      return 8e-3;
    default:
      return 0;
  }
}

// Empty when `got` is what was expected, else what differs.
std::string difference(const Tensor& got, const Tensor& expected, const std::string& name) {
  if (got.dtype() != expected.dtype() || got.shape() != expected.shape()) {
    return concat("got ", got, ", expected ", expected);
  }
  double allowed = tolerance(expected.dtype(), name);
  std::vector<double> a = tensor_test::values(got), b = tensor_test::values(expected);
  for (std::size_t i = 0; i < a.size(); i++) {
    if (!tensor_test::close(a[i], b[i], allowed, allowed))
      return concat("element ", i, " is ", a[i], ", expected ", b[i]);
  }
  return "";
}

// Runs all data sets of a case; the first difference, or empty.
std::string run_case(const fs::path& folder) {
  if (!fs::exists(folder / "model.onnx")) throw Unsupported("no model in the package, only its address");
  Model model = parse_model(read_bytes(folder / "model.onnx"));
  require_known_operators(model);
  std::vector<ValueInfo> infos = free_inputs(model);
  int sets = 0;
  for (;; sets++) {
    fs::path data = folder / ("test_data_set_" + std::to_string(sets));
    if (!fs::exists(data)) break;
    std::vector<Tensor> inputs = read_tensors(data, "input", infos);
    std::vector<Tensor> expected = read_tensors(data, "output", model.outputs);
    std::vector<Tensor> got = run_graph(model, infos, inputs);
    if (expected.empty() || got.size() != expected.size()) {
      return concat(got.size(), " outputs, expected ", expected.size());
    }
    for (std::size_t i = 0; i < got.size(); i++) {
      std::string wrong = difference(got[i], expected[i], folder.filename().string());
      if (!wrong.empty()) return concat("output ", i, ": ", wrong);
    }
  }
  return sets > 0 ? "" : "there is no data set";
}

std::vector<fs::path> case_folders(const fs::path& root) {
  std::vector<fs::path> out;
  for (const auto& kind : fs::directory_iterator(root)) {
    if (!kind.is_directory()) continue;
    for (const auto& folder : fs::directory_iterator(kind)) {
      if (folder.is_directory()) out.push_back(folder.path());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST_CASE("limpid agrees with the test data of ONNX") {
  fs::path root = LIMPID_ONNX_DATA;
  if (!fs::is_directory(root / "node")) {
    std::printf(
        "skipped: the ONNX test data are not installed (Debian package libonnx-testdata; CMake variable "
        "LIMPID_ONNX_DATA is '%s')\n",
        LIMPID_ONNX_DATA);
    return;
  }
  std::vector<fs::path> folders = case_folders(root);
  int run = 0, passed = 0;
  std::map<std::string, int> skipped;
  for (const fs::path& folder : folders) {
    std::string name = (folder.parent_path().filename() / folder.filename()).string(), wrong;
    try {
      wrong = run_case(folder);
    } catch (const Unsupported& e) {
      skipped[e.what()]++;
      continue;
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    run++;
    passed += wrong.empty();
    CHECK_MESSAGE(wrong.empty(), name, ": ", wrong);
  }
  int total = static_cast<int>(folders.size());
  std::printf("ONNX cases: %d, run %d, passed %d, skipped %d:\n", total, run, passed, total - run);
  for (const auto& [reason, count] : skipped) std::printf("  %4d %s\n", count, reason.c_str());
  CHECK(run > 0);
  if (total == kDebianFolders) CHECK(passed >= kDebianPassed);  // a skip must not hide what passed before
}

// ---- the reader

std::string field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) + bytes;
}
std::string field(int number, int value) {
  return std::string(1, static_cast<char>(number << 3)) + static_cast<char>(value);
}

// y = Flatten(x, axis = 2), opset 13, with an initializer w = [5, 7] (i64, packed).
std::string small_model() {
  std::string attribute = field(1, "axis") + field(3, 2);
  std::string node = field(1, "x") + field(2, "y") + field(4, "Flatten") + field(5, attribute);
  std::string tensor = field(1, std::string("\x02")) + field(2, 7) + field(7, std::string("\x05\x07")) + field(8, "w");
  std::string graph = field(1, node) + field(5, tensor) + field(11, field(1, "x")) + field(12, field(1, "y"));
  return field(7, graph) + field(8, field(2, 13));
}

TEST_CASE("the reader finds nodes, attributes, tensors and the opset") {
  Model model = parse_model(small_model());
  CHECK(model.opset == 13);
  REQUIRE(model.nodes.size() == 1);
  CHECK(model.nodes[0].op_type == "Flatten");
  CHECK(model.nodes[0].inputs == std::vector<std::string>{"x"});
  CHECK(model.nodes[0].attributes.at("axis").i == 2);
  REQUIRE(model.initializers.size() == 1);
  Tensor w = to_tensor(model.initializers[0]);
  CHECK(w.dtype() == int64);
  CHECK(w.to_vector<std::int64_t>() == std::vector<std::int64_t>{5, 7});
  CHECK(model.inputs.at(0).name == "x");
  CHECK(model.outputs.at(0).name == "y");
}

TEST_CASE("the reader refuses truncated and broken bytes") {
  std::string whole = small_model();
  std::size_t graph_end = whole.size() - field(8, field(2, 13)).size();
  for (std::size_t size = 1; size < whole.size(); size++) {
    if (size == graph_end) continue;  // the graph alone is a message
    CAPTURE(size);
    CHECK_THROWS_AS(parse_model(whole.substr(0, size)), DataError);
  }
  // Any single wrong byte gives a model or an error of ours, nothing else.
  for (std::size_t at = 0; at < whole.size(); at++) {
    for (int flip = 1; flip < 256; flip += 2) {
      std::string broken = whole;
      broken[at] = static_cast<char>(broken[at] ^ flip);
      try {
        for (const TensorProto& t : parse_model(broken).initializers) to_tensor(t);
      } catch (const Error&) {
      } catch (const Unsupported&) {
      }
    }
  }
  CHECK_THROWS_AS(parse_model(std::string("\x0b")), DataError);                                       // a group
  CHECK_THROWS_AS(parse_model(std::string(1, '\x08') + std::string(11, '\xff')), DataError);          // endless varint
  CHECK_THROWS_AS(to_tensor(parse_tensor(field(1, 3) + field(2, 1) + field(9, "1234"))), DataError);  // 4 of 12 bytes
  CHECK_THROWS_AS(to_tensor(parse_tensor(field(1, 3) + field(2, 7) + field(7, 1))), DataError);       // 1 of 3 values
  CHECK_THROWS_AS(to_tensor(parse_tensor(field(2, 99))), DataError);                                  // unknown type
  CHECK_THROWS_AS(to_tensor(parse_tensor(field(1, 0) + field(2, 8))), Unsupported);                   // strings
}

}  // namespace
