// Tensor: a value-like handle on a strided view of a storage, and the one tensor type users meet. Copying a handle
// copies nothing. Shapes are logical (images are NCHW); strides may be channels_last.
//
// Methods under "differentiable" record the graph; they are declared here so that x.reshape(...) reads naturally, and
// defined in autograd/tensor_methods.cpp. Raw, non-recording operations live in limpid::raw (tensor/raw.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <limpid/base/ref.h>
#include <limpid/tensor/device.h>
#include <limpid/tensor/dtype.h>
#include <limpid/tensor/shape.h>
#include <limpid/tensor/storage.h>

namespace limpid {

// What autograd/ hangs on a tensor. tensor/ only knows that it can be deleted.
class AutogradMetaBase {
 public:
  virtual ~AutogradMetaBase() = default;
};

struct TensorImpl final : RefCounted {
  Ref<Storage> storage;
  std::int64_t offset = 0;  // elements
  Shape shape;
  Strides strides;  // elements
  std::int64_t numel = 0;
  DType dtype = DType::float32;
  bool requires_grad = false;  // a leaf that wants a gradient, or a result with a grad_fn
  NameId name = 0;
  std::unique_ptr<AutogradMetaBase> autograd;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: using it as a tensor is an ArgumentError
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return impl()->shape; }
  const Strides& strides() const { return impl()->strides; }
  std::int64_t size(std::int64_t dim) const;  // negative counts from the end
  std::int64_t stride(std::int64_t dim) const;
  int dim() const { return impl()->shape.size(); }
  std::int64_t numel() const { return impl()->numel; }
  std::size_t nbytes() const { return static_cast<std::size_t>(impl()->numel) * size_of(impl()->dtype); }
  DType dtype() const { return impl()->dtype; }
  Device device() const { return impl()->storage->device(); }
  // In page-locked host memory (pin_memory()): copies to and from a GPU need not wait.
  bool is_pinned() const { return impl()->storage->is_pinned(); }
  Tensor pin_memory() const;  // itself when it is pinned, else a copy without history; DeviceError without a GPU
  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  // True when the strides cover a dense block in some order of dims (a plain or channels_last tensor, or a permutation).
  bool is_dense() const;
  // channels_last when the strides say so and contiguous does not hold as well.
  MemoryFormat suggested_format() const;

  // Reading. The element type must be the dtype's; DTypeError otherwise. Memory order is given by strides().
  template <class T>
  const T* data() const {
    check_type(dtype_of<T>);
    return static_cast<const T*>(raw_data());
  }
  // Writing bumps the version, so that a gradient which needs the former values notices.
  template <class T>
  T* mutable_data() {
    check_type(dtype_of<T>);
    return static_cast<T*>(raw_mutable_data());
  }
  const void* raw_data() const {
    return static_cast<const char*>(impl()->storage->data()) +
           static_cast<std::size_t>(impl()->offset) * size_of(impl()->dtype);
  }
  void* raw_mutable_data() {
    impl()->storage->bump_version();
    return const_cast<void*>(raw_data());
  }
  std::uint32_t version() const { return impl()->storage->version(); }
  // The single element of a one-element tensor. ShapeError when there are more.
  double item() const;
  std::int64_t item_int() const;
  // All elements in logical (row-major) order, converted to T (double, float, int64_t, ...).
  template <class T>
  std::vector<T> to_vector() const;

  // A label for the ledger and for error messages ("conv1.weight").
  Tensor& set_name(const std::string& name);
  const std::string& name() const;
  // "f32[8,4,32,32] cpu", with the label where there is one.
  std::string describe() const;

  const Ref<TensorImpl>& impl() const {
    if (LIMPID_UNLIKELY(!impl_)) throw_undefined();
    return impl_;
  }
  const Ref<Storage>& storage() const { return impl()->storage; }
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  // ---- autograd (autograd/tensor_methods.cpp)
  bool requires_grad() const { return impl_ && impl_->requires_grad; }
  Tensor& requires_grad_(bool requires_grad = true);  // leaves of floating dtype only
  bool is_leaf() const;
  const Tensor& grad() const;  // undefined when there is none
  Tensor& mutable_grad();
  void set_grad(Tensor grad);
  std::string grad_fn_name() const;  // "conv2d"; empty for leaves
  // Runs the graph backwards from this tensor and adds into the leaves' grad(). `gradient` may be left out for one
  // element. AutogradError when there is no graph, or when it was freed by an earlier backward.
  void backward(const Tensor& gradient = Tensor(), bool retain_graph = false) const;
  // Called with the gradient of this tensor during backward; a defined result replaces it.
  void register_hook(std::function<Tensor(const Tensor&)> hook);
  Tensor detach() const;  // same storage and version, no history

  // ---- differentiable
  Tensor reshape(Shape shape) const;  // one entry may be -1; a view where possible, else a copy
  Tensor view(Shape shape) const;     // ShapeError where a copy would be needed
  Tensor flatten(std::int64_t first = 0, std::int64_t last = -1) const;
  Tensor permute(const std::vector<std::int64_t>& dims) const;
  Tensor transpose(std::int64_t a, std::int64_t b) const;
  Tensor t() const;
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;
  Tensor operator[](std::int64_t index) const { return select(0, index); }
  Tensor expand(const Shape& shape) const;  // -1 keeps a dim
  Tensor squeeze() const;
  Tensor squeeze(std::int64_t dim) const;
  Tensor unsqueeze(std::int64_t dim) const;
  Tensor contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  // The same values on another device. It waits until they are there, unless `non_blocking` and the CPU's side is pinned:
  // then work of the current stream comes behind the copy, and reading a result on the CPU is for a synchronised stream.
  // DeviceError when the device is not there.
  Tensor to(Device device, bool non_blocking = false) const;
  Tensor sum() const;
  Tensor sum(const std::vector<std::int64_t>& dims, bool keepdim = false) const;
  Tensor mean() const;
  Tensor mean(const std::vector<std::int64_t>& dims, bool keepdim = false) const;

  // ---- in place; not recorded. AutogradError where that would lose a gradient (grad mode on and requires_grad).
  Tensor& fill_(const Scalar& value);
  Tensor& zero_() { return fill_(0); }
  Tensor& copy_(const Tensor& source);  // casts and broadcasts
  Tensor& add_(const Tensor& other, double alpha = 1.0);
  Tensor& mul_(const Scalar& factor);

 private:
  void check_type(DType wanted) const {
    if (LIMPID_UNLIKELY(impl()->dtype != wanted)) throw_wrong_type(wanted);
  }
  [[noreturn]] void throw_wrong_type(DType wanted) const;
  [[noreturn]] static void throw_undefined();
  Ref<TensorImpl> impl_;
};

// "f32[8,4,32,32] cpu"; "undefined" for an empty handle. Found by concat() in error messages.
std::string to_string(const Tensor& tensor);
// The numbers, as NumPy prints them (tensor/print.cpp).
std::string format_tensor(const Tensor& tensor, int precision = 4);

}  // namespace limpid
