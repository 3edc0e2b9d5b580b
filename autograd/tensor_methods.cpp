// The methods of Tensor that know about autograd.
#include <cmath>

#include <limpid/autograd/engine.h>
#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/meta.h>
#include <limpid/autograd/record.h>
#include <limpid/tensor/raw.h>

namespace limpid {

Tensor& Tensor::requires_grad_(bool on) {
  LIMPID_CHECK(is_leaf(), AutogradError, "[requires_grad_] only leaves can be changed, ", *this, " is the result of ",
               grad_fn_name(), "; use detach()");
  LIMPID_CHECK(!on || is_floating(dtype()), DTypeError, "[requires_grad_] only floating tensors have gradients, got ", *this);
  impl()->requires_grad = on;
  return *this;
}

bool Tensor::is_leaf() const {
  AutogradMeta* meta = find_meta(*this);
  return !meta || !meta->grad_fn;
}

const Tensor& Tensor::grad() const {
  static const Tensor* none = new Tensor;
  AutogradMeta* meta = find_meta(*this);
  return meta ? meta->grad : *none;
}

Tensor& Tensor::mutable_grad() { return get_meta(*this).grad; }

void Tensor::set_grad(Tensor grad) {
  LIMPID_CHECK(!grad.defined() || grad.shape() == shape(), ShapeError, "[set_grad] gradient ", grad, " does not fit ", *this);
  get_meta(*this).grad = std::move(grad);
}

std::string Tensor::grad_fn_name() const {
  AutogradMeta* meta = find_meta(*this);
  return meta && meta->grad_fn ? meta->grad_fn->name() : std::string();
}

void Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) {
  LIMPID_CHECK(hook != nullptr, ArgumentError, "[register_hook] the hook is empty");
  LIMPID_CHECK(requires_grad(), AutogradError, "[register_hook] ", *this, " does not require a gradient");
  AutogradMeta& meta = get_meta(*this);
  if (meta.grad_fn) {
    meta.grad_fn->add_output_hook(meta.output, std::move(hook));
  } else {
    meta.hooks.push_back(std::move(hook));
  }
}

Tensor Tensor::detach() const { return raw::detach(*this); }

Tensor Tensor::reshape(Shape s) const { return limpid::reshape(*this, s); }
Tensor Tensor::view(Shape s) const {
  Shape resolved = raw::infer_shape("view", *this, s);
  LIMPID_CHECK(raw::try_view(*this, resolved).has_value(), ShapeError, "[view] ", *this, " with strides ", strides(),
               " cannot be seen as ", resolved, " without a copy; use reshape");
  return limpid::reshape(*this, resolved);
}
Tensor Tensor::flatten(std::int64_t first, std::int64_t last) const { return limpid::flatten(*this, first, last); }
Tensor Tensor::permute(const std::vector<std::int64_t>& dims) const { return limpid::permute(*this, dims); }
Tensor Tensor::transpose(std::int64_t a, std::int64_t b) const { return limpid::transpose(*this, a, b); }
Tensor Tensor::t() const {
  LIMPID_CHECK(dim() <= 2, ShapeError, "[t] expects at most 2 dims, got ", *this);
  return dim() < 2 ? *this : limpid::transpose(*this, 0, 1);
}
Tensor Tensor::narrow(std::int64_t d, std::int64_t start, std::int64_t length) const {
  return limpid::narrow(*this, d, start, length);
}
Tensor Tensor::select(std::int64_t d, std::int64_t index) const { return limpid::select(*this, d, index); }
Tensor Tensor::expand(const Shape& s) const { return limpid::expand(*this, s); }
Tensor Tensor::squeeze() const { return limpid::squeeze(*this); }
Tensor Tensor::squeeze(std::int64_t d) const { return limpid::squeeze(*this, d); }
Tensor Tensor::unsqueeze(std::int64_t d) const { return limpid::unsqueeze(*this, d); }
Tensor Tensor::contiguous(MemoryFormat format) const { return limpid::contiguous(*this, format); }
Tensor Tensor::to(DType dtype) const { return limpid::cast(*this, dtype); }
namespace {
struct MoveBack {
  Device device;
  Tensor operator()(const Tensor& g) const { return raw::to_device(g, device); }
};
}  // namespace
Tensor Tensor::to(Device target, bool non_blocking) const {
  if (device() == target) return *this;
  OpScope scope(LIMPID_OP("to"));
  Tensor y = raw::to_device(*this, target, non_blocking);
  if (!is_floating(dtype())) return y;
  return record_simple(LIMPID_OP("to"), *this, std::move(y), MoveBack{device()});
}
Tensor Tensor::pin_memory() const { return raw::pin_memory(raw::detach(*this)); }
Tensor Tensor::sum() const { return limpid::sum(*this); }
Tensor Tensor::sum(const std::vector<std::int64_t>& dims, bool keepdim) const { return limpid::sum(*this, dims, keepdim); }
Tensor Tensor::mean() const { return limpid::mean(*this); }
Tensor Tensor::mean(const std::vector<std::int64_t>& dims, bool keepdim) const { return limpid::mean(*this, dims, keepdim); }

namespace {
void check_in_place(const char* op, const Tensor& x) {
  LIMPID_CHECK(x.defined(), ArgumentError, "[", op, "] the tensor is undefined");
  LIMPID_CHECK(!(grad_enabled() && x.requires_grad()), AutogradError, "[", op, "] would overwrite ", x,
               " whose gradient is recorded; use the out-of-place form, detach(), or a NoGradGuard");
  LIMPID_CHECK(!raw::overlaps_itself(x), ArgumentError, "[", op, "] several elements of ", x, " with strides ", x.strides(),
               " share one place in memory; clone() it first");
}
void check_source(const char* op, const Tensor& source) {
  LIMPID_CHECK(source.defined(), ArgumentError, "[", op, "] the other tensor is undefined");
  LIMPID_CHECK(!(grad_enabled() && source.requires_grad()), AutogradError, "[", op, "] would lose the gradient of ", source,
               "; use the out-of-place form, detach(), or a NoGradGuard");
}
void check_keeps_kind(const char* op, const Tensor& x, bool fractional, const char* what) {
  LIMPID_CHECK(is_floating(x.dtype()) || !fractional, DTypeError, "[", op, "] ", what, " does not fit into ", x,
               "; cast to a floating dtype first");
}
bool is_fractional(double value) { return value != std::floor(value); }
}  // namespace

Tensor& Tensor::fill_(const Scalar& value) {
  check_in_place("fill_", *this);
  raw::fill(*this, value);
  return *this;
}
Tensor& Tensor::copy_(const Tensor& source) {
  check_in_place("copy_", *this);
  check_source("copy_", source);
  raw::copy(*this, source);
  return *this;
}
Tensor& Tensor::add_(const Tensor& other, double alpha) {
  check_in_place("add_", *this);
  check_source("add_", other);
  check_keeps_kind("add_", *this, is_floating(other.dtype()), "a floating tensor");
  check_keeps_kind("add_", *this, is_fractional(alpha), "a fractional factor");
  raw::add_scaled(*this, raw::expand("add_", raw::cast(other, dtype()), shape()), alpha);
  return *this;
}
Tensor& Tensor::mul_(const Scalar& factor) {
  check_in_place("mul_", *this);
  check_keeps_kind("mul_", *this, is_fractional(factor.as<double>()), "a fractional factor");
  raw::copy(*this, raw::unary(UnaryOp::mul_scalar, *this, {factor.as<double>(), 0}));
  return *this;
}

}  // namespace limpid
