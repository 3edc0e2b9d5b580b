// Views and copies that change the shape. Each gradient is the inverse movement.
#include <limpid/autograd/record.h>

#include <algorithm>

namespace limpid {
namespace {

struct ReshapeBack {  // back to the input's shape
  Shape shape;
  Tensor operator()(const Tensor& g) const { return raw::reshape(g, shape); }
};
struct PermuteBack {
  std::vector<std::int64_t> inverse;
  Tensor operator()(const Tensor& g) const { return raw::permute(g, inverse); }
};
struct TransposeBack {
  std::int64_t a, b;
  Tensor operator()(const Tensor& g) const { return raw::transpose(g, a, b); }
};
struct NarrowBack {  // zeros outside the range
  Shape shape;
  int dim;
  std::int64_t start;
  bool keep_dim;  // false: the dim was removed by select
  Tensor operator()(const Tensor& g) const {
    Tensor full = raw::zeros(shape, g.dtype(), g.device());
    Tensor part = keep_dim ? raw::narrow(full, dim, start, g.shape()[dim]) : raw::select(full, dim, start);
    raw::copy(part, g);
    return full;
  }
};
struct SumTo {
  Shape shape;
  Tensor operator()(const Tensor& g) const { return raw::sum_to(g, shape); }
};
struct Identity {
  Tensor operator()(const Tensor& g) const { return g; }
};
struct FlipBack {
  std::vector<std::int64_t> dims;
  Tensor operator()(const Tensor& g) const { return raw::flip(g, dims); }
};
struct PadBack {  // negative pads crop
  std::vector<std::int64_t> pads;
  Tensor operator()(const Tensor& g) const { return raw::pad(g, pads, 0); }
};

}  // namespace

Tensor reshape(const Tensor& x, Shape shape) {
  OpScope scope(LIMPID_OP("reshape"));
  return record_simple(LIMPID_OP("reshape"), x, raw::reshape(x, shape), ReshapeBack{x.shape()});
}

Tensor permute(const Tensor& x, const std::vector<std::int64_t>& dims) {
  OpScope scope(LIMPID_OP("permute"));
  Tensor y = raw::permute(x, dims);
  std::vector<std::int64_t> inverse(dims.size());
  for (std::size_t i = 0; i < dims.size(); i++) {
    inverse[static_cast<std::size_t>(normalize_dim("permute", dims[i], x.dim()))] = static_cast<std::int64_t>(i);
  }
  return record_simple(LIMPID_OP("permute"), x, std::move(y), PermuteBack{std::move(inverse)});
}

Tensor transpose(const Tensor& x, std::int64_t a, std::int64_t b) {
  OpScope scope(LIMPID_OP("transpose"));
  return record_simple(LIMPID_OP("transpose"), x, raw::transpose(x, a, b), TransposeBack{a, b});
}

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  OpScope scope(LIMPID_OP("narrow"));
  Tensor y = raw::narrow(x, dim, start, length);
  int d = normalize_dim("narrow", dim, x.dim());
  return record_simple(LIMPID_OP("narrow"), x, std::move(y), NarrowBack{x.shape(), d, start, true});
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  OpScope scope(LIMPID_OP("select"));
  Tensor y = raw::select(x, dim, index);
  int d = normalize_dim("select", dim, x.dim());
  std::int64_t at = index < 0 ? index + x.shape()[d] : index;
  return record_simple(LIMPID_OP("select"), x, std::move(y), NarrowBack{x.shape(), d, at, false});
}

Tensor expand(const Tensor& x, const Shape& shape) {
  OpScope scope(LIMPID_OP("expand"));
  Tensor y = raw::expand("expand", x, shape);
  if (y.is_same(x)) return x;
  return record_simple(LIMPID_OP("expand"), x, std::move(y), SumTo{x.shape()});
}

