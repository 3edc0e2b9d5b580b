// Convolution, pooling, softmax and dropout.
#include <limpid/autograd/fused_shared.h>
#include <limpid/autograd/record.h>
#include <limpid/tensor/raw_nn.h>

namespace limpid {
namespace {

// Positions inside an image are computed in 64 bits; options beyond this could overflow.
void check_window(const char* op, const char* what, Pair option) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  LIMPID_CHECK(option.h <= kMost && option.w <= kMost, ArgumentError, "[", op, "] ", what, " must be at most ", kMost,
               ", got ", option.h, "x", option.w);
}

class Conv2dNode final : public Node {
 public:
  Conv2dNode(const Conv2dDesc& desc) : Node(LIMPID_OP("conv2d")), desc_(desc) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    conv2d_gradients(*this, desc_, raw::packed(grads[0]), x, weight, input_grads);
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("x", x), visit("weight", weight); }
  void release_saved() override { x.reset(), weight.reset(); }
  SavedTensor x, weight;

 private:
  Conv2dDesc desc_;
};

}  // namespace

Conv2dDesc check_conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& o) {
  LIMPID_CHECK(x.dim() == 4, ShapeError, "[conv2d] input must be [N,C,H,W], got ", x);
  LIMPID_CHECK(w.dim() == 4, ShapeError, "[conv2d] weight must be [K,C/groups,R,S], got ", w);
  LIMPID_CHECK(o.groups > 0 && o.stride.h > 0 && o.stride.w > 0 && o.dilation.h > 0 && o.dilation.w > 0 &&
                   o.padding.h >= 0 && o.padding.w >= 0,
               ArgumentError, "[conv2d] groups, stride and dilation must be positive and padding not negative, got groups ",
               o.groups, ", stride ", o.stride.h, "x", o.stride.w, ", dilation ", o.dilation.h, "x",
               o.dilation.w, ", padding ", o.padding.h, "x", o.padding.w);
  check_window("conv2d", "stride", o.stride);
  check_window("conv2d", "padding", o.padding);
  check_window("conv2d", "dilation", o.dilation);
  LIMPID_CHECK(o.groups <= x.size(1) || o.groups == 1, ArgumentError, "[conv2d] ", x.size(1), " input channels do not divide into ",
               o.groups, " groups");
  LIMPID_CHECK(w.size(1) * o.groups == x.size(1), ShapeError, "[conv2d] weight expects ", w.size(1) * o.groups,
               " input channels, input has ", x.size(1), " (input ", x, ")");
  LIMPID_CHECK(w.size(0) % o.groups == 0, ShapeError, "[conv2d] ", w.size(0), " output channels do not divide into ", o.groups,
               " groups");
  LIMPID_CHECK(w.size(2) > 0 && w.size(3) > 0, ShapeError, "[conv2d] kernel must not be empty, got ", w);
  LIMPID_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == w.size(0)), ShapeError, "[conv2d] bias must be [", w.size(0),
               "], got ", bias);
  LIMPID_CHECK(x.dtype() == w.dtype() && is_floating(x.dtype()) && (!bias.defined() || bias.dtype() == x.dtype()), DTypeError,
               "[conv2d] expects one floating dtype, got input ", x, ", weight ", w, ", bias ", bias);
  Conv2dDesc d{.dtype = x.dtype(), .n = x.size(0), .c = x.size(1), .h = x.size(2), .w = x.size(3), .k = w.size(0), .r = w.size(2),
               .s = w.size(3), .stride_h = o.stride.h, .stride_w = o.stride.w, .pad_h = o.padding.h,
               .pad_w = o.padding.w, .dil_h = o.dilation.h, .dil_w = o.dilation.w, .groups = o.groups};
  std::int64_t span_h = d.dil_h * (d.r - 1) + 1, span_w = d.dil_w * (d.s - 1) + 1;
  LIMPID_CHECK(d.h + 2 * d.pad_h >= span_h && d.w + 2 * d.pad_w >= span_w, ShapeError, "[conv2d] kernel of extent ", span_h, "x",
               span_w, " does not fit the padded input ", d.h + 2 * d.pad_h, "x", d.w + 2 * d.pad_w, " (input ", x, ")");
  return d;
}

void conv2d_gradients(const Node& node, const Conv2dDesc& desc, const Tensor& dz, const SavedTensor& x,
                      const SavedTensor& weight, std::span<Tensor> input_grads) {
  if (node.needs_input_grad(0)) input_grads[0] = raw::conv2d_backward_input(desc, dz, weight.unpack(node));
  if (node.needs_input_grad(1)) input_grads[1] = raw::conv2d_backward_weight(desc, x.unpack(node), dz);
  if (node.edges().size() > 2 && node.needs_input_grad(2)) input_grads[2] = raw::conv2d_backward_bias(desc, dz);
}

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  LIMPID_AUTOCAST(conv2d, x, weight, bias, options);
  OpScope scope(LIMPID_OP("conv2d"));
  Conv2dDesc desc = check_conv2d(x, weight, bias, options);
  Tensor input = raw::packed(x);
  Tensor y = raw::conv2d(desc, input, weight, bias);
  if (any_requires_grad({&x, &weight, &bias})) {
    auto node = make_ref<Conv2dNode>(desc);
    add_weighted_inputs(*node, x, input, weight, bias);
    node->add_output(y);
  }
  return checked(std::move(y), x, weight, bias);
}

