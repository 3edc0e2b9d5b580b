// Copies: casts, changes of layout, joining and padding.
#include <limpid/tensor/backend.h>
#include <limpid/tensor/dry.h>
#include <limpid/tensor/raw.h>

namespace limpid::raw {
namespace {

void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  LIMPID_CHECK(a.device() == b.device(), DeviceError, "[", op, "] operands are on different devices: ", a, " and ", b);
}

}  // namespace

Tensor contiguous(const Tensor& x, MemoryFormat format) {
  if (x.is_contiguous(format)) return x;
  Tensor out = empty(x.shape(), x.dtype(), x.device(), format);
  kernels_for(x.device()).copy(out, x);
  return out;
}

Tensor clone(const Tensor& x) {
  Tensor out = empty_like(x);
  kernels_for(x.device()).copy(out, x);
  return out;
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor out = empty_like(x, dtype);
  kernels_for(x.device()).copy(out, x);
  return out;
}

namespace {

// As empty_like(), in the pinned pool.
Tensor empty_pinned(const Tensor& x) {
  auto impl = make_ref<TensorImpl>();
  impl->storage = Storage::create_in(pinned_allocator(), x.nbytes(), kCpu, op_role());
  impl->shape = x.shape();
  impl->strides = x.is_dense() ? x.strides() : strides_for(x.shape());
  impl->numel = x.numel();
  impl->dtype = x.dtype();
  return Tensor(std::move(impl));
}

}  // namespace

Tensor pin_memory(const Tensor& x) {
  LIMPID_CHECK(x.device() == kCpu, DeviceError, "[pin_memory] pinned memory is the CPU's, got ", x);
  if (x.storage()->is_pinned()) return x;
  Tensor out = empty_pinned(x);
  kernels_for(kCpu).copy(out, x);
  return out;
}

Tensor to_device(const Tensor& x, Device device, bool non_blocking) {
  if (x.device() == device) return x;
  if (device.is_dry() || x.device().is_dry()) {  // only the allocation moves
    Tensor out = empty(x.shape(), x.dtype(), device, x.suggested_format());
    if (!device.is_dry()) fill(out, dry::placeholder_for("to", x));
    if (!non_blocking && x.numel() > 0) dry::synchronize(device == kDryCuda ? device : x.device());
    return out;
  }
  const Backend& backend = backend_of(device == kCpu ? x.device() : device);
  const Tensor source = x.is_dense() ? x : contiguous(x);
  Tensor out = device == kCpu && non_blocking ? empty_pinned(source) : [&] {
    Tensor plain = empty(source.shape(), source.dtype(), device);
    plain.impl()->strides = source.strides();
    return plain;
  }();
  if (source.numel() > 0) backend.copy(out, source, non_blocking);
  return out;
}

void copy(Tensor& out, const Tensor& x) {
  if (out.device() != x.device() && !out.device().is_dry() && !x.device().is_dry()) return copy(out, to_device(x, out.device()));
  check_same_device("copy_", out, x);
  const Tensor& source = expand("copy_", x, out.shape());
  kernels_for(out.device()).copy(out, is_overwritten_by(source, out) ? clone(source) : source);
}

void fill(Tensor& out, const Scalar& value) {
  if (!is_floating(out.dtype())) {
    LIMPID_CHECK(value.fits(out.dtype()), ArgumentError, "[fill] ", value.as<double>(), " is not a value of ", out.dtype());
  }
  kernels_for(out.device()).fill(out, value);
}

Tensor flip(const Tensor& x, const std::vector<std::int64_t>& dims) {
  std::uint32_t mask = 0;
  for (std::int64_t dim : dims) mask |= 1u << normalize_dim("flip", dim, x.dim());
  Tensor out = empty(x.shape(), x.dtype(), x.device());
  kernels_for(x.device()).flip(out, x, mask);
  return out;
}

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim) {
  LIMPID_CHECK(!tensors.empty(), ArgumentError, "[cat] expects at least one tensor");
  const Tensor& first = tensors[0];
  LIMPID_CHECK(first.dim() > 0, ShapeError, "[cat] cannot join 0-d tensors; use stack");
  int d = normalize_dim("cat", dim, first.dim());
  Shape shape = first.shape();
  DType dtype = first.dtype();
  shape[d] = 0;
  for (const Tensor& t : tensors) {
    check_same_device("cat", first, t);
    bool fits = t.dim() == first.dim();
    for (int i = 0; fits && i < t.dim(); i++) fits = i == d || t.shape()[i] == first.shape()[i];
    LIMPID_CHECK(fits, ShapeError, "[cat] shapes must agree outside dim ", d, ": ", first.shape(), " and ", t.shape());
    shape[d] += t.shape()[d];
    dtype = promote(dtype, t.dtype());
  }
  Tensor out = empty(shape, dtype, first.device(), first.suggested_format());
  std::int64_t start = 0;
  for (const Tensor& t : tensors) {
    Tensor part = narrow(out, d, start, t.shape()[d]);
    kernels_for(out.device()).copy(part, t);
    start += t.shape()[d];
  }
  return out;
}

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value) {
  int padded = static_cast<int>(pads.size() / 2);
  LIMPID_CHECK(pads.size() % 2 == 0 && padded <= x.dim(), ArgumentError, "[pad] expects two numbers a dim for at most ",
               x.dim(), " dims, got ", pads.size(), " numbers");
  Shape shape = x.shape();
  Tensor inner = x;
  for (int i = 0; i < padded; i++) {  // pads start at the last dim
    int d = x.dim() - 1 - i;
    std::int64_t before = pads[static_cast<std::size_t>(2 * i)], after = pads[static_cast<std::size_t>(2 * i + 1)];
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    LIMPID_CHECK(before >= -kMost && before <= kMost && after >= -kMost && after <= kMost, ArgumentError, "[pad] dim ", d,
                 " is padded by more than 2^40 elements, got ", before, " and ", after);
    shape[d] += before + after;
    LIMPID_CHECK(shape[d] >= 0, ShapeError, "[pad] dim ", d, " of ", x.shape(), " would have size ", shape[d]);
    std::int64_t cut_front = std::max<std::int64_t>(-before, 0), cut_back = std::max<std::int64_t>(-after, 0);
    std::int64_t left = std::max<std::int64_t>(x.shape()[d] - cut_front - cut_back, 0);
    inner = narrow(inner, d, std::min(cut_front, x.shape()[d]), left);  // negative pads crop
  }
  Tensor out = empty(shape, x.dtype(), x.device());
  fill(out, value);
  Tensor target = out;
  for (int i = 0; i < padded; i++) {
    int d = x.dim() - 1 - i;
    target = narrow(target, d, std::max<std::int64_t>(pads[static_cast<std::size_t>(2 * i)], 0), inner.shape()[d]);
  }
  kernels_for(x.device()).copy(target, inner);
  return out;
}

}  // namespace limpid::raw
