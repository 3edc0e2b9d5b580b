// ONNX operators expressed in limpid's differentiable functions: what the oracle test runs. An operator stands here
// when one function, or a few of them, compute it; where a setting has no counterpart the adapter throws Unsupported.
// Operator definitions: https://github.com/onnx/onnx/blob/main/docs/Operators.md
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <limpid/autograd/functions.h>

#include "onnx_reader.h"

namespace onnx_test {

using limpid::Tensor;

// One node with its inputs at hand.
struct Call {
  const Node& node;
  std::int64_t opset;
  std::vector<Tensor> inputs;                       // undefined where left out
  std::function<Tensor(const std::string&)> value;  // any value of the graph, by name

  bool has(std::size_t i) const { return i < inputs.size() && inputs[i].defined(); }
  const Tensor& operator[](std::size_t i) const;  // DataError when it is left out
  Tensor optional(std::size_t i) const { return has(i) ? inputs[i] : Tensor(); }
  bool has(const std::string& name) const { return node.attributes.count(name) != 0; }
  double number(const std::string& name, double otherwise) const;
  std::int64_t integer(const std::string& name, std::int64_t otherwise) const;
  std::vector<std::int64_t> integers(const std::string& name, std::vector<std::int64_t> otherwise = {}) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  // Lists that older opsets give as an attribute and newer ones as input `i`.
  bool has_list(std::size_t i, const std::string& name) const { return has(i) || has(name); }
  std::vector<std::int64_t> list(std::size_t i, const std::string& name) const;
};

struct Result {
  std::vector<Tensor> outputs;
  Result(Tensor one) : outputs{std::move(one)} {}
  Result(std::vector<Tensor> all) : outputs(std::move(all)) {}
};
using Operator = std::function<Result(const Call&)>;
using OperatorTable = std::map<std::string, Operator>;

// All operators; onnx_ops.cpp and onnx_ops_nn.cpp add their own.
const OperatorTable& operators();
void add_nn_operators(OperatorTable& table);

}  // namespace onnx_test
