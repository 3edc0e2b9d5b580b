#include <limpid/tensor/raw.h>

#include <limpid/base/scope.h>

namespace limpid {

memory::Role op_role() {
  Phase phase = current_scope().phase;
  return phase == Phase::backward || phase == Phase::optimizer ? memory::Role::temp : memory::Role::activation;
}

namespace {

Tensor make(const Shape& shape, const Strides& strides, DType dtype, Ref<Storage> storage) {
  Ref<TensorImpl> impl(new TensorImpl);
  impl->storage = std::move(storage);
  impl->shape = shape;
  impl->strides = strides;
  impl->numel = shape.numel();
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

// Element count as bytes; refuses negative dims and sizes that overflow.
std::size_t checked_bytes(const Shape& shape, DType dtype) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  bool overflow = false;
  for (std::int64_t dim : shape) {
    LIMPID_CHECK(dim >= 0, ShapeError, "[empty] dims must not be negative, got ", shape);
    if (dim == 0) {
      empty = true;
    } else {
      overflow |= __builtin_mul_overflow(bytes, dim, &bytes);
    }
  }
  LIMPID_CHECK(empty || !overflow, ShapeError, "[empty] ", shape, " of ", dtype, " has more bytes than fit in 63 bits");
  return empty ? 0 : static_cast<std::size_t>(bytes);
}

}  // namespace

Tensor empty(const Shape& shape, const TensorOptions& options, MemoryFormat format) {
  std::size_t bytes = checked_bytes(shape, options.dtype);
  Tensor out = make(shape, strides_for(shape, format), options.dtype, Storage::create(bytes, options.device, options.role));
  if (options.requires_grad) out.requires_grad_();
  return out;
}

namespace raw {

Tensor empty(const Shape& shape, DType dtype, Device device, MemoryFormat format) {
  std::size_t bytes = checked_bytes(shape, dtype);
  return make(shape, strides_for(shape, format), dtype, Storage::create(bytes, device, op_role()));
}

Tensor empty_like(const Tensor& x) { return empty_like(x, x.dtype()); }

Tensor empty_like(const Tensor& x, DType dtype) {
  Strides strides = x.is_dense() ? x.strides() : strides_for(x.shape());
  return make(x.shape(), strides, dtype, Storage::create(checked_bytes(x.shape(), dtype), x.device(), op_role()));
}

Tensor zeros(const Shape& shape, DType dtype, Device device) {
  Tensor out = empty(shape, dtype, device);
  fill(out, 0);
  return out;
}

Tensor workspace(std::size_t bytes, Device device) {
  if (bytes == 0) return Tensor();
  Shape shape{static_cast<std::int64_t>(bytes)};
  return make(shape, strides_for(shape), DType::uint8, Storage::create(bytes, device, memory::Role::workspace));
}

Tensor as_strided(const Tensor& x, const Shape& shape, const Strides& strides, std::int64_t offset) {
  Tensor out = make(shape, strides, x.dtype(), x.storage());
  out.impl()->offset = offset;
  out.impl()->name = x.impl()->name;
  return out;
}

Tensor detach(const Tensor& x) { return as_strided(x, x.shape(), x.strides(), x.impl()->offset); }

}  // namespace raw

Tensor from_blob(void* data, const Shape& shape, const Strides& strides, DType dtype, std::function<void()> deleter) {
  LIMPID_CHECK(shape.size() == strides.size(), ShapeError, "[from_blob] shape ", shape, " and strides ", strides,
               " differ in rank");
  checked_bytes(shape, dtype);
  std::int64_t last = 0;  // index of the furthest element
  for (int i = 0; i < shape.size(); i++) {
    LIMPID_CHECK(strides[i] >= 0, ShapeError, "[from_blob] strides must not be negative, got ", strides);
    std::int64_t reach = 0;
    bool overflow = shape[i] > 0 && (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) || __builtin_add_overflow(last, reach, &last));
    LIMPID_CHECK(!overflow && last < (std::int64_t{1} << 59), ShapeError, "[from_blob] strides ", strides, " for shape ", shape,
                 " reach further than memory does");
  }
  std::size_t bytes = shape.numel() == 0 ? 0 : static_cast<std::size_t>(last + 1) * size_of(dtype);
  LIMPID_CHECK(data != nullptr || bytes == 0, ArgumentError, "[from_blob] data is null for shape ", shape);
  LIMPID_CHECK(reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0, ArgumentError, "[from_blob] data for ", dtype,
               " must be aligned to ", size_of(dtype), " bytes, this is ", reinterpret_cast<std::uintptr_t>(data) % size_of(dtype), " bytes past that");
  return make(shape, strides, dtype, Storage::wrap(data, bytes, kCpu, std::move(deleter)));
}

Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void()> deleter) {
  return from_blob(data, shape, strides_for(shape), dtype, std::move(deleter));
}

}  // namespace limpid
