#include <algorithm>
#include <cmath>
#include <cstring>

#include <limpid/data/cifar10.h>
#include <limpid/data/folder.h>
#include <limpid/data/idx.h>
#include <limpid/data/registry.h>
#include <limpid/data/sampler.h>
#include <limpid/data/split.h>
#include <limpid/data/synthetic.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/raw.h>

#include "data_test.h"

using namespace limpid;
using namespace limpid::data;
using namespace data_test;

namespace {

Tensor parse(const Bytes& bytes) { return parse_idx(bytes.data(), bytes.size(), "test file"); }

// MNIST-like files for `count` images in `dir`.
void write_idx_pair(const std::string& dir, const std::string& half, std::uint32_t count, bool packed = false) {
  Bytes pixels, labels;
  for (std::uint32_t i = 0; i < count; i++) {
    for (int p = 0; p < 784; p++) pixels.push_back(static_cast<std::uint8_t>(i + static_cast<std::uint32_t>(p)));
    labels.push_back(static_cast<std::uint8_t>(i % 10));
  }
  Bytes images = idx({count, 28, 28}, pixels), classes = idx({count}, labels);
  const std::string end = packed ? ".gz" : "";
  write_bytes(dir + "/" + half + "-images-idx3-ubyte" + end, packed ? gzip(images) : images);
  write_bytes(dir + "/" + half + "-labels-idx1-ubyte" + end, packed ? gzip(classes) : classes);
}

Bytes cifar_records(int count) {
  Bytes out;
  for (int r = 0; r < count; r++) {
    out.push_back(static_cast<std::uint8_t>(r % 10));
    for (int p = 0; p < 3072; p++) out.push_back(static_cast<std::uint8_t>(r + p));
  }
  return out;
}

std::vector<float> input_of(const Dataset& dataset, std::int64_t index) {
  return dataset.get(index).input.to_vector<float>();
}

}  // namespace

