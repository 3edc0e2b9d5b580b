#include <limpid/data/loader.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <cstring>
#include <set>
#include <stdexcept>
#include <thread>

#include <limpid/base/error.h>
#include <limpid/data/split.h>
#include <limpid/data/synthetic.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/raw.h>

#include <doctest/doctest.h>

using namespace limpid;
using namespace limpid::data;

namespace {

// Example i: input {i, i + 0.5}, label i % 7, made from tensors as a user would.
class Counting : public Dataset {
 public:
  explicit Counting(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override {
    calls++;
    const float v = static_cast<float>(index);
    return {from_vector<float>({v, v + 0.5f}, {2}), index % 7, {}};
  }
  mutable std::atomic<int> calls{0};

 private:
  std::int64_t size_;
};

// Fails at some examples in the way asked.
class Failing final : public Counting {
 public:
  Failing(std::int64_t size, std::set<std::int64_t> bad, std::function<void()> fail)
      : Counting(size), bad_(std::move(bad)), fail_(std::move(fail)) {}
  Example get(std::int64_t index) const override {
    if (bad_.count(index)) fail_();
    return Counting::get(index);
  }

 private:
  std::set<std::int64_t> bad_;
  std::function<void()> fail_;
};

struct Seen {
  std::vector<float> x;
  std::vector<std::int64_t> y;
  std::vector<std::int64_t> indices;
  std::int64_t epoch, position;
  bool operator==(const Seen&) const = default;
};

Seen seen(const Batch& batch) {
  return {batch.x.to_vector<float>(), batch.y.to_vector<std::int64_t>(), batch.indices, batch.epoch, batch.position};
}

std::vector<Seen> epochs(DataLoader& loader, int count) {
  std::vector<Seen> all;
  for (int e = 0; e < count; e++)
    for (const Batch& batch : loader) all.push_back(seen(batch));
  return all;
}

std::uint64_t io_live() { return memory::io_allocator().ledger().live_total; }
std::uint64_t host_live() { return memory::host_allocator().ledger().live_total; }

template <class E>
std::string thrown(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing of this type was thrown";
}

LoaderOptions with(int workers, LoaderOptions options) {
  options.num_workers = workers;
  return options;
}

}  // namespace

TEST_CASE("loader: plain order, sizes and both ways to loop") {
  Counting dataset(10);
  DataLoader loader(dataset, {.batch_size = 4});
  CHECK(loader.size() == 3);
  CHECK(loader.batch_sizes() == std::vector<std::int64_t>{4, 4, 2});
  std::vector<float> all;
  std::vector<std::int64_t> labels;
  for (auto& [x, y] : loader) {
    CHECK(x.dim() == 2);
    CHECK(x.size(1) == 2);
    CHECK(x.dtype() == float32);
    CHECK(y.dtype() == int64);
    CHECK(y.dim() == 1);
    for (float v : x.to_vector<float>()) all.push_back(v);
    for (std::int64_t v : y.to_vector<std::int64_t>()) labels.push_back(v);
  }
  REQUIRE(all.size() == 20);
  for (std::size_t i = 0; i < 20; i++) CHECK(all[i] == static_cast<float>(i) * 0.5f);
  CHECK(labels == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 0, 1, 2});
  CHECK(loader.epoch() == 1);
  std::int64_t position = 0;
  for (const Batch& batch : loader) {
    CHECK(batch.epoch == 1);
    CHECK(batch.position == position++);
    CHECK(batch.size() == batch.x.size(0));
  }
  for (auto [x, y] : loader) CHECK(x.size(0) == y.size(0));
}

