// Elementwise, reduction, shape and indexing operators.
#include "onnx_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <limpid/base/error.h>

namespace onnx_test {

using namespace limpid;
using Ints = std::vector<std::int64_t>;

const Tensor& Call::operator[](std::size_t i) const {
  LIMPID_CHECK(has(i), DataError, "[onnx] ", node.op_type, " has no input ", i);
  return inputs[i];
}
double Call::number(const std::string& name, double otherwise) const {
  auto found = node.attributes.find(name);
  return found == node.attributes.end() ? otherwise : found->second.f;
}
std::int64_t Call::integer(const std::string& name, std::int64_t otherwise) const {
  auto found = node.attributes.find(name);
  return found == node.attributes.end() ? otherwise : found->second.i;
}
Ints Call::integers(const std::string& name, Ints otherwise) const {
  auto found = node.attributes.find(name);
  return found == node.attributes.end() ? otherwise : found->second.ints;
}
std::string Call::text(const std::string& name, const std::string& otherwise) const {
  auto found = node.attributes.find(name);
  return found == node.attributes.end() ? otherwise : found->second.s;
}
Ints Call::list(std::size_t i, const std::string& name) const {
  return has(i) ? inputs[i].to_vector<std::int64_t>() : integers(name);
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Before opset 7 the second operand was aligned at dim `axis` of the first instead of at the end.
Tensor second(const Call& c) {
  Tensor b = c[1];
  if (c.opset >= 7 || !c.has("axis")) return b;
  std::int64_t axis = normalize_dim("onnx", c.integer("axis", 0), c[0].dim());
  while (b.dim() + axis < c[0].dim()) b = unsqueeze(b, -1);
  return b;
}

// The dims of a reduction: attribute, or input since opset 13 (sum) and 18 (the others).
template <class F>
Operator reduction(F f) {
  return [f](const Call& c) -> Result {
    Ints axes = c.list(1, "axes");
    if (axes.empty() && c.integer("noop_with_empty_axes", 0) != 0) return c[0];
    return f(c[0], axes, c.integer("keepdims", 1) != 0);
  };
}

Operator arg_reduction(bool maximum) {
  return [maximum](const Call& c) -> Result {
    std::int64_t axis = c.integer("axis", 0);
    bool keep = c.integer("keepdims", 1) != 0;
    bool last = c.integer("select_last_index", 0) != 0;
    Tensor x = last ? flip(c[0], {axis}) : c[0];
    Tensor index = maximum ? argmax(x, axis, keep) : argmin(x, axis, keep);
    return last ? rsub(x.size(axis) - 1, index) : index;
  };
}

template <class F>
Operator fold(F f) {
  return [f](const Call& c) -> Result {
    Tensor out = c[0];
    for (std::size_t i = 1; i < c.inputs.size(); i++) out = f(out, c[i]);
    return out;
  };
}

// Negative indices count from the end, which limpid leaves to the caller.
Tensor indices(const Tensor& index, std::int64_t size) {
  Tensor i = cast(index, int64);
  return where(lt(i, 0), add(i, size), i);
}

Result gather_rows(const Call& c) {
  std::int64_t axis = normalize_dim("onnx", c.integer("axis", 0), c[0].dim());
  Tensor index = indices(c[1], c[0].size(axis));
  Tensor rows = index_select(c[0], axis, index.reshape({-1}));
  Shape shape;
  for (int d = 0; d < c[0].dim(); d++) {
    if (d != axis) {
      shape.push_back(c[0].size(d));
    } else {
      for (std::int64_t size : index.shape()) shape.push_back(size);
    }
  }
  return reshape(rows, shape);
}

Result scatter_elements(const Call& c) {
  if (c.text("reduction", "none") != "add") throw Unsupported("ScatterElements that replaces");
  std::int64_t axis = c.integer("axis", 0);
  return scatter_add(c[0], axis, indices(c[1], c[0].size(axis)), c[2]);
}

Result slice(const Call& c) {
  Tensor x = c[0];
  Ints starts = c.list(1, "starts"), ends = c.list(2, "ends"), axes = c.list(3, "axes"), steps = c.list(4, "steps");
  for (std::size_t i = 0; i < starts.size(); i++) {
    std::int64_t axis = axes.empty() ? static_cast<std::int64_t>(i) : axes[i];
    std::int64_t step = steps.empty() ? 1 : steps[i];
    std::int64_t size = x.size(axis);
    std::int64_t start = starts[i] < 0 ? starts[i] + size : starts[i];
    std::int64_t end = ends[i] < 0 ? ends[i] + size : ends[i];
    start = std::clamp(start, std::int64_t{0}, step > 0 ? size : size - 1);
    end = step > 0 ? std::clamp(end, std::int64_t{0}, size) : std::clamp(end, std::int64_t{-1}, size - 1);
    if (step == 1) {
      x = narrow(x, axis, start, std::max<std::int64_t>(0, end - start));
      continue;
    }
    Ints picked;
    for (std::int64_t at = start; step > 0 ? at < end : at > end; at += step) picked.push_back(at);
    x = index_select(x, axis, from_vector<std::int64_t>(picked, {static_cast<std::int64_t>(picked.size())}));
  }
  return x;
}

Result pad_constant(const Call& c) {
  if (c.text("mode", "constant") != "constant") throw Unsupported("Pad mode " + c.text("mode", ""));
  Ints pads = c.list(1, c.has("paddings") ? "paddings" : "pads");
  auto rank = static_cast<std::size_t>(c[0].dim());
  Ints ordered;  // the last dim first, as limpid wants them
  for (std::size_t d = rank; d-- > 0;) {
    ordered.push_back(pads.at(d));
    ordered.push_back(pads.at(rank + d));
  }
  return pad(c[0], ordered, c.has(2) ? c[2].item() : c.number("value", 0));
}

Result split(const Call& c) {
  std::int64_t axis = c.integer("axis", 0);
  Ints sizes = c.list(1, "split");
  auto count = static_cast<std::int64_t>(c.node.outputs.size());
  if (sizes.empty()) sizes.assign(c.node.outputs.size(), c[0].size(axis) / count);
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (std::int64_t size : sizes) {
    parts.push_back(narrow(c[0], axis, start, size));
    start += size;
  }
  return parts;
}

Result reshape_to(const Call& c) {
  Shape shape(c.list(1, "shape"));
  for (int d = 0; d < shape.size(); d++) {
    if (shape[d] == 0 && c.integer("allowzero", 0) == 0) shape[d] = c[0].size(d);
  }
  return reshape(c[0], shape);
}

Result unsqueeze_all(const Call& c) {
  Ints axes = c.list(1, "axes");
  int rank = c[0].dim() + static_cast<int>(axes.size());
  for (std::int64_t& axis : axes) axis = normalize_dim("onnx", axis, rank);
  std::sort(axes.begin(), axes.end());
  Tensor x = c[0];
  for (std::int64_t axis : axes) x = unsqueeze(x, axis);
  return x;
}

Result squeeze_all(const Call& c) {
  if (!c.has_list(1, "axes")) return squeeze(c[0]);
  Ints axes = c.list(1, "axes");
  for (std::int64_t& axis : axes) axis = normalize_dim("onnx", axis, c[0].dim());
  std::sort(axes.rbegin(), axes.rend());
  Tensor x = c[0];
  for (std::int64_t axis : axes) x = squeeze(x, axis);
  return x;
}

Result transpose_all(const Call& c) {
  Ints order = c.integers("perm");
  if (order.empty()) {
    for (int d = c[0].dim(); d-- > 0;) order.push_back(d);
  }
  return permute(c[0], order);
}

Result flatten_to_matrix(const Call& c) {
  std::int64_t axis = c.integer("axis", 1), rows = 1, columns = 1;
  if (axis < 0) axis += c[0].dim();
  for (int d = 0; d < c[0].dim(); d++) (d < axis ? rows : columns) *= c[0].size(d);
  return reshape(c[0], {rows, columns});
}

Result tile(const Call& c) {
  Ints repeats = c.list(1, "repeats");
  Tensor x = c[0];
  for (std::size_t d = 0; d < repeats.size(); d++) {
    std::vector<Tensor> copies(static_cast<std::size_t>(repeats[d]), x);
    x = cat(copies, static_cast<std::int64_t>(d));
  }
  return x;
}

// Blocks of channels to blocks of pixels (depth_to_space) and back: a reshape, a permutation, a reshape.
Result depth_to_space(const Call& c) {
  std::int64_t n = c[0].size(0), d = c[0].size(1), h = c[0].size(2), w = c[0].size(3), b = c.integer("blocksize", 1);
  if (c.text("mode", "DCR") == "DCR") {
    return reshape(permute(reshape(c[0], {n, b, b, d / (b * b), h, w}), {0, 3, 4, 1, 5, 2}),
                   {n, d / (b * b), h * b, w * b});
  }
  return reshape(permute(reshape(c[0], {n, d / (b * b), b, b, h, w}), {0, 1, 4, 2, 5, 3}),
                 {n, d / (b * b), h * b, w * b});
}
Result space_to_depth(const Call& c) {
  std::int64_t n = c[0].size(0), d = c[0].size(1), h = c[0].size(2), w = c[0].size(3), b = c.integer("blocksize", 1);
  return reshape(permute(reshape(c[0], {n, d, h / b, b, w / b, b}), {0, 3, 5, 1, 2, 4}), {n, d * b * b, h / b, w / b});
}

// true where column - row compares with k.
Tensor diagonal_distance(const Tensor& like) {
  return sub(unsqueeze(arange(like.size(-1)), 0), unsqueeze(arange(like.size(-2)), 1));
}

Result triangle(const Call& c) {
  std::int64_t k = c.has(1) ? c[1].item_int() : 0;
  Tensor distance = diagonal_distance(c[0]);
  Tensor kept = c.integer("upper", 1) != 0 ? ge(distance, k) : le(distance, k);
  return where(kept, c[0], scalar_tensor(0, {.dtype = c[0].dtype()}));
}

Tensor one_hot_at(const Tensor& index, std::int64_t classes, std::int64_t axis) {
  Tensor hot = one_hot(index, classes);  // classes come last
  Ints order;
  for (int d = 0; d < index.dim(); d++) order.push_back(d);
  order.insert(order.begin() + normalize_dim("onnx", axis, hot.dim()), index.dim());
  return permute(hot, order);
}

Result one_hot_values(const Call& c) {
  std::int64_t classes = c[1].item_int();
  Tensor hot = one_hot_at(indices(c[0], classes), classes, c.integer("axis", -1));
  return where(eq(hot, 1), select(c[2], 0, 1), select(c[2], 0, 0));
}

Result constant(const Call& c) {
  for (const auto& [name, a] : c.node.attributes) {
    if (name == "value") return to_tensor(a.t);
    if (name == "value_float") return scalar_tensor(static_cast<double>(a.f), {.dtype = float32});
    if (name == "value_int") return scalar_tensor(a.i, {.dtype = int64});
    if (name == "value_ints") return from_vector<std::int64_t>(a.ints, {static_cast<std::int64_t>(a.ints.size())});
    if (name == "value_floats") return from_vector<float>(a.floats, {static_cast<std::int64_t>(a.floats.size())});
  }
  throw Unsupported("Constant of another kind");
}

Result shape_of(const Call& c) {
  std::int64_t rank = c[0].dim();
  auto bound = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank); };
  std::int64_t start = bound(c.integer("start", 0)), end = bound(c.integer("end", rank));
  Ints sizes;
  for (std::int64_t d = start; d < end; d++) sizes.push_back(c[0].size(d));
  return from_vector<std::int64_t>(sizes, {static_cast<std::int64_t>(sizes.size())});
}