TEST_CASE("idx: plain and packed arrays") {
  const Bytes elements{1, 2, 3, 4, 5, 6};
  for (bool packed : {false, true}) {
    Bytes file = idx({2, 3}, elements);
    if (packed) file = gzip(file);
    Tensor x = parse(file);
    CHECK(x.shape() == Shape{2, 3});
    CHECK(x.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
    CHECK(x.storage()->role() == memory::Role::io);
  }
  CHECK(parse(idx({0, 5}, {})).numel() == 0);
}

TEST_CASE("idx: every fault has its message") {
  const Bytes six{1, 2, 3, 4, 5, 6};
  CHECK_THROWS_WITH_AS(parse({1, 0, 8, 1, 0, 0, 0, 0}), doctest::Contains("no IDX file"), DataError);
  CHECK_THROWS_WITH_AS(parse(idx({6}, six, 13)), doctest::Contains("element type 13"), DataError);
  CHECK_THROWS_WITH_AS(parse({0, 0, 8, 0}), doctest::Contains("rank 0"), DataError);
  CHECK_THROWS_WITH_AS(parse(idx({1, 1, 1, 1, 1}, {1})), doctest::Contains("rank 5"), DataError);
  CHECK_THROWS_WITH_AS(parse(idx({7}, six)), doctest::Contains("truncated"), DataError);
  CHECK_THROWS_WITH_AS(parse(idx({5}, six)), doctest::Contains("1 bytes after the end"), DataError);
  CHECK_THROWS_WITH_AS(parse(gzip(idx({5}, six))), doctest::Contains("goes on after the last element"), DataError);
  CHECK_THROWS_WITH_AS(parse(gzip(idx({7}, six))), doctest::Contains("truncated"), DataError);
  Bytes trailing = gzip(idx({6}, six));
  trailing.push_back(0);
  CHECK_THROWS_WITH_AS(parse(trailing), doctest::Contains("1 bytes after the end"), DataError);
  const std::uint32_t most = 0xffffffffu;
  CHECK_THROWS_WITH_AS(parse(idx({most, most, most}, six)), doctest::Contains("overflow"), DataError);
  CHECK_THROWS_WITH_AS(parse(idx({most, 2}, six)), doctest::Contains("more than the accepted"), DataError);
  // A small file that claims 3 GB gets no 3 GB, packed or not.
  const auto live = memory::io_allocator().ledger().live_total;
  CHECK_THROWS_WITH_AS(parse(idx({3000000000u}, six)), doctest::Contains("cannot hold them"), DataError);
  CHECK_THROWS_WITH_AS(parse(gzip(idx({3000000000u}, six))), doctest::Contains("cannot hold them"), DataError);
  CHECK(memory::io_allocator().ledger().live_total == live);
}

TEST_CASE("idx: cut at every length, damaged") {
  const Bytes plain = idx({4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  for (const Bytes& file : {plain, gzip(plain)}) {
    cut_everywhere(file, [](const Bytes& bytes) { parse(bytes); });
    CHECK(damage(file, 11, 2000, [](const Bytes& bytes) { parse(bytes); }) > 500);
  }
}

TEST_CASE("long: idx: many damaged files") {
  const Bytes plain = idx({40, 3}, Bytes(120, 9));
  for (const Bytes& file : {plain, gzip(plain)}) damage(file, 12, 200000, [](const Bytes& bytes) { parse(bytes); });
}

TEST_CASE("fashion-mnist and mnist from files") {
  TemporaryFolder folder;
  write_idx_pair(folder.path(), "train", 12);
  write_idx_pair(folder.path(), "t10k", 3, true);
  auto train = fashion_mnist(folder.path(), true);
  CHECK(train->size() == 12);
  CHECK(train->num_classes() == 10);
  CHECK(train->class_names()[9] == "Ankle boot");
  CHECK(train->spec().input_shape == Shape{1, 28, 28});
  Example example = train->get(11);
  CHECK(example.label == 1);
  CHECK(example.input.to_vector<float>()[3] == 14.0f / 255.0f);
  CHECK_THROWS_AS(train->get(12), IndexError);
  CHECK_THROWS_AS(train->get(-1), IndexError);
  CHECK(mnist(folder.path(), false)->size() == 3);
  CHECK(mnist(folder.path(), false)->class_names()[7] == "7");

  write_bytes(folder / "t10k-labels-idx1-ubyte.gz", idx({2}, {1, 2}));
  CHECK_THROWS_WITH_AS(mnist(folder.path(), false), doctest::Contains("3 images and 2 labels"), DataError);
  write_bytes(folder / "t10k-labels-idx1-ubyte.gz", idx({3}, {1, 10, 2}));
  CHECK_THROWS_WITH_AS(mnist(folder.path(), false), doctest::Contains("label 1 is 10, there are 10 classes"),
                       DataError);
  write_bytes(folder / "t10k-labels-idx1-ubyte.gz", idx({1, 3}, {1, 1, 2}));
  CHECK_THROWS_WITH_AS(mnist(folder.path(), false), doctest::Contains("expected [N]"), DataError);
  write_bytes(folder / "t10k-images-idx3-ubyte.gz", idx({3, 2, 2}, Bytes(12)));
  CHECK_THROWS_WITH_AS(mnist(folder.path(), false), doctest::Contains("expected [N,28,28]"), DataError);
  std::filesystem::remove(folder / "train-labels-idx1-ubyte");
  CHECK_THROWS_WITH_AS(mnist(folder.path(), true), doctest::Contains("train-labels-idx1-ubyte"), DataError);
}

TEST_CASE("cifar10: records, names and faults") {
  TemporaryFolder folder;
  const std::string inner = folder.make_folder("cifar-10-batches-bin");
  for (int i = 1; i <= 5; i++) write_bytes(inner + "/data_batch_" + std::to_string(i) + ".bin", cifar_records(2));
  write_bytes(inner + "/test_batch.bin", cifar_records(3));
  for (const std::string& dir : {folder.path(), inner}) {
    auto train = cifar10(dir, true);
    CHECK(train->size() == 10);
    CHECK(train->spec().input_shape == Shape{3, 32, 32});
    CHECK(train->class_names()[9] == "truck");
    CHECK(train->get(3).label == 1);
    CHECK(input_of(*train, 3)[1024] == static_cast<float>((1 + 1024) % 256) / 255.0f);
    CHECK(cifar10(dir, false)->size() == 3);
  }
  const std::string bad = folder / "bad.bin";
  for (std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{3072}, std::size_t{3074}, std::size_t{6145}}) {
    Bytes bytes = cifar_records(2);
    bytes.resize(length);
    write_bytes(bad, bytes);
    CHECK_THROWS_WITH_AS(cifar10_files({bad}), doctest::Contains("not a whole number of records"), DataError);
  }
  Bytes wrong = cifar_records(2);
  wrong[3073] = 10;
  write_bytes(bad, wrong);
  CHECK_THROWS_WITH_AS(cifar10_files({bad}), doctest::Contains("record 1 has class 10"), DataError);
  CHECK_THROWS_AS(cifar10_files({}), ArgumentError);
  std::filesystem::remove(inner + "/data_batch_4.bin");
  CHECK_THROWS_WITH_AS(cifar10(folder.path(), true), doctest::Contains("data_batch"), DataError);
}

TEST_CASE("folder: classes by name, sizes, broken images") {
  TemporaryFolder folder;
  const std::string cats = folder.make_folder("cats"), dogs = folder.make_folder("dogs");
  const Bytes small = gradient(8, 6, 3), large = gradient(16, 12, 3, 9);
  write_bytes(cats + "/b.jpg", encode_jpeg(small, 8, 6, 3));
  write_bytes(cats + "/a.PNG", encode_png(small.data(), 8, 6, PNG_FORMAT_RGB));
  write_bytes(dogs + "/z.jpeg", encode_jpeg(gradient(8, 6, 3, 50), 8, 6, 3));
  write_bytes(dogs + "/notes.txt", {1, 2});
  write_bytes(folder / "readme.txt", {1});

  FolderDataset own(folder.path());
  CHECK(own.size() == 3);
  CHECK(own.ignored() == 2);
  CHECK(own.class_names() == std::vector<std::string>{"cats", "dogs"});
  CHECK(own.path(0) == cats + "/a.PNG");
  CHECK(own.spec().input_shape == Shape{3, 6, 8});
  CHECK(own.get(2).label == 1);
  std::vector<float> planes = input_of(own, 0);
  CHECK(planes[0] == static_cast<float>(small[0]) / 255.0f);
  CHECK(planes[48] == static_cast<float>(small[1]) / 255.0f);  // the green plane
  CHECK_THROWS_AS(own.get(3), IndexError);

  FolderDataset resized(folder.path(), {.height = 4, .width = 5, .channels = 1, .cache = true});
  CHECK(resized.spec().input_shape == Shape{1, 4, 5});
  const std::vector<float> first = input_of(resized, 1);
  CHECK(input_of(resized, 1) == first);  // from the cache

  write_bytes(dogs + "/big.png", encode_png(large.data(), 16, 12, PNG_FORMAT_RGB));
  Bytes broken = encode_jpeg(small, 8, 6, 3);
  broken.resize(broken.size() / 2);
  write_bytes(dogs + "/broken.jpg", broken);
  FolderDataset fatal(folder.path());
  CHECK(fatal.size() == 5);
  CHECK_THROWS_WITH_AS(fatal.get(2), doctest::Contains("big.png is 12x16 (height x width), the first image is 6x8"),
                       DataError);
  CHECK_THROWS_WITH_AS(fatal.get(3), doctest::Contains((dogs + "/broken.jpg").c_str()), DataError);

  FolderDataset skipping(folder.path(), {.height = 6, .width = 8, .on_broken = BrokenImage::skip});
  CHECK(skipping.size() == 4);
  REQUIRE(skipping.skipped().size() == 1);
  CHECK(skipping.skipped()[0].path == dogs + "/broken.jpg");
  CHECK(skipping.skipped()[0].reason.find("broken.jpg") != std::string::npos);
  for (std::int64_t i = 0; i < 4; i++) CHECK_NOTHROW(skipping.get(i));
  FolderDataset strict(folder.path(), {.on_broken = BrokenImage::skip, .cache = true});
  CHECK(strict.size() == 3);  // the larger one is left out too
  CHECK(strict.skipped().size() == 2);
  CHECK(input_of(strict, 0) == planes);
}

TEST_CASE("folder: nothing to read") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(FolderDataset(folder / "none"), doctest::Contains("not a folder"), DataError);
  CHECK_THROWS_WITH_AS(FolderDataset(folder.path()), doctest::Contains("no class folder"), DataError);
  const std::string a = folder.make_folder("a");
  CHECK_THROWS_WITH_AS(FolderDataset(folder.path()), doctest::Contains("hold no .jpg"), DataError);
  write_bytes(a + "/x.jpg", {});
  CHECK_THROWS_WITH_AS(FolderDataset(folder.path(), {.on_broken = BrokenImage::skip}),
                       doctest::Contains("all 1 images"), DataError);
  CHECK_THROWS_AS(FolderDataset(folder.path()), DataError);
  CHECK_THROWS_AS(FolderDataset(folder.path(), {.height = 3}), ArgumentError);
  CHECK_THROWS_AS(FolderDataset(folder.path(), {.channels = 4}), ArgumentError);
}

TEST_CASE("tensor dataset: rows, dtypes, views") {
  Tensor x = raw::reshape(arange(24, {.dtype = float32}), {4, 2, 3});
  TensorDataset classes(x, from_vector<std::int64_t>({0, 2, 1, 2}, {4}));
  CHECK(classes.size() == 4);
  CHECK(classes.num_classes() == 3);
  CHECK(classes.get(1).label == 2);
  CHECK(input_of(classes, 1) == std::vector<float>{6, 7, 8, 9, 10, 11});
  TensorDataset strided(raw::transpose(raw::reshape(arange(6, {.dtype = int32}), {2, 3}), 0, 1),
                        ones({3, 2}, {.dtype = float64}));
  CHECK(strided.size() == 3);
  CHECK(strided.num_classes() == 0);
  CHECK(strided.spec().target_shape == Shape{2});
  CHECK(strided.spec().target_dtype == float64);
  CHECK(strided.get(1).input.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 4});
  CHECK_THROWS_AS(TensorDataset(x, ones({3})), ShapeError);
  CHECK_THROWS_AS(TensorDataset(x, Tensor()), ArgumentError);
  CHECK_THROWS_AS(classes.get(4), IndexError);
}