TEST_CASE("loader: the same bits for every number of threads, shuffled and augmented") {
  SyntheticDataset dataset({.size = 61, .channels = 3, .height = 9, .width = 7, .classes = 4});
  LoaderOptions options{
      .batch_size = 8,
      .shuffle = true,
      .seed = 11,
      .transform = compose({random_crop({.padding = 2}), random_horizontal_flip(), normalize({0.5}, {0.25})})};
  DataLoader reference(dataset, with(0, options));
  const std::vector<Seen> expected = epochs(reference, 3);
  REQUIRE(expected.size() == 24);
  for (int workers : {1, 2, 3, 7}) {
    for (int prefetch : {1, 2, 5}) {
      CAPTURE(workers);
      CAPTURE(prefetch);
      options.prefetch = prefetch;
      DataLoader loader(dataset, with(workers, options));
      CHECK(epochs(loader, 3) == expected);
      CHECK(loader.replaced_buffers() == 0);
    }
  }
  CHECK(expected[0].indices != expected[8].indices);  // a new order each epoch
  // The augmentation belongs to the sample and the epoch: the batch size does not matter, the epoch does.
  options.batch_size = 61;
  DataLoader one(dataset, with(2, options));
  const std::vector<Seen> whole = epochs(one, 2);
  CHECK(whole[0].indices != whole[1].indices);
  CHECK(std::equal(expected[0].x.begin(), expected[0].x.end(), whole[0].x.begin()));
  options.seed = 12;
  DataLoader other(dataset, with(2, options));
  CHECK(epochs(other, 1)[0].indices != whole[0].indices);
}