Result clip(const Call& c) {
  double low = c.has(1) ? c[1].item() : c.number("min", -kInfinity);
  double high = c.has(2) ? c[2].item() : c.number("max", kInfinity);
  return clamp(c[0], low, high);
}

Result is_infinite(const Call& c) {
  const Tensor& x = c[0];
  Tensor infinite = logical_not(logical_or(isfinite(x), isnan(x)));
  if (c.integer("detect_negative", 1) == 0) infinite = logical_and(infinite, gt(x, 0));
  if (c.integer("detect_positive", 1) == 0) infinite = logical_and(infinite, lt(x, 0));
  return infinite;
}

Result compress(const Call& c) {
  Tensor x = c.has("axis") ? c[0] : c[0].reshape({-1});
  Ints kept, flags = c[1].to_vector<std::int64_t>();
  for (std::size_t i = 0; i < flags.size(); i++) {
    if (flags[i] != 0) kept.push_back(static_cast<std::int64_t>(i));
  }
  return index_select(x, c.integer("axis", 0),
                      from_vector<std::int64_t>(kept, {static_cast<std::int64_t>(kept.size())}));
}

void add_elementwise(OperatorTable& t) {
  t["Add"] = [](const Call& c) { return add(c[0], second(c)); };
  t["Sub"] = [](const Call& c) { return sub(c[0], second(c)); };
  t["Mul"] = [](const Call& c) { return mul(c[0], second(c)); };
  t["Div"] = [](const Call& c) { return cast(div(c[0], second(c)), c[0].dtype()); };  // integers stay integers
  t["Pow"] = [](const Call& c) { return cast(pow(c[0], second(c)), c[0].dtype()); };  // the base's type
  t["Max"] = fold([](const Tensor& a, const Tensor& b) { return maximum(a, b); });
  t["Min"] = fold([](const Tensor& a, const Tensor& b) { return minimum(a, b); });
  t["Sum"] = fold([](const Tensor& a, const Tensor& b) { return add(a, b); });
  t["Mean"] = [](const Call& c) { return mean(stack(c.inputs), {0}); };
  t["Equal"] = [](const Call& c) { return eq(c[0], second(c)); };
  t["Less"] = [](const Call& c) { return lt(c[0], second(c)); };
  t["LessOrEqual"] = [](const Call& c) { return le(c[0], second(c)); };
  t["Greater"] = [](const Call& c) { return gt(c[0], second(c)); };
  t["GreaterOrEqual"] = [](const Call& c) { return ge(c[0], second(c)); };
  t["And"] = [](const Call& c) { return logical_and(c[0], second(c)); };
  t["Or"] = [](const Call& c) { return logical_or(c[0], second(c)); };
  t["Xor"] = [](const Call& c) { return ne(c[0], second(c)); };
  t["Not"] = [](const Call& c) { return logical_not(c[0]); };
  t["Where"] = [](const Call& c) { return where(c[0], c[1], c[2]); };
  t["Neg"] = [](const Call& c) { return neg(c[0]); };
  t["Abs"] = [](const Call& c) { return abs(c[0]); };
  t["Sign"] = [](const Call& c) { return sign(c[0]); };
  t["Sqrt"] = [](const Call& c) { return sqrt(c[0]); };
  t["Reciprocal"] = [](const Call& c) { return reciprocal(c[0]); };
  t["Exp"] = [](const Call& c) { return exp(c[0]); };
  t["Log"] = [](const Call& c) { return log(c[0]); };
  t["Sin"] = [](const Call& c) { return sin(c[0]); };
  t["Cos"] = [](const Call& c) { return cos(c[0]); };
  t["Tan"] = [](const Call& c) { return sin(c[0]) / cos(c[0]); };
  t["Floor"] = [](const Call& c) { return floor(c[0]); };
  t["Ceil"] = [](const Call& c) { return ceil(c[0]); };
  t["Round"] = [](const Call& c) { return round(c[0]); };
  t["Clip"] = clip;
  t["IsNaN"] = [](const Call& c) { return isnan(c[0]); };
  t["IsInf"] = is_infinite;
  t["Cast"] = [](const Call& c) { return cast(c[0], dtype_from_onnx(c.integer("to", 0))); };
  t["CastLike"] = [](const Call& c) { return cast(c[0], c[1].dtype()); };
  t["Identity"] = [](const Call& c) { return c[0]; };
}