TEST_CASE("stack: joins examples, names what differs") {
  std::vector<Example> examples{{ones({2}), 3, {}}, {zeros({2}), 4, {}}};
  auto [x, y] = stack_examples(examples);
  CHECK(x.to_vector<float>() == std::vector<float>{1, 1, 0, 0});
  CHECK(y.to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 4});
  examples[1].input = ones({3});
  CHECK_THROWS_AS(stack_examples(examples), ShapeError);
  examples[1].input = ones({2}, {.dtype = float64});
  CHECK_THROWS_AS(stack_examples(examples), DTypeError);
  examples[1] = {ones({2}), 0, ones({2})};
  CHECK_THROWS_AS(stack_examples(examples), ShapeError);
  examples[1] = {};
  CHECK_THROWS_AS(stack_examples(examples), DataError);
  CHECK_THROWS_AS(stack_examples({}), DataError);
}

TEST_CASE("synthetic: same seed, same bits; classes differ") {
  SyntheticOptions options{.size = 200, .channels = 1, .height = 12, .width = 9, .classes = 3, .seed = 5};
  SyntheticDataset a(options), b(options);
  CHECK(a.spec().input_shape == Shape{1, 12, 9});
  CHECK(input_of(a, 17) == input_of(b, 17));
  options.train = false;
  SyntheticDataset test(options);
  CHECK(input_of(test, 17) != input_of(a, 17));
  options.seed = 6;
  CHECK(input_of(SyntheticDataset(options), 17) != input_of(test, 17));
  // The nearest mean of the training half tells the classes of the test half: there is something to learn.
  std::vector<std::vector<double>> means(3, std::vector<double>(108));
  std::vector<double> counts(3);
  for (std::int64_t i = 0; i < a.size(); i++) {
    Example e = a.get(i);
    REQUIRE(e.label >= 0);
    REQUIRE(e.label < 3);
    auto v = e.input.to_vector<double>();
    counts[static_cast<std::size_t>(e.label)]++;
    for (std::size_t k = 0; k < 108; k++) {
      CHECK((v[k] >= 0.0 && v[k] <= 1.0));
      means[static_cast<std::size_t>(e.label)][k] += v[k];
    }
  }
  int right = 0;
  for (std::int64_t i = 0; i < test.size(); i++) {
    Example e = test.get(i);
    auto v = e.input.to_vector<double>();
    double best = 1e300;
    std::int64_t guess = -1;
    for (std::size_t c = 0; c < 3; c++) {
      double distance = 0;
      for (std::size_t k = 0; k < 108; k++) distance += std::pow(v[k] - means[c][k] / counts[c], 2);
      if (distance < best) best = distance, guess = static_cast<std::int64_t>(c);
    }
    right += guess == e.label ? 1 : 0;
  }
  CHECK(right > 160);
  CHECK_THROWS_AS(SyntheticDataset({.size = 0}), ArgumentError);
  CHECK_THROWS_AS(SyntheticDataset({.classes = 0}), ArgumentError);
  CHECK_THROWS_AS(SyntheticDataset({.noise = -1}), ArgumentError);
  CHECK_THROWS_AS(a.get(200), IndexError);
}

