#include <limpid/data/dataset.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/raw.h>

namespace limpid::data {
namespace {

void check_index(const char* what, std::int64_t index, std::int64_t size) {
  LIMPID_CHECK(index >= 0 && index < size, IndexError, "[", what, "] example ", index, " of a data set of ", size);
}

void copy_row_major(const Tensor& tensor, void* out) {
  if (tensor.numel() == 0) return;
  Tensor dense = tensor.is_contiguous() ? tensor : raw::contiguous(tensor);
  std::memcpy(out, dense.raw_data(), dense.nbytes());
}

}  // namespace

ExampleSpec spec_of(const Example& example) {
  LIMPID_CHECK(example.input.defined(), DataError, "[dataset] the example has no input");
  ExampleSpec spec{example.input.shape(), example.input.dtype(), {}, DType::int64};
  if (example.target.defined()) {
    spec.target_shape = example.target.shape();
    spec.target_dtype = example.target.dtype();
  }
  return spec;
}

ExampleSpec Dataset::spec() const {
  LIMPID_CHECK(size() > 0, DataError, "[dataset] the data set is empty: it has no example to tell shapes from");
  return spec_of(get(0));
}

void Dataset::write(std::int64_t index, const ExampleSpec& spec, void* input, void* target) const {
  write_example(get(index), spec, input, target);
}

void write_example(const Example& example, const ExampleSpec& spec, void* input, void* target) {
  ExampleSpec own = spec_of(example);
  LIMPID_CHECK(own.input_shape == spec.input_shape, ShapeError, "[dataset] the input has shape ", own.input_shape,
               ", others have ", spec.input_shape);
  LIMPID_CHECK(own.input_dtype == spec.input_dtype, DTypeError, "[dataset] the input is ", own.input_dtype,
               ", others are ", spec.input_dtype);
  LIMPID_CHECK(own.target_shape == spec.target_shape, ShapeError, "[dataset] the target has shape ", own.target_shape,
               ", others have ", spec.target_shape);
  LIMPID_CHECK(own.target_dtype == spec.target_dtype, DTypeError, "[dataset] the target is ", own.target_dtype,
               ", others are ", spec.target_dtype);
  copy_row_major(example.input, input);
  if (example.target.defined()) {
    copy_row_major(example.target, target);
  } else {
    std::memcpy(target, &example.label, sizeof example.label);
  }
}

Tensor empty_io(const Shape& shape, DType dtype, const std::string& name) {
  PoolScope scope(io_allocator_for(default_device()));
  Tensor tensor = empty(shape, {.dtype = dtype, .role = memory::Role::io});
  tensor.set_name(name);
  return tensor;
}

std::pair<Tensor, Tensor> stack_examples(const std::vector<Example>& examples) {
  LIMPID_CHECK(!examples.empty(), DataError, "[stack_examples] there are no examples");
  const ExampleSpec spec = spec_of(examples[0]);
  const auto count = static_cast<std::int64_t>(examples.size());
  Shape x_shape = spec.input_shape, y_shape = spec.target_shape;
  x_shape.insert(0, count);
  y_shape.insert(0, count);
  Tensor x = empty(x_shape, {.dtype = spec.input_dtype, .role = memory::Role::io});
  Tensor y = empty(y_shape, {.dtype = spec.target_dtype, .role = memory::Role::io});
  char* inputs = static_cast<char*>(x.raw_mutable_data());
  char* targets = static_cast<char*>(y.raw_mutable_data());
  for (std::size_t i = 0; i < examples.size(); i++)
    write_example(examples[i], spec, inputs + i * spec.input_bytes(), targets + i * spec.target_bytes());
  return {x, y};
}

TensorDataset::TensorDataset(Tensor x, Tensor y) {
  LIMPID_CHECK(x.defined() && y.defined(), ArgumentError, "[tensor_dataset] x and y must be defined");
  LIMPID_CHECK(x.device() == kCpu && y.device() == kCpu, DeviceError,
               "[tensor_dataset] expects tensors on the cpu, got ", x, " and ", y);
  LIMPID_CHECK(x.dim() >= 1 && y.dim() >= 1 && x.size(0) == y.size(0), ShapeError, "[tensor_dataset] x ", x, " and y ",
               y, " must have the same leading size");
  x_ = x.is_contiguous() ? std::move(x) : raw::contiguous(x);
  y_ = y.is_contiguous() ? std::move(y) : raw::contiguous(y);
  spec_ = {x_.shape(), x_.dtype(), y_.shape(), y_.dtype()};
  spec_.input_shape.erase(0);
  spec_.target_shape.erase(0);
  if (y_.dtype() == DType::int64 && y_.dim() == 1 && y_.numel() > 0) {
    const auto* labels = y_.data<std::int64_t>();
    auto [low, high] = std::minmax_element(labels, labels + y_.numel());
    if (*low >= 0 && *high < INT64_MAX) classes_ = *high + 1;
  }
}

Example TensorDataset::get(std::int64_t index) const {
  check_index("tensor_dataset", index, size());
  Example example{raw::select(x_, 0, index), 0, raw::select(y_, 0, index)};
  if (classes_ > 0) example.label = y_.data<std::int64_t>()[index];
  return example;
}

void TensorDataset::write(std::int64_t index, const ExampleSpec&, void* input, void* target) const {
  check_index("tensor_dataset", index, size());
  const std::size_t x_bytes = spec_.input_bytes(), y_bytes = spec_.target_bytes();
  const auto at = static_cast<std::size_t>(index);
  if (x_bytes > 0) std::memcpy(input, static_cast<const char*>(x_.raw_data()) + at * x_bytes, x_bytes);
  if (y_bytes > 0) std::memcpy(target, static_cast<const char*>(y_.raw_data()) + at * y_bytes, y_bytes);
}

ImageArrayDataset::ImageArrayDataset(Tensor images, std::vector<std::uint8_t> labels,
                                     std::vector<std::string> class_names, const std::string& source)
    : images_(std::move(images)), labels_(std::move(labels)), names_(std::move(class_names)) {
  LIMPID_CHECK(images_.defined() && images_.dim() == 4 && images_.dtype() == DType::uint8 && images_.is_contiguous(),
               ShapeError, "[image_dataset] expects contiguous u8 [N,C,H,W] images, got ", images_);
  LIMPID_CHECK(static_cast<std::int64_t>(labels_.size()) == images_.size(0), DataError, "[image_dataset] ", source,
               ": ", images_.size(0), " images and ", labels_.size(), " labels");
  for (std::size_t i = 0; i < labels_.size(); i++)
    LIMPID_CHECK(labels_[i] < names_.size(), DataError, "[image_dataset] ", source, ": label ", i, " is ",
                 static_cast<int>(labels_[i]), ", there are ", names_.size(), " classes");
}

ExampleSpec ImageArrayDataset::spec() const {
  Shape shape = images_.shape();
  shape.erase(0);
  return {shape, DType::float32, {}, DType::int64};
}

Example ImageArrayDataset::get(std::int64_t index) const {
  check_index("image_dataset", index, size());
  Example example{empty(spec().input_shape, {.role = memory::Role::io}), 0, {}};
  write(index, spec(), example.input.raw_mutable_data(), &example.label);
  return example;
}

void ImageArrayDataset::write(std::int64_t index, const ExampleSpec&, void* input, void* target) const {
  check_index("image_dataset", index, size());
  static const std::array<float, 256> kUnit = [] {
    std::array<float, 256> table{};
    for (int i = 0; i < 256; i++) table[static_cast<std::size_t>(i)] = static_cast<float>(i) / 255.0f;
    return table;
  }();
  const std::int64_t pixels = images_.size(0) > 0 ? images_.numel() / images_.size(0) : 0;
  const std::uint8_t* in = images_.data<std::uint8_t>() + index * pixels;
  float* out = static_cast<float*>(input);
  for (std::int64_t i = 0; i < pixels; i++) out[i] = kUnit[in[i]];
  const std::int64_t label = labels_[static_cast<std::size_t>(index)];
  std::memcpy(target, &label, sizeof label);
}

}  // namespace limpid::data