void add_reductions(OperatorTable& t) {
  t["ReduceSum"] = reduction([](const Tensor& x, const Ints& dims, bool keep) { return sum(x, dims, keep); });
  t["ReduceMean"] = reduction([](const Tensor& x, const Ints& dims, bool keep) { return mean(x, dims, keep); });
  t["ReduceProd"] = reduction([](const Tensor& x, const Ints& dims, bool keep) { return prod(x, dims, keep); });
  t["ReduceMax"] = reduction([](const Tensor& x, const Ints& dims, bool keep) { return max(x, dims, keep); });
  t["ReduceMin"] = reduction([](const Tensor& x, const Ints& dims, bool keep) { return min(x, dims, keep); });
  t["ReduceL1"] = reduction([](const Tensor& x, const Ints& dims, bool keep) { return sum(abs(x), dims, keep); });
  t["ReduceL2"] =
      reduction([](const Tensor& x, const Ints& dims, bool keep) { return sqrt(sum(square(x), dims, keep)); });
  t["ReduceSumSquare"] =
      reduction([](const Tensor& x, const Ints& dims, bool keep) { return sum(square(x), dims, keep); });
  t["ReduceLogSum"] = reduction([](const Tensor& x, const Ints& dims, bool keep) { return log(sum(x, dims, keep)); });
  t["ReduceLogSumExp"] =
      reduction([](const Tensor& x, const Ints& dims, bool keep) { return log(sum(exp(x), dims, keep)); });
  t["ArgMax"] = arg_reduction(true);
  t["ArgMin"] = arg_reduction(false);
}

