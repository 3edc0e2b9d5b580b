// DataLoader: batches of a data set, prepared by threads, in an order and with contents that depend on (seed, epoch,
// position) only: never on the number of threads.
//
//   DataLoader loader(dataset, {.batch_size = 16, .shuffle = true, .num_workers = 4});
//   for (auto& [x, y] : loader) ...            // one epoch; the next loop is the next epoch
//   for (const Batch& batch : loader) ...      // with batch.indices, batch.epoch, batch.position
//
// The batches live in a ring of buffers taken from the io pool at construction. All threads fill one batch together, in
// ticket order. A batch stays valid as long as a tensor of it is held: its buffer is then replaced, and counted. A pinned
// batch may be let go while a copy still reads it: its buffer is filled again when the copy is done.
// Not here: moving batches to another device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include <limpid/data/dataset.h>
#include <limpid/data/sampler.h>
#include <limpid/data/transforms.h>

namespace limpid::data {

struct Batch {
  Tensor x;                           // [n, input shape]
  Tensor y;                           // [n, target shape]; classes are int64 [n]
  std::vector<std::int64_t> indices;  // which examples, row by row
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // number of the batch in the epoch
  BatchPlace place = {};      // in its effective batch
  std::int64_t size() const { return static_cast<std::int64_t>(indices.size()); }
};
// auto& [x, y] = batch
template <std::size_t I>
const Tensor& get(const Batch& batch) {
  if constexpr (I == 0)
    return batch.x;
  else
    return batch.y;
}
template <std::size_t I>
Tensor& get(Batch& batch) {
  if constexpr (I == 0)
    return batch.x;
  else
    return batch.y;
}
template <std::size_t I>
Tensor&& get(Batch&& batch) {
  return std::move(get<I>(batch));
}

struct LoaderOptions {
  std::int64_t batch_size = 1;
  // Cuts each run of batch_size samples into batches of at most this many (0: not cut), for accumulation: Batch::place
  // says which part of which effective batch one is.
  std::int64_t micro_batch = 0;
  std::int64_t quantum = 1;  // divides micro_batch: micro-batches are cut at multiples of it
  bool shuffle = false;
  bool drop_last = false;
  int num_workers = 0;                          // 0 = the calling thread prepares each batch when asked for it
  int prefetch = 2;                             // batches prepared ahead (num_workers > 0)
  bool pin_memory = false;                      // batches in page-locked memory, for copies to a GPU that do not wait
  std::uint64_t seed = 0;                       // order and augmentation
  TransformPtr transform = {};                  // float32 [C,H,W] inputs
  std::shared_ptr<const Sampler> sampler = {};  // an order of the user's; excludes shuffle
  Collate collate = {};                         // instead of stacking into the ring
};

// Where a run is: the next batch is number `position` of `epoch`. Enough to go on from, in this or another process.
struct LoaderState {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  bool operator==(const LoaderState&) const = default;
};

class DataLoader {
 public:
  // The data set must outlive the loader; the second form keeps it alive. ArgumentError for options out of range,
  // DataError for an empty data set.
  DataLoader(const Dataset& dataset, LoaderOptions options);
  DataLoader(DatasetPtr dataset, LoaderOptions options);
  DataLoader(const Dataset&& dataset, LoaderOptions options) = delete;
  ~DataLoader();  // joins the threads
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    Batch& operator*() const { return *batch_; }
    Batch* operator->() const { return batch_; }
    Iterator& operator++() {
      batch_ = loader_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::nullptr_t) const { return batch_ == nullptr; }

   private:
    friend class DataLoader;
    Iterator(DataLoader* loader, Batch* batch) : loader_(loader), batch_(batch) {}
    DataLoader* loader_;
    Batch* batch_;
  };
  // Starts at state(). A loop left early counts as that epoch done: the next begin() starts the next epoch, unless
  // set_state() or set_epoch() says otherwise. An error in a sample comes out where its batch is due, with the type it
  // was thrown with (what is not a limpid::Error becomes a DataError, nested) and "sample N" in the text.
  Iterator begin();
  std::nullptr_t end() const { return nullptr; }

  std::int64_t size() const;  // batches in the current epoch, micro-batches counted one by one
  std::int64_t epoch() const { return state().epoch; }
  LoaderState state() const;                 // counts the batches handed out
  void set_state(const LoaderState& state);  // ArgumentError when the seed differs or position > size()
  void set_epoch(std::int64_t epoch) { set_state({options_.seed, epoch, 0}); }

  const Dataset& dataset() const { return *dataset_; }
  const LoaderOptions& options() const { return options_; }
  const ExampleSpec& batch_spec() const { return spec_; }  // of one sample after the transforms
  BatchPlan plan(std::int64_t epoch) const;
  std::vector<std::int64_t> batch_sizes() const { return plan(epoch()).sizes(); }
  std::vector<std::int64_t> dropped() const { return plan(epoch()).dropped(); }

  // A batch of these examples with the augmentation of `epoch`, made in the calling thread in memory of its own: for a
  // step that must be repeated.
  Batch load(const std::vector<std::int64_t>& indices, std::int64_t epoch) const;

  double wait_seconds() const;            // time that begin() and ++ waited for data, since construction
  std::int64_t replaced_buffers() const;  // buffers replaced because the user kept the batch
  std::size_t ring_bytes() const;         // bytes asked for the ring

 private:
  struct Engine;
  Batch* next();
  DatasetPtr dataset_;
  LoaderOptions options_;
  ExampleSpec raw_spec_;  // of the data set
  ExampleSpec spec_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace limpid::data

template <>
struct std::tuple_size<limpid::data::Batch> : std::integral_constant<std::size_t, 2> {};
template <std::size_t I>
struct std::tuple_element<I, limpid::data::Batch> {
  using type = limpid::Tensor;
};
