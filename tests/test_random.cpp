// Random numbers: known answers of Philox, distributions, independence of layout and threads, keyed streams.
#include "tensor_test.h"

#include <algorithm>
#include <thread>

#include <limpid/base/names.h>
#include <limpid/tensor/cpu/parallel.h>

using namespace tensor_test;

TEST_CASE("Philox 4x32-10 gives the published numbers") {
  auto check = [](const Philox4& p, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    CHECK(p.v[0] == a);
    CHECK(p.v[1] == b);
    CHECK(p.v[2] == c);
    CHECK(p.v[3] == d);
  };
  std::uint64_t ones = ~std::uint64_t{0};
  check(philox(0, 0, 0), 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u);
  check(philox(ones, ones, ones), 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu);
  check(philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull), 0xd16cfe09u, 0x94fdccebu, 0x5001e420u,
        0x24126ea1u);
}

TEST_CASE("uniform: lanes of the counter, in [0, 1), in every floating dtype") {
  for (DType dtype : kFloats) {
    Tensor x = raw::empty({100003}, dtype, kCpu);
    kernels_for(kCpu).uniform(x, 42, 7);
    std::vector<double> v = values(x);
    double sum = 0, squares = 0;
    for (double u : v) {
      REQUIRE(u >= 0);
      REQUIRE(u < 1);
      sum += u;
      squares += u * u;
    }
    double n = 100003, mean = sum / n;
    CHECK(std::fabs(mean - 0.5) < 0.005);
    CHECK(std::fabs(squares / n - mean * mean - 1.0 / 12) < 0.002);
    for (std::size_t i : {0, 1, 6, 50001}) {
      double expected = static_cast<double>(uniform_from_bits(philox(42, 7 + i / 4).v[i % 4]));
      CHECK(v[i] <= expected);  // 16-bit types keep the leading bits
      CHECK(expected - v[i] <= (dtype == bfloat16 ? 1.0 / 256 : dtype == float16 ? 1.0 / 2048 : 0));
    }
  }
}

TEST_CASE("normal: moments, tails, and one value for all dtypes") {
  Tensor x = raw::empty({1000000}, float64, kCpu);
  kernels_for(kCpu).normal(x, 1, 0);
  std::vector<double> v = values(x);
  double moments[5] = {};
  std::int64_t beyond = 0;
  for (double z : v) {
    double power = 1;
    for (double& m : moments) {
      m += power;
      power *= z;
    }
    beyond += std::fabs(z) > 1.959963985;
    REQUIRE(std::isfinite(z));
  }
  CHECK(std::fabs(moments[1] / 1e6) < 0.005);
  CHECK(std::fabs(moments[2] / 1e6 - 1) < 0.007);
  CHECK(std::fabs(moments[3] / 1e6) < 0.02);
  CHECK(std::fabs(moments[4] / 1e6 - 3) < 0.05);
  CHECK(std::fabs(static_cast<double>(beyond) / 1e6 - 0.05) < 0.002);
  for (DType dtype : {float32, float16, bfloat16}) {
    Tensor y = raw::empty({1001}, dtype, kCpu);
    kernels_for(kCpu).normal(y, 1, 0);
    check_close(values(y), std::vector<double>(v.begin(), v.begin() + 1001), tolerance(dtype), 1e-7, "normal");
  }
}

TEST_CASE("numbers do not depend on layout or threads") {
  int before = cpu::num_threads();
  Shape shape{5, 3, 33, 31};
  std::vector<std::vector<double>> uniforms, normals, dropped;
  Tensor source = from(random_numbers(shape.numel(), 1, 2, 1), shape, float32);
  for (const std::string& layout : kLayouts) {
    for (int threads : {1, 2, 3}) {
      cpu::set_num_threads(threads);
      Tensor x = in_layout(layout, values(source), shape, float32), y = raw::empty_like(x);
      kernels_for(kCpu).dropout(y, x, 0.4, 99, 3);
      dropped.push_back(values(y));
      kernels_for(kCpu).uniform(x, 5, 11);
      uniforms.push_back(values(x));
      kernels_for(kCpu).normal(x, 5, 11);
      normals.push_back(values(x));
    }
  }
  cpu::set_num_threads(before);
  for (std::size_t i = 1; i < uniforms.size(); i++) {
    CHECK(uniforms[i] == uniforms[0]);
    CHECK(normals[i] == normals[0]);
    CHECK(dropped[i] == dropped[0]);
  }
}