void add_shape(OperatorTable& t) {
  t["Reshape"] = reshape_to;
  t["Transpose"] = transpose_all;
  t["Flatten"] = flatten_to_matrix;
  t["Squeeze"] = squeeze_all;
  t["Unsqueeze"] = unsqueeze_all;
  t["Expand"] = [](const Call& c) {
    return expand(c[0], broadcast_shapes("onnx", c[0].shape(), Shape(c.list(1, "shape"))));
  };
  t["Slice"] = slice;
  t["Split"] = split;
  t["Concat"] = [](const Call& c) { return cat(c.inputs, c.integer("axis", 1)); };
  t["Pad"] = pad_constant;
  t["Tile"] = tile;
  t["DepthToSpace"] = depth_to_space;
  t["SpaceToDepth"] = space_to_depth;
  t["Trilu"] = triangle;
  t["EyeLike"] = [](const Call& c) {
    DType dtype = c.has("dtype") ? dtype_from_onnx(c.integer("dtype", 1)) : c[0].dtype();
    return cast(eq(diagonal_distance(c[0]), c.integer("k", 0)), dtype);
  };
  t["Gather"] = gather_rows;
  t["GatherElements"] = [](const Call& c) {
    std::int64_t axis = c.integer("axis", 0);
    return gather(c[0], axis, indices(c[1], c[0].size(axis)));
  };
  t["ScatterElements"] = scatter_elements;
  t["Compress"] = compress;
  t["OneHot"] = one_hot_values;
  t["Hardmax"] = [](const Call& c) {
    std::int64_t axis = c.integer("axis", c.opset < 13 ? 1 : -1);
    return cast(one_hot_at(argmax(c[0], axis), c[0].size(axis), axis), c[0].dtype());
  };
  t["Constant"] = constant;
  t["ConstantOfShape"] = [](const Call& c) {
    auto value = c.node.attributes.find("value");
    Tensor one = value == c.node.attributes.end() ? scalar_tensor(0.0) : to_tensor(value->second.t);
    return expand(one.reshape({}), Shape(c.list(0, "")));
  };
  t["Shape"] = shape_of;
  t["Size"] = [](const Call& c) { return scalar_tensor(c[0].numel(), {.dtype = int64}); };
  t["Range"] = [](const Call& c) { return arange(c[0].item(), c[1].item(), c[2].item(), {.dtype = c[0].dtype()}); };
}

// Derivatives of y with respect to xs, by running the graph backwards.
Result gradient(const Call& c) {
  Tensor y = c.value(c.node.attributes.at("y").s);
  y.backward(ones(y.shape(), {.dtype = y.dtype()}), true);
  std::vector<Tensor> out;
  for (const std::string& x : c.node.attributes.at("xs").strings) out.push_back(c.value(x).grad());
  return out;
}

}  // namespace

const OperatorTable& operators() {
  static const OperatorTable table = [] {
    OperatorTable t;
    add_elementwise(t);
    add_reductions(t);
    add_shape(t);
    t["Gradient"] = gradient;
    add_nn_operators(t);
    return t;
  }();
  return table;
}

}  // namespace onnx_test