TEST_CASE("loader: drop_last and what it drops") {
  Counting dataset(10);
  for (int workers : {0, 2}) {
    DataLoader loader(dataset,
                      {.batch_size = 4, .shuffle = true, .drop_last = true, .num_workers = workers, .seed = 5});
    CHECK(loader.size() == 2);
    std::set<std::int64_t> rest{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const std::vector<std::int64_t> dropped = loader.dropped();
    CHECK(dropped.size() == 2);
    for (const Batch& batch : loader)
      for (std::int64_t index : batch.indices) CHECK(rest.erase(index) == 1);
    CHECK(rest == std::set<std::int64_t>(dropped.begin(), dropped.end()));
  }
}

TEST_CASE("loader: goes on from any position as if nothing had happened") {
  SyntheticDataset dataset({.size = 23, .channels = 1, .height = 6, .width = 6});
  LoaderOptions options{.batch_size = 5, .shuffle = true, .seed = 2, .transform = random_crop({.padding = 1})};
  DataLoader reference(dataset, with(0, options));
  const std::vector<Seen> all = epochs(reference, 3);
  for (int workers : {0, 1, 3}) {
    for (std::int64_t at = 0; at <= 5; at++) {
      CAPTURE(workers);
      CAPTURE(at);
      DataLoader loader(dataset, with(workers, options));
      loader.set_state({2, 1, at});
      std::vector<Seen> rest = epochs(loader, 2);
      CHECK(rest == std::vector<Seen>(all.begin() + 5 + at, all.end()));
    }
  }
  // The state in the loop's body counts the batch in hand.
  DataLoader loader(dataset, with(2, options));
  LoaderState state;
  for (const Batch& batch : loader)
    if (batch.position == 2) {
      state = loader.state();
      break;
    }
  CHECK(state == LoaderState{2, 0, 3});
  DataLoader resumed(dataset, with(3, options));
  resumed.set_state(state);
  CHECK(epochs(resumed, 1) == std::vector<Seen>(all.begin() + 3, all.begin() + 5));
  CHECK(resumed.state() == LoaderState{2, 1, 0});
  // Leaving the loop early and looping again is the next epoch.
  CHECK(epochs(loader, 1) == std::vector<Seen>(all.begin() + 5, all.begin() + 10));
  loader.set_epoch(1);
  CHECK(epochs(loader, 1) == std::vector<Seen>(all.begin() + 5, all.begin() + 10));
  CHECK_THROWS_AS(loader.set_state({3, 0, 0}), ArgumentError);
  CHECK_THROWS_AS(loader.set_state({2, 0, 6}), ArgumentError);
  CHECK_THROWS_AS(loader.set_state({2, -1, 0}), ArgumentError);
}

TEST_CASE("loader: an error comes out at its batch, with the sample and its type") {
  for (int workers : {0, 1, 3}) {
    CAPTURE(workers);
    Failing dataset(40, {17, 18, 30}, [] { LIMPID_THROW(ShapeError, "[user] seven is not eight"); });
    DataLoader loader(dataset, {.batch_size = 4, .num_workers = workers, .prefetch = 3});
    int batches = 0;
    const std::string message = thrown<ShapeError>([&] {
      for (const Batch& batch : loader) batches += batch.size() > 0 ? 1 : 0;
    });
    CHECK(message == "[loader] sample 17: [user] seven is not eight");
    CHECK(batches == 4);
    CHECK(loader.state() == LoaderState{0, 0, 4});
    // The batch can be passed over; the next fault is met at its own place.
    loader.set_state({0, 0, 5});
    batches = 0;
    CHECK(thrown<ShapeError>([&] {
            for (const Batch& batch : loader) batches += batch.size() > 0 ? 1 : 0;
          }).find("sample 30") != std::string::npos);
    CHECK(batches == 2);
    loader.set_state({0, 0, 8});
    CHECK(epochs(loader, 1).size() == 2);
  }
}

TEST_CASE("loader: foreign exceptions become DataError and stay nested") {
  for (int workers : {0, 2}) {
    Failing dataset(8, {3}, [] { throw std::runtime_error("disk on fire"); });
    DataLoader loader(dataset, {.batch_size = 2, .num_workers = workers});
    std::string inner;
    try {
      epochs(loader, 1);
      FAIL_CHECK("nothing was thrown");
    } catch (const DataError& error) {
      CHECK(std::string(error.what()) == "[loader] sample 3: disk on fire");
      try {
        std::rethrow_if_nested(error);
      } catch (const std::runtime_error& original) {
        inner = original.what();
      }
    }
    CHECK(inner == "disk on fire");
    Failing odd(8, {3}, [] { throw 5; });
    DataLoader odd_loader(odd, {.batch_size = 2, .num_workers = workers});
    CHECK(thrown<DataError>([&] { epochs(odd_loader, 1); }) == "[loader] sample 3: an exception of an unknown type");
  }
}

TEST_CASE("loader: examples that differ are named") {
  class Growing final : public Counting {
   public:
    using Counting::Counting;
    Example get(std::int64_t index) const override { return {ones({index < 5 ? 2 : 3}), index, {}}; }
  };
  for (int workers : {0, 2}) {
    Growing dataset(8);
    DataLoader loader(dataset, {.batch_size = 4, .num_workers = workers});
    CHECK(thrown<ShapeError>([&] { epochs(loader, 1); }) ==
          "[loader] sample 5: [dataset] the input has shape [3], others have [2]");
  }
}

TEST_CASE("loader: leaving early and destroying it at any moment") {
  SyntheticDataset dataset({.size = 200, .channels = 1, .height = 8, .width = 8});
  for (int round = 0; round < 30; round++) {
    DataLoader loader(dataset, {.batch_size = 3, .shuffle = true, .num_workers = 3, .prefetch = 1 + round % 4});
    int left = round % 5;
    if (left == 0) continue;  // never started
    for (const Batch& batch : loader) {
      CHECK(batch.size() == 3);
      if (--left == 0) break;
    }
    if (round % 2) {
      auto it = loader.begin();
      CHECK(it->epoch == 1);
    }
  }
  // Restarted many times without finishing.
  DataLoader loader(dataset, {.batch_size = 3, .num_workers = 3});
  for (std::int64_t e = 0; e < 20; e++) CHECK(loader.begin()->epoch == e);
}

TEST_CASE("loader: a batch stays valid as long as it is held") {
  for (int workers : {0, 1, 3}) {
    CAPTURE(workers);
    Counting dataset(60);
    std::vector<Batch> kept;
    std::vector<Tensor> inputs;
    {
      DataLoader loader(dataset, {.batch_size = 5, .num_workers = workers, .prefetch = 2});
      const std::uint64_t start = io_live();
      for (const Batch& batch : loader) {
        if (batch.position % 2 == 0) kept.push_back(batch);
        inputs.push_back(raw::select(batch.x, 0, 1));  // a view keeps it too
      }
      CHECK(loader.replaced_buffers() > 0);
      CHECK(io_live() > start);
    }
    for (const Batch& batch : kept)
      for (std::size_t i = 0; i < 5; i++)
        CHECK(batch.x.to_vector<float>()[2 * i] == static_cast<float>(batch.indices[i]));
    for (std::size_t i = 0; i < inputs.size(); i++)
      CHECK(inputs[i].to_vector<float>()[0] == static_cast<float>(5 * i + 1));
  }
}

TEST_CASE("loader: the ring is in the io pool, and nothing else is taken anywhere") {
  const std::uint64_t before = io_live();
  {
    SyntheticDataset dataset({.size = 64, .channels = 3, .height = 8, .width = 8});
    DataLoader loader(dataset, {.batch_size = 16, .num_workers = 2, .prefetch = 3});
    const std::size_t ring = 4 * 16 * (3 * 8 * 8 * 4 + 8);
    CHECK(loader.ring_bytes() == ring);
    CHECK(io_live() - before == ring);
    CHECK(memory::io_allocator().ledger().role(memory::Role::io) >= ring);
    const std::uint64_t host = host_live();
    for (const Batch& batch : loader) {
      CHECK(batch.x.storage()->role() == memory::Role::io);
      CHECK(io_live() - before == ring);
      CHECK(host_live() == host);
    }
  }
  CHECK(io_live() == before);
}

TEST_CASE("loader: tensors made by a user's data set stay out of the training pool") {
  Counting dataset(50);
  const auto former = memory::memory_stats(memory::host_allocator().stats());
  for (int workers : {0, 3}) {
    DataLoader loader(dataset, {.batch_size = 4, .num_workers = workers});
    for (const Batch& batch : loader) CHECK(batch.size() > 0);
  }
  CHECK(dataset.calls >= 100);
  CHECK(memory::memory_stats(memory::host_allocator().stats()) == former);
}

TEST_CASE("loader: tensor dataset of any dtype, subset, owned data set") {
  auto whole = std::make_shared<TensorDataset>(raw::reshape(arange(12, {.dtype = int32}), {6, 2}),
                                               ones({6, 3}, {.dtype = float64}));
  DataLoader loader(std::make_shared<Subset>(whole, std::vector<std::int64_t>{5, 1, 3}),
                    {.batch_size = 2, .num_workers = 1});
  std::vector<std::int64_t> values;
  for (auto& [x, y] : loader) {
    CHECK(x.dtype() == int32);
    CHECK(y.dtype() == float64);
    CHECK(y.size(1) == 3);
    for (std::int64_t v : x.to_vector<std::int64_t>()) values.push_back(v);
  }
  CHECK(values == std::vector<std::int64_t>{10, 11, 2, 3, 6, 7});
}

TEST_CASE("loader: a collate function joins examples of unequal length") {
  class Words final : public Dataset {
   public:
    std::int64_t size() const override { return 9; }
    Example get(std::int64_t index) const override {
      return {full({1 + index % 4}, static_cast<double>(index)), index, {}};
    }
  };
  const Collate pad = [](const std::vector<Example>& examples) {
    std::int64_t longest = 0;
    for (const Example& e : examples) longest = std::max(longest, e.input.size(0));
    Tensor x = full({static_cast<std::int64_t>(examples.size()), longest}, -1.0);
    std::vector<std::int64_t> lengths;
    for (std::size_t i = 0; i < examples.size(); i++) {
      lengths.push_back(examples[i].input.size(0));
      std::memcpy(x.mutable_data<float>() + static_cast<std::int64_t>(i) * longest, examples[i].input.data<float>(),
                  examples[i].input.nbytes());
    }
    return std::pair(x, from_vector<std::int64_t>(lengths, {static_cast<std::int64_t>(examples.size())}));
  };
  Words dataset;
  DataLoader reference(dataset, {.batch_size = 2, .shuffle = true, .collate = pad});
  const std::vector<Seen> expected = epochs(reference, 2);
  CHECK(expected.size() == 10);
  CHECK(reference.ring_bytes() == 0);
  for (int workers : {1, 3}) {
    DataLoader loader(dataset, {.batch_size = 2, .shuffle = true, .num_workers = workers, .collate = pad});
    CHECK(epochs(loader, 2) == expected);
    DataLoader failing(dataset, {.batch_size = 2,
                                 .num_workers = workers,
                                 .collate = [](const std::vector<Example>&) -> std::pair<Tensor, Tensor> {
                                   LIMPID_THROW(ShapeError, "no");
                                 }});
    CHECK(thrown<ShapeError>([&] { epochs(failing, 1); }) == "[loader] collating batch 0: no");
    DataLoader stacking(dataset, {.batch_size = 2, .num_workers = workers, .collate = stack_examples});
    CHECK(thrown<ShapeError>([&] { epochs(stacking, 1); }).find("collating batch 0") != std::string::npos);
  }
}

TEST_CASE("loader: a sampler of the user's") {
  class Backwards final : public Sampler {
   public:
    std::vector<std::int64_t> order(std::int64_t epoch) const override {
      if (epoch == 2) return {0, 99};
      return {4, 3, 2, 2};  // repeats and leaves out
    }
  };
  Counting dataset(5);
  DataLoader loader(dataset, {.batch_size = 3, .num_workers = 2, .sampler = std::make_shared<Backwards>()});
  CHECK(loader.size() == 2);
  auto all = epochs(loader, 1);
  CHECK(all[0].indices == std::vector<std::int64_t>{4, 3, 2});
  CHECK(all[1].indices == std::vector<std::int64_t>{2});
  CHECK_THROWS_WITH_AS(loader.set_epoch(2), doctest::Contains("example 99 of a data set of 5"), IndexError);
}

TEST_CASE("loader: a batch again by its examples") {
  SyntheticDataset dataset({.size = 30, .channels = 1, .height = 6, .width = 6});
  DataLoader loader(
      dataset,
      {.batch_size = 7, .shuffle = true, .num_workers = 2, .seed = 4, .transform = random_crop({.padding = 2})});
  for (int e = 0; e < 2; e++) {
    for (const Batch& batch : loader) {
      Batch again = loader.load(batch.indices, batch.epoch);
      CHECK(again.x.to_vector<float>() == batch.x.to_vector<float>());
      CHECK(again.y.to_vector<std::int64_t>() == batch.y.to_vector<std::int64_t>());
      CHECK(again.x.storage().get() != batch.x.storage().get());
    }
  }
  CHECK_THROWS_AS(loader.load({}, 0), ArgumentError);
  CHECK_THROWS_AS(loader.load({30}, 0), IndexError);
}

TEST_CASE("loader: all threads fill one batch, and waiting is counted") {
  class Slow final : public Counting {
   public:
    using Counting::Counting;
    Example get(std::int64_t index) const override {
      {
        std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return Counting::get(index);
    }
    mutable std::mutex mutex;
    mutable std::set<std::thread::id> threads;
  };
  Slow dataset(24);
  DataLoader loader(dataset, {.batch_size = 24, .num_workers = 3, .prefetch = 1});
  dataset.threads.clear();  // the constructor asks for one example
  CHECK(epochs(loader, 1).size() == 1);
  CHECK(dataset.threads.size() > 1);
  CHECK(dataset.threads.count(std::this_thread::get_id()) == 0);
  CHECK(loader.wait_seconds() > 0);
  DataLoader here(dataset, {.batch_size = 24});
  dataset.threads.clear();
  epochs(here, 1);
  CHECK(dataset.threads == std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST_CASE("loader: options out of range") {
  Counting dataset(10), none(0);
  CHECK_THROWS_AS(DataLoader(dataset, {.batch_size = 0}), ArgumentError);
  CHECK_THROWS_AS(DataLoader(dataset, {.num_workers = -1}), ArgumentError);
  CHECK_THROWS_AS(DataLoader(dataset, {.prefetch = 0}), ArgumentError);
  CHECK_THROWS_AS(DataLoader(dataset, {.shuffle = true, .sampler = std::make_shared<SequentialSampler>(10)}),
                  ArgumentError);
  CHECK_THROWS_AS(DataLoader(dataset, {.batch_size = 11, .drop_last = true}), DataError);
  CHECK_THROWS_AS(DataLoader(none, {}), DataError);
  CHECK_THROWS_AS(DataLoader(DatasetPtr(), {}), ArgumentError);
  CHECK_THROWS_AS(DataLoader(dataset, {.transform = normalize({0}, {1})}), ShapeError);
  DataLoader large(dataset, {.batch_size = 1000});
  CHECK(large.batch_sizes() == std::vector<std::int64_t>{10});
  CHECK(large.ring_bytes() == 10 * 16);
}