// ---- pooling

namespace {

std::int64_t pooled_size(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t pad, std::int64_t dilation,
                         bool ceil_mode) {
  std::int64_t room = in + 2 * pad - dilation * (kernel - 1) - 1;
  std::int64_t out = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  // A window that would start in the padding behind the input is dropped (PyTorch's rule).
  if (ceil_mode && (out - 1) * stride >= in + pad) out--;
  return out;
}

Pool2dDesc check_pool2d(const char* op, const Tensor& x, Pool2dOptions o) {
  LIMPID_CHECK(x.dim() == 4 && is_floating(x.dtype()), ShapeError, "[", op, "] input must be a floating [N,C,H,W], got ", x);
  if (o.stride.h == 0) o.stride.h = o.kernel_size.h;
  if (o.stride.w == 0) o.stride.w = o.kernel_size.w;
  LIMPID_CHECK(o.kernel_size.h > 0 && o.kernel_size.w > 0 && o.stride.h > 0 && o.stride.w > 0 &&
                   o.dilation.h > 0 && o.dilation.w > 0,
               ArgumentError, "[", op, "] kernel, stride and dilation must be positive, got kernel ", o.kernel_size.h, "x",
               o.kernel_size.w, ", stride ", o.stride.h, "x", o.stride.w);
  check_window(op, "kernel", o.kernel_size);
  check_window(op, "stride", o.stride);
  check_window(op, "padding", o.padding);
  check_window(op, "dilation", o.dilation);
  LIMPID_CHECK(o.padding.h >= 0 && o.padding.w >= 0 && 2 * o.padding.h <= o.kernel_size.h &&
                   2 * o.padding.w <= o.kernel_size.w,
               ArgumentError, "[", op, "] padding must be between 0 and half the kernel, got ", o.padding.h, "x", o.padding.w,
               " for kernel ", o.kernel_size.h, "x", o.kernel_size.w);
  Pool2dDesc d{.n = x.size(0), .c = x.size(1), .h = x.size(2), .w = x.size(3), .kernel_h = o.kernel_size.h,
               .kernel_w = o.kernel_size.w, .stride_h = o.stride.h, .stride_w = o.stride.w, .pad_h = o.padding.h,
               .pad_w = o.padding.w, .dil_h = o.dilation.h, .dil_w = o.dilation.w,
               .count_include_pad = o.count_include_pad};
  d.oh = pooled_size(d.h, d.kernel_h, d.stride_h, d.pad_h, d.dil_h, o.ceil_mode);
  d.ow = pooled_size(d.w, d.kernel_w, d.stride_w, d.pad_w, d.dil_w, o.ceil_mode);
  bool fits = d.h + 2 * d.pad_h >= d.dil_h * (d.kernel_h - 1) + 1 && d.w + 2 * d.pad_w >= d.dil_w * (d.kernel_w - 1) + 1;
  LIMPID_CHECK(fits && d.oh > 0 && d.ow > 0, ShapeError, "[", op, "] kernel ", d.kernel_h, "x", d.kernel_w,
               " does not fit the input ", x);
  return d;
}

Tensor empty_pooled(const Pool2dDesc& d, const Tensor& x, DType dtype) {
  return raw::empty({d.n, d.c, d.oh, d.ow}, dtype, x.device(), MemoryFormat::channels_last);
}

class MaxPoolNode final : public Node {
 public:
  MaxPoolNode(const Pool2dDesc& desc) : Node(LIMPID_OP("max_pool2d")), desc_(desc) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& g = grads[0];
    Tensor dx = raw::empty({desc_.n, desc_.c, desc_.h, desc_.w}, g.dtype(), g.device(), MemoryFormat::channels_last);
    kernels_for(g.device()).max_pool2d_backward(desc_, dx, raw::packed(g), indices.unpack(*this));
    input_grads[0] = std::move(dx);
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("indices", indices); }
  void release_saved() override { indices.reset(); }
  SavedTensor indices;

 private:
  Pool2dDesc desc_;
};