TEST_CASE("permutation: every index once, by key, near uniform") {
  for (std::int64_t n : {0, 1, 2, 7, 1000}) {
    auto order = permutation(n, 42);
    CHECK(permutation(n, 42) == order);
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < n; i++) CHECK(order[static_cast<std::size_t>(i)] == i);
  }
  CHECK(permutation(1000, 1) != permutation(1000, 2));
  int counts[3][3] = {};
  for (std::uint64_t key = 0; key < 3000; key++) {
    auto order = permutation(3, key);
    for (int place = 0; place < 3; place++) counts[place][order[static_cast<std::size_t>(place)]]++;
  }
  for (auto& row : counts)
    for (int count : row) CHECK((count > 850 && count < 1150));
  CHECK(RandomSampler(50, 1).order(0) != RandomSampler(50, 1).order(1));
  CHECK(RandomSampler(50, 1).order(3) == RandomSampler(50, 1).order(3));
}

TEST_CASE("batch plan: sizes, tail, dropped") {
  BatchPlan keep({5, 6, 7, 8, 9}, 2, false), drop({5, 6, 7, 8, 9}, 2, true);
  CHECK(keep.sizes() == std::vector<std::int64_t>{2, 2, 1});
  CHECK(keep.dropped().empty());
  CHECK(keep.indices(2)[0] == 9);
  CHECK(drop.sizes() == std::vector<std::int64_t>{2, 2});
  CHECK(drop.dropped() == std::vector<std::int64_t>{9});
  CHECK_THROWS_AS(drop.indices(2), IndexError);
  CHECK_THROWS_AS(BatchPlan({1}, 0, false), ArgumentError);
  CHECK(BatchPlan({}, 4, false).size() == 0);
}