TEST_CASE("dropout: rate, scale, and masks of a sample that do not depend on the cut of the batch") {
  for (DType dtype : kFloats) {
    Tensor x = raw::empty({8, 5, 7, 31}, dtype, kCpu), y = raw::empty_like(x);
    raw::fill(x, 1);
    kernels_for(kCpu).dropout(y, x, 0.25, 1234, 0);
    std::vector<double> v = values(y);
    double kept = 0;
    for (double u : v) {
      bool ok = u == 0 || std::fabs(u - 1 / 0.75) < 0.01;
      REQUIRE(ok);
      kept += u != 0;
    }
    CHECK(std::fabs(kept / static_cast<double>(v.size()) - 0.75) < 0.02);
    for (std::int64_t cut : {1, 3, 5}) {
      std::vector<double> pieces;
      for (std::int64_t start = 0; start < 8; start += cut) {
        Tensor part = raw::contiguous(raw::narrow(x, 0, start, std::min<std::int64_t>(cut, 8 - start)));
        Tensor out = raw::empty_like(part);
        kernels_for(kCpu).dropout(out, part, 0.25, 1234, start);
        for (double u : values(out)) pieces.push_back(u);
      }
      CHECK(pieces == v);
    }
    kernels_for(kCpu).dropout(y, x, 1.0, 1234, 0);
    CHECK(values(y) == std::vector<double>(8680, 0.0));
  }
}

TEST_CASE("generators: reproducible, uniform, unbiased") {
  Generator a(7), b(7);
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0;
  std::int64_t counts[7] = {};
  for (int i = 0; i < 70000; i++) {
    double u = a.uniform(), z = a.normal();
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    sum += u, squares += u * u, normal_sum += z, normal_squares += z * z;
    std::int64_t k = a.below(7);
    REQUIRE(k >= 0);
    REQUIRE(k < 7);
    counts[k]++;
  }
  CHECK(std::fabs(sum / 70000 - 0.5) < 0.01);
  CHECK(std::fabs(squares / 70000 - 1.0 / 3) < 0.01);
  CHECK(std::fabs(normal_sum / 70000) < 0.02);
  CHECK(std::fabs(normal_squares / 70000 - 1) < 0.03);
  for (std::int64_t count : counts) CHECK(std::abs(count - 10000) < 500);
  double first = b.uniform();
  b.set(7);
  CHECK(b.uniform() == first);
  std::uint64_t at = b.position();
  double next = b.uniform();
  b.set(7, at);
  CHECK(b.uniform() == next);
  CHECK(b.below(1) == 0);
  CHECK_THROWS_AS(b.below(0), ArgumentError);
}

TEST_CASE("layer keys depend on seed, step, layer name and occurrence, and on nothing else") {
  NameId first = intern("random.test.first"), second = intern("random.test.second");
  manual_seed(3);
  CHECK(random_context().seed == 3);
  begin_micro_batch(5, 16);
  CHECK(random_context().sample_offset == 16);
  std::uint64_t a0 = next_layer_key(first), b0 = next_layer_key(second), a1 = next_layer_key(first);
  std::vector<std::uint64_t> all{a0, b0, a1};
  begin_micro_batch(5, 32);  // the next micro-batch of the same step: the same masks per sample index
  CHECK(next_layer_key(second) == b0);
  CHECK(next_layer_key(first) == a0);
  RandomState saved = random_state();
  CHECK(next_layer_key(first) == a1);
  random_state() = saved;  // what recomputation does
  CHECK(next_layer_key(first) == a1);
  begin_micro_batch(6, 0);
  all.push_back(next_layer_key(first));
  manual_seed(4);
  begin_micro_batch(5, 0);
  all.push_back(next_layer_key(first));
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  std::uint64_t seen = 0, other = 0;
  std::thread([&] {
    begin_micro_batch(5, 0);
    other = next_layer_key(first);
  }).join();
  begin_micro_batch(5, 0);
  seen = next_layer_key(first);
  CHECK(seen == other);  // a new thread starts with the global seed
}

TEST_CASE("manual_seed makes creation reproducible") {
  manual_seed(11);
  std::vector<double> a = values(randn({17})), b = values(rand({5}));
  manual_seed(11);
  CHECK(values(randn({17})) == a);
  CHECK(values(rand({5})) == b);
  CHECK(values(rand({5})) != b);
}