Tensor squeeze(const Tensor& x) {
  OpScope scope(LIMPID_OP("squeeze"));
  return record_simple(LIMPID_OP("squeeze"), x, raw::squeeze(x), ReshapeBack{x.shape()});
}
Tensor squeeze(const Tensor& x, std::int64_t dim) {
  OpScope scope(LIMPID_OP("squeeze"));
  return record_simple(LIMPID_OP("squeeze"), x, raw::squeeze(x, dim), ReshapeBack{x.shape()});
}
Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  OpScope scope(LIMPID_OP("unsqueeze"));
  return record_simple(LIMPID_OP("unsqueeze"), x, raw::unsqueeze(x, dim), ReshapeBack{x.shape()});
}

Tensor flatten(const Tensor& x, std::int64_t first, std::int64_t last) {
  int from = normalize_dim("flatten", first, x.dim());
  int to = normalize_dim("flatten", last, x.dim());
  LIMPID_CHECK(from <= to, ArgumentError, "[flatten] first dim ", from, " comes after last dim ", to);
  Shape shape;
  std::int64_t joined = 1;
  for (int i = 0; i < x.dim(); i++) {
    if (i < from || i > to) {
      shape.push_back(x.shape()[i]);
      continue;
    }
    joined *= x.shape()[i];
    if (i == to) shape.push_back(joined);
  }
  if (x.dim() == 0) shape.push_back(1);
  OpScope scope(LIMPID_OP("flatten"));
  return record_simple(LIMPID_OP("flatten"), x, raw::reshape(x, shape), ReshapeBack{x.shape()});
}

Tensor contiguous(const Tensor& x, MemoryFormat format) {
  if (x.is_contiguous(format)) return x;
  OpScope scope(LIMPID_OP("contiguous"));
  return record_simple(LIMPID_OP("contiguous"), x, raw::contiguous(x, format), Identity{});
}

Tensor Tensor::clone() const {
  OpScope scope(LIMPID_OP("clone"));
  return record_simple(LIMPID_OP("clone"), *this, raw::clone(*this), Identity{});
}

Tensor flip(const Tensor& x, const std::vector<std::int64_t>& dims) {
  OpScope scope(LIMPID_OP("flip"));
  return record_simple(LIMPID_OP("flip"), x, raw::flip(x, dims), FlipBack{dims});
}

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value) {
  OpScope scope(LIMPID_OP("pad"));
  Tensor out = raw::pad(x, pads, value);  // checks the pads: only then may they be negated
  std::vector<std::int64_t> inverse = pads;
  for (std::int64_t& p : inverse) p = -p;
  return record_simple(LIMPID_OP("pad"), x, std::move(out), PadBack{std::move(inverse)});
}

namespace {
class CatNode final : public Node {
 public:
  CatNode(int dim) : Node(LIMPID_OP("cat")), dim_(dim) {}
  void add(const Tensor& t) {
    add_input(t);
    extents_.push_back(t.shape()[dim_]);
    dtypes_.push_back(t.dtype());
  }
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < extents_.size(); i++) {
      if (needs_input_grad(static_cast<int>(i))) {
        input_grads[i] = raw::cast(raw::narrow(grads[0], dim_, start, extents_[i]), dtypes_[i]);
      }
      start += extents_[i];
    }
  }

 private:
  int dim_;
  std::vector<std::int64_t> extents_;
  std::vector<DType> dtypes_;
};
}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim) {
  OpScope scope(LIMPID_OP("cat"));
  Tensor y = raw::cat(tensors, dim);
  bool record = grad_enabled() && std::any_of(tensors.begin(), tensors.end(), [](auto& t) { return t.requires_grad(); });
  if (record) {
    auto node = make_ref<CatNode>(normalize_dim("cat", dim, y.dim()));
    for (const Tensor& t : tensors) node->add(t);
    node->add_output(y);
  }
  std::vector<const Tensor*> inputs;
  for (const Tensor& t : tensors) inputs.push_back(&t);
  return checked(std::move(y), inputs);
}

Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim) {
  LIMPID_CHECK(!tensors.empty(), ArgumentError, "[stack] expects at least one tensor");
  std::vector<Tensor> parts;
  int d = normalize_dim("stack", dim, tensors[0].dim() + 1);
  for (const Tensor& t : tensors) {
    LIMPID_CHECK(t.shape() == tensors[0].shape(), ShapeError, "[stack] shapes must agree: ", tensors[0].shape(), " and ",
                 t.shape());
    parts.push_back(unsqueeze(t, d));
  }
  return cat(parts, d);
}