TEST_CASE("split and limit: seeded, disjoint, complete") {
  auto whole =
      std::make_shared<SyntheticDataset>(SyntheticOptions{.size = 101, .channels = 1, .height = 2, .width = 2});
  auto [train, held] = split(whole, 0.1, 3);
  CHECK(held->size() == 10);
  CHECK(train->size() == 91);
  std::vector<std::int64_t> all = train->indices();
  all.insert(all.end(), held->indices().begin(), held->indices().end());
  std::sort(all.begin(), all.end());
  for (std::int64_t i = 0; i < 101; i++) CHECK(all[static_cast<std::size_t>(i)] == i);
  CHECK(split(whole, 0.1, 3).second->indices() == held->indices());
  CHECK(split(whole, 0.1, 4).second->indices() != held->indices());
  CHECK(input_of(*held, 2) == input_of(*whole, held->indices()[2]));
  CHECK(held->num_classes() == 10);
  CHECK_THROWS_AS(held->get(10), IndexError);
  CHECK_THROWS_AS(split(whole, 1.0, 0), ArgumentError);
  CHECK_THROWS_AS(split(whole, -0.1, 0), ArgumentError);
  CHECK_THROWS_AS(Subset(whole, {101}), IndexError);
  CHECK(limit(whole, 5, 1)->size() == 5);
  CHECK(limit(whole, 500, 1)->size() == 101);
  CHECK_THROWS_AS(limit(whole, 0, 1), ArgumentError);
}