struct AvgPoolBack {
  Pool2dDesc desc;
  bool adaptive;
  Tensor operator()(const Tensor& g) const {
    Tensor dx = raw::empty({desc.n, desc.c, desc.h, desc.w}, g.dtype(), g.device(), MemoryFormat::channels_last);
    const Kernels& kernels = kernels_for(g.device());
    (adaptive ? kernels.adaptive_avg_pool2d_backward : kernels.avg_pool2d_backward)(desc, dx, raw::packed(g));
    return dx;
  }
};

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  OpScope scope(LIMPID_OP("max_pool2d"));
  Pool2dDesc desc = check_pool2d("max_pool2d", x, options);
  Tensor y = empty_pooled(desc, x, x.dtype());
  Tensor indices = empty_pooled(desc, x, DType::int32);
  kernels_for(x.device()).max_pool2d(desc, y, indices, raw::packed(x));
  if (any_requires_grad({&x})) {
    auto node = make_ref<MaxPoolNode>(desc);
    node->add_input(x);
    node->add_output(y);
    node->indices = SavedTensor(indices);
  }
  return checked(std::move(y), x);
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  OpScope scope(LIMPID_OP("avg_pool2d"));
  Pool2dDesc desc = check_pool2d("avg_pool2d", x, options);
  LIMPID_CHECK(desc.dil_h == 1 && desc.dil_w == 1, ArgumentError, "[avg_pool2d] has no dilation, got ", desc.dil_h, "x", desc.dil_w);
  Tensor y = empty_pooled(desc, x, x.dtype());
  kernels_for(x.device()).avg_pool2d(desc, y, raw::packed(x));
  return record_simple(LIMPID_OP("avg_pool2d"), x, std::move(y), AvgPoolBack{desc, false});
}

Tensor adaptive_avg_pool2d(const Tensor& x, Pair size) {
  OpScope scope(LIMPID_OP("adaptive_avg_pool2d"));
  LIMPID_CHECK(x.dim() == 4 && is_floating(x.dtype()) && x.size(2) > 0 && x.size(3) > 0, ShapeError,
               "[adaptive_avg_pool2d] input must be a floating [N,C,H,W] with H, W > 0, got ", x);
  LIMPID_CHECK(size.h > 0 && size.w > 0, ArgumentError, "[adaptive_avg_pool2d] output size must be positive, got ",
               size.h, "x", size.w);
  Pool2dDesc desc{.n = x.size(0), .c = x.size(1), .h = x.size(2), .w = x.size(3), .oh = size.h, .ow = size.w};
  Tensor y = empty_pooled(desc, x, x.dtype());
  kernels_for(x.device()).adaptive_avg_pool2d(desc, y, raw::packed(x));
  return record_simple(LIMPID_OP("adaptive_avg_pool2d"), x, std::move(y), AvgPoolBack{desc, true});
}

// ---- softmax: dx = y (dy - sum(dy y));  log form: dx = dy - exp(y) sum(dy)

namespace {
class SoftmaxNode final : public Node {
 public:
  SoftmaxNode(NameId name, std::int64_t dim, bool log) : Node(name), dim_(dim), log_(log) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (grads[0].defined()) input_grads[0] = raw::softmax_backward(grads[0], y.unpack(*this), dim_, log_);
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("y", y); }
  void release_saved() override { y.reset(); }
  SavedTensor y;

 private:
  std::int64_t dim_;
  bool log_;
};

Tensor any_softmax(NameId name, const Tensor& x, std::int64_t dim, bool log) {
  OpScope scope(name);
  LIMPID_CHECK(is_floating(x.dtype()), DTypeError, "[", name_of(name), "] expects a floating dtype, got ", x);
  normalize_dim(name_of(name).c_str(), dim, x.dim());
  Tensor y = raw::softmax(x, dim, log);
  if (any_requires_grad({&x})) {
    auto node = make_ref<SoftmaxNode>(name, dim, log);
    node->add_input(x);
    node->add_output(y);
    node->y = SavedTensor(y);
  }
  return checked(std::move(y), x);
}
}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) {
  LIMPID_AUTOCAST(softmax, x, dim);
  return any_softmax(LIMPID_OP("softmax"), x, dim, false);
}
Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  LIMPID_AUTOCAST(log_softmax, x, dim);
  return any_softmax(LIMPID_OP("log_softmax"), x, dim, true);
}

// ---- dropout: the mask is recomputed from its key, never stored

namespace {
struct DropoutBack {
  double p;
  std::uint64_t key;
  std::int64_t sample_offset;
  Tensor operator()(const Tensor& g) const {
    Tensor dx = raw::empty_like(g);
    kernels_for(g.device()).dropout(dx, g, p, key, sample_offset);
    return dx;
  }
};
}  // namespace

Tensor dropout(const Tensor& x, double p, std::uint64_t key, std::int64_t sample_offset) {
  LIMPID_CHECK(p >= 0 && p <= 1, ArgumentError, "[dropout] p must be between 0 and 1, got ", p);
  LIMPID_CHECK(is_floating(x.dtype()), DTypeError, "[dropout] expects a floating dtype, got ", x);
  if (p == 0) return x;
  OpScope scope(LIMPID_OP("dropout"));
  DropoutBack rule{p, key, sample_offset};
  return record_simple(LIMPID_OP("dropout"), x, rule(x), rule);
}

}  // namespace limpid
