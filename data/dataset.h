// Dataset: numbered labelled examples, the interface of all data. A user's data set derives from it and writes size()
// and get(); the built-in ones also write a sample straight into the batch. Not here: order (sampler.h), batches
// (loader.h). Images are float32 [C,H,W] in [0,1]; classes are int64.
//
// get() and write() are called from several loader threads at once: they must not change the data set unguarded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <limpid/tensor/tensor.h>

namespace limpid::data {

struct Example {
  Tensor input;
  std::int64_t label = 0;  // the class
  Tensor target = {};      // when defined it stands in place of the label: regression, masks, soft labels
};

// Shape and dtype of every example. A class is a target of shape [] and dtype int64.
struct ExampleSpec {
  Shape input_shape = {};
  DType input_dtype = DType::float32;
  Shape target_shape = {};
  DType target_dtype = DType::int64;

  std::size_t input_bytes() const { return static_cast<std::size_t>(input_shape.numel()) * size_of(input_dtype); }
  std::size_t target_bytes() const { return static_cast<std::size_t>(target_shape.numel()) * size_of(target_dtype); }
};
ExampleSpec spec_of(const Example& example);

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  // 0 <= index < size(). Inside a loader, tensors made here come from the loader's pool.
  virtual Example get(std::int64_t index) const = 0;

  // The layout of every example; as it stands, that of get(0). DataError for an empty data set.
  virtual ExampleSpec spec() const;
  // Writes input_bytes() and target_bytes() of `spec`, row-major. `spec` is what spec() answered, asked once and passed
  // on. As it stands: get(), checked against the spec.
  virtual void write(std::int64_t index, const ExampleSpec& spec, void* input, void* target) const;
  // 0 when the targets are not classes.
  virtual std::int64_t num_classes() const { return 0; }
  // Empty, or num_classes() names.
  virtual std::vector<std::string> class_names() const { return {}; }
};
using DatasetPtr = std::shared_ptr<const Dataset>;

// Copies an example to memory laid out as `spec`; ShapeError or DTypeError when it differs.
void write_example(const Example& example, const ExampleSpec& spec, void* input, void* target);

// Joins the examples of a batch to (inputs, targets). Called by the thread that completes the batch.
using Collate = std::function<std::pair<Tensor, Tensor>(const std::vector<Example>&)>;
// The usual way: one more leading dim. ShapeError when shapes differ.
std::pair<Tensor, Tensor> stack_examples(const std::vector<Example>& examples);

// Rows of tensors already in memory: example i is (x[i], y[i]). The tensors are shared, not copied (a tensor that is
// not contiguous is copied once). ShapeError when the leading sizes differ. Classes are known when y is int64 [n]:
// 0..max.
class TensorDataset final : public Dataset {
 public:
  TensorDataset(Tensor x, Tensor y);
  std::int64_t size() const override { return x_.size(0); }
  Example get(std::int64_t index) const override;
  ExampleSpec spec() const override { return spec_; }
  void write(std::int64_t index, const ExampleSpec& spec, void* input, void* target) const override;
  std::int64_t num_classes() const override { return classes_; }

 private:
  Tensor x_, y_;
  ExampleSpec spec_;
  std::int64_t classes_ = 0;
};

// Byte images in memory: u8 [N,C,H,W] with one class each, handed out as float32 value/255. DataError when the counts
// differ or a label is outside 0..names-1 (with its index and value).
class ImageArrayDataset final : public Dataset {
 public:
  ImageArrayDataset(Tensor images, std::vector<std::uint8_t> labels, std::vector<std::string> class_names,
                    const std::string& source);
  std::int64_t size() const override { return images_.size(0); }
  Example get(std::int64_t index) const override;
  ExampleSpec spec() const override;
  void write(std::int64_t index, const ExampleSpec& spec, void* input, void* target) const override;
  std::int64_t num_classes() const override { return static_cast<std::int64_t>(names_.size()); }
  std::vector<std::string> class_names() const override { return names_; }
  const Tensor& images() const { return images_; }
  const std::vector<std::uint8_t>& labels() const { return labels_; }

 private:
  Tensor images_;
  std::vector<std::uint8_t> labels_;
  std::vector<std::string> names_;
};

// Memory for data that lives as long as the data set: from the loader's pool, ledger role io.
Tensor empty_io(const Shape& shape, DType dtype, const std::string& name);

}  // namespace limpid::data