TEST_CASE("registry: names, places, halves") {
  TemporaryFolder folder;
  const std::string inner = folder.make_folder("fashion-mnist");
  write_idx_pair(inner, "train", 4);
  write_idx_pair(inner, "t10k", 2);
  for (OpenOptions options : {OpenOptions{.name = "fashion-mnist", .data_dir = folder.path()},
                              OpenOptions{.name = "fashion-mnist", .data_dir = inner},
                              OpenOptions{.name = "fashion-mnist", .search_paths = {"/none", folder.path()}}}) {
    OpenedDataset opened = open_dataset(options);
    CHECK(opened.dataset->size() == 4);
    CHECK(opened.location == inner);
    options.train = false;
    CHECK(open_dataset(options).dataset->size() == 2);
  }
  CHECK_THROWS_WITH_AS(open_dataset({.name = "mnist", .search_paths = {folder.path()}}),
                       doctest::Contains((folder / "mnist").c_str()), DataError);
  CHECK_THROWS_WITH_AS(open_dataset({.name = "imagenet"}), doctest::Contains("fashion-mnist, mnist, cifar10"),
                       ArgumentError);
  CHECK(!find_dataset("cifar10", "", {folder.path()}));

  OpenedDataset synthetic = open_dataset({.name = "synthetic", .height = 8, .width = 8, .channels = 1, .classes = 4});
  CHECK(synthetic.dataset->size() == 10000);
  CHECK(synthetic.dataset->num_classes() == 4);
  CHECK(synthetic.location == "generated");

  const std::string images = folder.make_folder("images/train/a");
  const Bytes pixels = gradient(8, 8, 3);
  write_bytes(images + "/1.png", encode_png(pixels.data(), 8, 8, PNG_FORMAT_RGB));
  CHECK(open_dataset({.name = "folder", .data_dir = folder / "images"}).location == folder / "images/train");
  CHECK_THROWS_WITH_AS(open_dataset({.name = "folder", .data_dir = folder / "images", .train = false}),
                       doctest::Contains("neither a test nor a val folder"), DataError);
  CHECK(open_dataset({.name = "folder", .data_dir = folder / "images/train"}).dataset->size() == 1);
  CHECK_THROWS_AS(open_dataset({.name = "folder"}), ArgumentError);
  CHECK(known_stats("mnist")->mean[0] == 0.1307);
  CHECK(!known_stats("folder"));
}
