#include <limpid/tensor/tensor.h>

#include <algorithm>
#include <cmath>

#include <limpid/base/scope.h>
#include <limpid/tensor/dry.h>
#include <limpid/tensor/raw.h>

namespace limpid {

std::int64_t Tensor::size(std::int64_t d) const { return impl()->shape[normalize_dim("size", d, dim())]; }
std::int64_t Tensor::stride(std::int64_t d) const { return impl()->strides[normalize_dim("stride", d, dim())]; }

bool Tensor::is_contiguous(MemoryFormat format) const {
  return limpid::is_contiguous(impl()->shape, impl()->strides, format);
}

bool Tensor::is_dense() const {
  if (is_contiguous()) return true;
  // Sort the dims by stride; a dense tensor has each stride equal to the product of the smaller extents.
  int order[kMaxDims];
  int rank = 0;
  for (int i = 0; i < dim(); i++) {
    if (impl()->shape[i] == 1) continue;
    int at = rank++;
    while (at > 0 && impl()->strides[order[at - 1]] > impl()->strides[i]) {
      order[at] = order[at - 1];
      at--;
    }
    order[at] = i;
  }
  std::int64_t step = 1;
  for (int i = 0; i < rank; i++) {
    if (impl()->strides[order[i]] != step) return false;
    step *= impl()->shape[order[i]];
  }
  return true;
}

MemoryFormat Tensor::suggested_format() const {
  bool last = dim() == 4 && is_contiguous(MemoryFormat::channels_last) && !is_contiguous();
  return last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
}

double Tensor::item() const {
  LIMPID_CHECK(numel() == 1, ShapeError, "[item] expects a tensor of one element, got ", *this);
  if (device().is_dry()) return dry::placeholder_for("item", *this);
  if (device() != kCpu) return raw::to_device(raw::detach(*this), kCpu).item();
  return visit_dtype(dtype(), [&]<class T>() { return static_cast<double>(*static_cast<const T*>(raw_data())); });
}

std::int64_t Tensor::item_int() const {
  LIMPID_CHECK(numel() == 1, ShapeError, "[item] expects a tensor of one element, got ", *this);
  if (is_floating(dtype()) || device().is_dry()) {
    LIMPID_CHECK(std::fabs(item()) < 9.2e18, ArgumentError, "[item_int] ", item(), " is not a 64-bit integer (", *this, ")");
    return static_cast<std::int64_t>(item());
  }
  if (device() != kCpu) return raw::to_device(raw::detach(*this), kCpu).item_int();
  return visit_dtype(dtype(), [&]<class T>() { return static_cast<std::int64_t>(*static_cast<const T*>(raw_data())); });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  Tensor plain = raw::detach(*this);
  if (!device().is_dry()) plain = raw::to_device(plain, kCpu);
  plain = raw::contiguous(plain);
  std::vector<T> out(static_cast<std::size_t>(numel()));
  if (device().is_dry()) {
    std::fill(out.begin(), out.end(), static_cast<T>(dry::placeholder_for("to_vector", *this)));
    return out;
  }
  visit_dtype(dtype(), [&]<class S>() {
    const S* data = static_cast<const S*>(plain.raw_data());
    for (std::size_t i = 0; i < out.size(); i++) {
      if constexpr (std::is_same_v<S, Half> || std::is_same_v<S, BFloat16>) {
        out[i] = static_cast<T>(static_cast<float>(data[i]));
      } else {
        out[i] = static_cast<T>(data[i]);
      }
    }
  });
  return out;
}
template std::vector<double> Tensor::to_vector<double>() const;
template std::vector<float> Tensor::to_vector<float>() const;
template std::vector<std::int64_t> Tensor::to_vector<std::int64_t>() const;
template std::vector<std::int32_t> Tensor::to_vector<std::int32_t>() const;
template std::vector<std::uint8_t> Tensor::to_vector<std::uint8_t>() const;

Tensor& Tensor::set_name(const std::string& text) {
  impl()->name = intern(text);
  impl()->storage->set_name(impl()->name);
  return *this;
}

const std::string& Tensor::name() const { return name_of(impl()->name); }

std::string Tensor::describe() const {
  if (!defined()) return "undefined";
  std::string text = to_string(dtype()) + to_string(shape()) + " " + to_string(device());
  if (impl()->name) text += " '" + name() + "'";
  return text;
}

void Tensor::throw_wrong_type(DType wanted) const {
  LIMPID_THROW(DTypeError, "[data] asked for ", wanted, ", the tensor is ", *this);
}

void Tensor::throw_undefined() {
  const std::string& op = name_of(current_scope().op);
  LIMPID_THROW(ArgumentError, "[", op.empty() ? "tensor" : op, "] an undefined tensor was given where one is needed");
}

std::string to_string(const Tensor& tensor) { return tensor.describe(); }

}  // namespace limpid
