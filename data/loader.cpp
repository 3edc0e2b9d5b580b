#include <limpid/data/loader.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <limpid/base/error.h>
#include <limpid/base/names.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/backend.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/raw.h>

namespace limpid::data {
namespace {

constexpr std::int64_t kMaxChunk = 32;  // samples that a thread takes at once

Tensor tensor_on(const Ref<Storage>& storage, Shape sample_shape, std::int64_t rows, DType dtype) {
  sample_shape.insert(0, rows);
  auto impl = make_ref<TensorImpl>();
  impl->storage = storage;
  impl->strides = strides_for(sample_shape);
  impl->numel = sample_shape.numel();
  impl->shape = sample_shape;
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Ref<Storage> io_storage(std::int64_t rows, std::size_t row_bytes, const char* name, Device device, bool pinned) {
  std::size_t bytes = 0;
  LIMPID_CHECK(!__builtin_mul_overflow(static_cast<std::size_t>(rows), row_bytes, &bytes) && bytes <= INT64_MAX,
               ArgumentError, "[loader] a batch of ", rows, " samples of ", row_bytes, " bytes overflows");
  memory::Allocator& pool = pinned && !device.is_dry() ? pinned_allocator() : io_allocator_for(device);
  return Storage::create_in(pool, bytes, device, memory::Role::io, intern(name));
}

// The exception being handled, with `context` in front of its text and its type kept. What is not limpid's own becomes
// a DataError that carries the original nested.
std::exception_ptr current_with_context(const std::string& context) {
  try {
    try {
      throw;
    } catch (Error& error) {
      error.add_context(context);
      throw;
    } catch (const std::exception& error) {
      std::throw_with_nested(DataError(context + error.what()));
    } catch (...) {
      std::throw_with_nested(DataError(context + "an exception of an unknown type"));
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

// The ring and its threads. Batch b of an epoch is prepared in slot b % ring size. Only the consumer schedules, so a
// slot belongs to the consumer until it is scheduled and after it is complete, and to the threads in between.
struct DataLoader::Engine {
  struct Slot {
    Ref<Storage> x, y;
    std::vector<std::int64_t> indices;
    std::vector<Example> examples;  // with a collate function only
    std::pair<Tensor, Tensor> collated;
    std::int64_t claimed = 0;  // samples handed to threads; this and below: under the mutex
    std::int64_t done = 0;
    std::exception_ptr error;
    std::int64_t error_row = INT64_MAX;
    std::int64_t count() const { return static_cast<std::int64_t>(indices.size()); }
  };

  Engine(const Dataset& data, const LoaderOptions& opts, const ExampleSpec& raw, const ExampleSpec& out)
      : dataset(data), options(opts), raw_spec(raw), spec(out) {}

  ~Engine() {
    {
      std::lock_guard lock(mutex);
      stop = true;
      cancelled = true;
    }
    work.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void start() {
    ring.resize(options.num_workers > 0 ? static_cast<std::size_t>(options.prefetch) + 1 : 1);
    if (!options.collate) {
      const std::int64_t largest = options.micro_batch > 0 ? options.micro_batch : options.batch_size;
      rows = std::min(largest, std::max<std::int64_t>(1, dataset.size()));
      for (Slot& slot : ring) allocate(slot, rows);
    }
    if (device.is_dry()) return;  // there is nothing to fill
    for (int i = 0; i < options.num_workers; i++) threads.emplace_back([this] { run(); });
  }

  void allocate(Slot& slot, std::int64_t count) {
    slot.x = io_storage(count, spec.input_bytes(), "loader.x", device, options.pin_memory);
    slot.y = io_storage(count, spec.target_bytes(), "loader.y", device, options.pin_memory);
  }

  // ---- preparing samples (any thread)

  void fill_row(Slot& slot, std::int64_t row, std::int64_t of_epoch, std::vector<float>& scratch) const {
    const std::int64_t index = slot.indices[static_cast<std::size_t>(row)];
    if (options.collate) {
      slot.examples[static_cast<std::size_t>(row)] = transformed_example(index, of_epoch);
      return;
    }
    char* x = static_cast<char*>(slot.x->data()) + static_cast<std::size_t>(row) * spec.input_bytes();
    char* y = static_cast<char*>(slot.y->data()) + static_cast<std::size_t>(row) * spec.target_bytes();
    if (!options.transform) {
      dataset.write(index, raw_spec, x, y);
      return;
    }
    scratch.resize(static_cast<std::size_t>(raw_spec.input_shape.numel()));
    dataset.write(index, raw_spec, scratch.data(), y);
    SampleRandom random(options.seed, of_epoch, index);
    options.transform->apply(scratch.data(), raw_spec.input_shape, reinterpret_cast<float*>(x), random);
  }

  Example transformed_example(std::int64_t index, std::int64_t of_epoch) const {
    Example example = dataset.get(index);
    LIMPID_CHECK(example.input.defined(), DataError, "the example has no input");
    if (!options.transform) return example;
    LIMPID_CHECK(example.input.dtype() == DType::float32, DTypeError, "transforms expect f32 images, got ",
                 example.input);
    Tensor in = example.input.is_contiguous() ? example.input : raw::contiguous(example.input);
    Tensor out = empty(options.transform->output_shape(in.shape()), {.role = memory::Role::io});
    SampleRandom random(options.seed, of_epoch, index);
    options.transform->apply(in.data<float>(), in.shape(), out.mutable_data<float>(), random);
    example.input = std::move(out);
    return example;
  }

  // Rows [begin, end). A failing row ends it; its error is the slot's when no lower row failed, so which one the user
  // sees does not depend on the threads.
  void fill_rows(Slot& slot, std::int64_t begin, std::int64_t end, std::int64_t of_epoch, std::vector<float>& scratch) {
    std::int64_t row = begin;
    try {
      for (; row < end && !cancelled.load(std::memory_order_relaxed); row++) fill_row(slot, row, of_epoch, scratch);
    } catch (...) {
      std::exception_ptr error =
          current_with_context(concat("[loader] sample ", slot.indices[static_cast<std::size_t>(row)], ": "));
      std::lock_guard lock(mutex);
      if (row < slot.error_row) slot.error = std::move(error), slot.error_row = row;
    }
  }

  void collate(Slot& slot, std::int64_t of_position) {
    try {
      if (slot.error_row == INT64_MAX) slot.collated = options.collate(slot.examples);
    } catch (...) {
      slot.error = current_with_context(concat("[loader] collating batch ", of_position, ": "));
    }
    slot.examples.clear();
  }

  void run() {
    PoolScope pool(memory::io_allocator());
    std::vector<float> scratch;
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stop || filling < scheduled; });
      if (stop) return;
      const std::int64_t ticket = filling;
      Slot& slot = slot_of(ticket);
      const std::int64_t chunk = std::clamp<std::int64_t>(slot.count() / (2 * options.num_workers), 1, kMaxChunk);
      const std::int64_t begin = slot.claimed, end = std::min(begin + chunk, slot.count());
      slot.claimed = end;
      if (end == slot.count()) filling++;
      active++;
      lock.unlock();
      fill_rows(slot, begin, end, epoch, scratch);
      lock.lock();
      slot.done += end - begin;
      if (slot.done == slot.count()) {
        if (options.collate && !cancelled) {
          slot.done--;  // not complete before it is collated
          lock.unlock();
          collate(slot, ticket);
          lock.lock();
          slot.done++;
        }
        ready.notify_all();
      }
      if (--active == 0) ready.notify_all();
    }
  }

  // ---- the consumer's side

  Slot& slot_of(std::int64_t ticket) { return ring[static_cast<std::size_t>(ticket) % ring.size()]; }

  // No thread works on the ring afterwards.
  void cancel() {
    std::unique_lock lock(mutex);
    filling = scheduled;
    cancelled = true;
    ready.wait(lock, [&] { return active == 0; });
    cancelled = false;
  }

  // After cancel() only.
  void open_epoch() {
    std::lock_guard lock(mutex);
    filling = scheduled = position;
    open = true;
  }

  void schedule() {
    bool added = false;
    while (scheduled < plan.size() && scheduled < position + static_cast<std::int64_t>(ring.size())) {
      Slot& slot = slot_of(scheduled);
      const auto indices = plan.indices(scheduled);
      slot.indices.assign(indices.begin(), indices.end());
      slot.error = nullptr;
      slot.error_row = INT64_MAX;
      slot.claimed = slot.done = 0;
      if (options.collate) {
        slot.examples.assign(indices.size(), Example{});
        slot.collated = {};
      } else if (slot.x->use_count() > 1 || slot.y->use_count() > 1) {
        allocate(slot, rows);  // the user still holds the batch that was here
        replaced++;
      } else {
        cuda_backend().wait_for_copies(*slot.x);
        cuda_backend().wait_for_copies(*slot.y);
      }
      {
        std::lock_guard lock(mutex);
        scheduled++;
      }
      added = true;
    }
    if (added) work.notify_all();
  }

  Batch* next() {
    current = Batch{};
    if (!open) return nullptr;
    if (position == plan.size()) {
      open = false;
      epoch++;
      position = 0;
      return nullptr;
    }
    const auto start = std::chrono::steady_clock::now();
    schedule();
    Slot& slot = slot_of(position);
    if (threads.empty()) {
      fill_here(slot);
    } else {
      std::unique_lock lock(mutex);
      ready.wait(lock, [&] { return slot.done == slot.count(); });
    }
    waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (slot.error) std::rethrow_exception(slot.error);
    current.indices = slot.indices;
    current.epoch = epoch;
    current.place = plan.place(position);
    current.position = position++;
    if (options.collate) {
      std::tie(current.x, current.y) = std::exchange(slot.collated, {});
      if (options.pin_memory && !device.is_dry()) {
        current.x = raw::pin_memory(current.x);
        if (current.y.defined()) current.y = raw::pin_memory(current.y);
      }
    } else {
      current.x = tensor_on(slot.x, spec.input_shape, slot.count(), spec.input_dtype);
      current.y = tensor_on(slot.y, spec.target_shape, slot.count(), spec.target_dtype);
    }
    return &current;
  }

  void fill_here(Slot& slot) {
    if (slot.done == slot.count()) return;  // asked again after an error
    if (!device.is_dry()) {
      PoolScope pool(memory::io_allocator());
      fill_rows(slot, 0, slot.count(), epoch, own_scratch);
      if (options.collate) collate(slot, position);
    }
    slot.done = slot.count();
    filling = scheduled;
  }

  const Dataset& dataset;
  const LoaderOptions& options;
  const ExampleSpec& raw_spec;  // of the data set
  const ExampleSpec& spec;      // after the transforms
  const Device device = default_device().is_dry() ? default_device() : kCpu;  // of the ring
  std::vector<Slot> ring;
  std::int64_t rows = 0;
  std::vector<std::thread> threads;
  std::vector<float> own_scratch;

  // The consumer's; the threads read `epoch` while it cannot change.
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  bool open = false;
  BatchPlan plan;
  Batch current;
  double waited = 0;
  std::int64_t replaced = 0;

  std::mutex mutex;
  std::condition_variable work, ready;
  std::int64_t filling = 0;    // batch whose samples are being handed out
  std::int64_t scheduled = 0;  // end of the batches that may be prepared
  int active = 0;              // threads at work outside the mutex
  bool stop = false;
  std::atomic<bool> cancelled{false};
};

namespace {

DatasetPtr borrowed(const Dataset& dataset) { return DatasetPtr(std::shared_ptr<void>(), &dataset); }

}  // namespace

DataLoader::DataLoader(const Dataset& dataset, LoaderOptions options)
    : DataLoader(borrowed(dataset), std::move(options)) {}

DataLoader::DataLoader(DatasetPtr dataset, LoaderOptions options)
    : dataset_(std::move(dataset)), options_(std::move(options)) {
  LIMPID_CHECK(dataset_ != nullptr, ArgumentError, "[loader] there is no data set");
  LIMPID_CHECK(options_.batch_size >= 1, ArgumentError, "[loader] batch_size is ", options_.batch_size,
               ", expected at least 1");
  LIMPID_CHECK(options_.micro_batch >= 0 && options_.micro_batch <= options_.batch_size, ArgumentError,
               "[loader] micro_batch is ", options_.micro_batch, ", expected 0 to batch_size, ", options_.batch_size);
  LIMPID_CHECK(options_.quantum >= 1 && options_.micro_batch % options_.quantum == 0, ArgumentError, "[loader] micro_batch ",
               options_.micro_batch, " is no multiple of the quantum ", options_.quantum);
  LIMPID_CHECK(options_.num_workers >= 0 && options_.num_workers <= 1024, ArgumentError, "[loader] num_workers is ",
               options_.num_workers, ", expected 0..1024");
  LIMPID_CHECK(options_.prefetch >= 1 && options_.prefetch <= 4096, ArgumentError, "[loader] prefetch is ",
               options_.prefetch, ", expected 1..4096");
  LIMPID_CHECK(!(options_.sampler && options_.shuffle), ArgumentError,
               "[loader] a sampler and shuffle exclude each other");
  const std::int64_t size = dataset_->size();
  LIMPID_CHECK(size > 0, DataError, "[loader] the data set is empty");
  LIMPID_CHECK(options_.sampler || !options_.drop_last || options_.batch_size <= size, DataError,
               "[loader] drop_last with batches of ", options_.batch_size, " leaves nothing of ", size, " examples");
  LIMPID_CHECK(!(options_.collate && default_device().is_dry()), DeviceError,
               "[loader] a dry run has no examples to collate");
  {
    DeviceScope host(kCpu);  // an example is real, in a dry run too
    PoolScope pool(memory::io_allocator());
    raw_spec_ = dataset_->spec();
  }
  spec_ = raw_spec_;
  if (options_.transform) {
    LIMPID_CHECK(spec_.input_dtype == DType::float32, DTypeError,
                 "[loader] transforms expect f32 images, the data set has ", spec_.input_dtype, spec_.input_shape);
    spec_.input_shape = options_.transform->output_shape(spec_.input_shape);
  }
  LIMPID_CHECK(spec_.input_shape.size() < kMaxDims && spec_.target_shape.size() < kMaxDims, ShapeError,
               "[loader] no room for the batch dim: examples are ", spec_.input_shape, " and ", spec_.target_shape);
  engine_ = std::make_unique<Engine>(*dataset_, options_, raw_spec_, spec_);
  engine_->start();
}

DataLoader::~DataLoader() = default;

BatchPlan DataLoader::plan(std::int64_t epoch) const {
  std::vector<std::int64_t> order;
  if (options_.sampler) {
    order = options_.sampler->order(epoch);
    for (std::int64_t index : order)
      LIMPID_CHECK(index >= 0 && index < dataset_->size(), IndexError, "[loader] the sampler asks for example ", index,
                   " of a data set of ", dataset_->size());
  } else if (options_.shuffle) {
    order = RandomSampler(dataset_->size(), options_.seed).order(epoch);
  } else {
    order = SequentialSampler(dataset_->size()).order(epoch);
  }
  return BatchPlan(std::move(order), options_.batch_size, options_.drop_last, options_.micro_batch, options_.quantum);
}

DataLoader::Iterator DataLoader::begin() {
  engine_->cancel();
  engine_->current = Batch{};
  if (engine_->open) {  // left early
    engine_->epoch++;
    engine_->position = 0;
    engine_->open = false;
  }
  engine_->plan = plan(engine_->epoch);
  LIMPID_CHECK(engine_->position <= engine_->plan.size(), ArgumentError, "[loader] position ", engine_->position,
               " is beyond the ", engine_->plan.size(), " batches of epoch ", engine_->epoch);
  engine_->open_epoch();
  return Iterator(this, next());
}

Batch* DataLoader::next() { return engine_->next(); }

std::int64_t DataLoader::size() const {
  if (options_.sampler) return plan(engine_->epoch).size();
  const std::int64_t size = dataset_->size(), batch = options_.batch_size;
  auto pieces = [&](std::int64_t samples) {  // as micro_batch_sizes() cuts them
    if (samples == 0) return std::int64_t{0};
    const std::int64_t micro = options_.micro_batch > 0 ? options_.micro_batch : samples;
    return samples / micro + (samples % micro != 0 ? 1 : 0);
  };
  return size / batch * pieces(batch) + (options_.drop_last ? 0 : pieces(size % batch));
}

LoaderState DataLoader::state() const { return {options_.seed, engine_->epoch, engine_->position}; }

void DataLoader::set_state(const LoaderState& state) {
  LIMPID_CHECK(state.seed == options_.seed, ArgumentError, "[loader] the state was made with seed ", state.seed,
               ", the loader has ", options_.seed);
  LIMPID_CHECK(state.epoch >= 0 && state.position >= 0, ArgumentError, "[loader] epoch ", state.epoch, " and position ",
               state.position, " must not be negative");
  const std::int64_t batches = options_.sampler ? plan(state.epoch).size() : size();
  LIMPID_CHECK(state.position <= batches, ArgumentError, "[loader] position ", state.position, " is beyond the ",
               batches, " batches of epoch ", state.epoch);
  engine_->cancel();
  engine_->current = Batch{};
  engine_->open = false;
  engine_->epoch = state.epoch;
  engine_->position = state.position;
}

Batch DataLoader::load(const std::vector<std::int64_t>& indices, std::int64_t epoch) const {
  LIMPID_CHECK(!indices.empty(), ArgumentError, "[loader] a batch needs at least one example");
  for (std::int64_t index : indices)
    LIMPID_CHECK(index >= 0 && index < dataset_->size(), IndexError, "[loader] example ", index, " of a data set of ",
                 dataset_->size());
  Engine one(*dataset_, options_, raw_spec_, spec_);
  one.ring.resize(1);
  one.rows = static_cast<std::int64_t>(indices.size());
  if (!options_.collate) one.allocate(one.ring[0], one.rows);
  one.plan = BatchPlan(indices, one.rows, false);
  one.epoch = epoch;
  one.open = true;
  return std::move(*one.next());
}

double DataLoader::wait_seconds() const { return engine_->waited; }

std::int64_t DataLoader::replaced_buffers() const { return engine_->replaced; }

std::size_t DataLoader::ring_bytes() const {
  std::size_t bytes = 0;
  for (const auto& slot : engine_->ring)
    if (slot.x) bytes += slot.x->bytes() + slot.y->bytes();
  return bytes;
}

}  // namespace limpid::data