// ---- indexing

namespace {

class IndexNode : public Node {
 public:
  IndexNode(NameId name, int dim, const Shape& shape) : Node(name), dim_(dim), shape_(shape) {}
  void visit_saved(const SavedVisitor& visit) const override { visit("index", index); }
  void release_saved() override { index.reset(); }
  SavedTensor index;

 protected:
  int dim_;
  Shape shape_;  // of x
};

class GatherNode final : public IndexNode {
 public:
  using IndexNode::IndexNode;
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    Tensor zero = raw::zeros(shape_, grads[0].dtype(), grads[0].device());
    input_grads[0] = raw::scatter_add(zero, dim_, index.unpack(*this), grads[0]);
  }
};

class ScatterAddNode final : public IndexNode {
 public:
  using IndexNode::IndexNode;
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    if (needs_input_grad(0)) input_grads[0] = grads[0];
    if (!needs_input_grad(1)) return;
    const Tensor& at = index.unpack(*this);
    Tensor taken = raw::gather(grads[0], dim_, at);
    if (taken.shape() == source_shape) {
      input_grads[1] = taken;
      return;
    }
    // The source may be larger than the index; what was not added has no gradient.
    Tensor full = raw::zeros(source_shape, taken.dtype(), taken.device());
    Tensor part = full;
    for (int i = 0; i < taken.dim(); i++) part = raw::narrow(part, i, 0, taken.shape()[i]);
    raw::copy(part, taken);
    input_grads[1] = full;
  }
  Shape source_shape;
};

class IndexSelectNode final : public IndexNode {
 public:
  using IndexNode::IndexNode;
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    Tensor zero = raw::zeros(shape_, grads[0].dtype(), grads[0].device());
    input_grads[0] = raw::index_add(zero, dim_, index.unpack(*this), grads[0]);
  }
};

}  // namespace

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  OpScope scope(LIMPID_OP("gather"));
  Tensor y = raw::gather(x, dim, index);
  if (any_requires_grad({&x})) {
    auto node = make_ref<GatherNode>(LIMPID_OP("gather"), normalize_dim("gather", dim, x.dim()), x.shape());
    node->add_input(x);
    node->add_output(y);
    node->index = SavedTensor(index);
  }
  return checked(std::move(y), x);
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  LIMPID_AUTOCAST(scatter_add, x, dim, index, source);
  OpScope scope(LIMPID_OP("scatter_add"));
  Tensor y = raw::scatter_add(x, dim, index, source);
  if (any_requires_grad({&x, &source})) {
    auto node = make_ref<ScatterAddNode>(LIMPID_OP("scatter_add"), normalize_dim("scatter_add", dim, x.dim()), x.shape());
    node->add_input(x);
    node->add_input(source);
    node->add_output(y);
    node->index = SavedTensor(index);
    node->source_shape = source.shape();
  }
  return checked(std::move(y), x, source);
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  OpScope scope(LIMPID_OP("index_select"));
  Tensor y = raw::index_select(x, dim, index);
  if (any_requires_grad({&x})) {
    auto node = make_ref<IndexSelectNode>(LIMPID_OP("index_select"), normalize_dim("index_select", dim, x.dim()), x.shape());
    node->add_input(x);
    node->add_output(y);
    node->index = SavedTensor(index);
  }
  return checked(std::move(y), x);
}

Tensor one_hot(const Tensor& index, std::int64_t classes) { return raw::one_hot(index, classes); }

}  // namespace limpid
