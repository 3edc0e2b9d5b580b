// Thread pool, gemm and convolution against plain loops in double: odd sizes, strides, groups, guards, bits per thread
// count.
#include <atomic>
#include <stdexcept>
#include <thread>

#include <hwy/targets.h>

#include <limpid/base/error.h>
#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/cpu/gemm.h>
#include <limpid/tensor/cpu/math_kernels.h>
#include <limpid/tensor/cpu/parallel.h>

#include "kernel_test.h"

using namespace limpid::cpu;
using namespace kernel_test;

TEST_CASE("thread pool runs each task once, for any thread count") {
  Threads restore;
  for (int threads : {1, 2, 3, 5, 2, 1}) {
    set_num_threads(threads);
    CHECK(num_threads() == threads);
    for (std::int64_t n : {0, 1, 2, 3, 17, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
      parallel_for(n, [&](std::int64_t task) { seen[static_cast<std::size_t>(task)].fetch_add(1); });
      for (auto& s : seen) CHECK(s.load() == 1);
    }
    std::atomic<std::int64_t> total{0};
    parallel_chunks(1001, 10, [&](std::int64_t begin, std::int64_t end) {
      CHECK((end - begin == 10 || (end == 1001 && end - begin == 1)));
      for (std::int64_t i = begin; i < end; ++i) total += i;
    });
    CHECK(total.load() == 1001 * 1000 / 2);
    std::vector<std::atomic<int>> busy(kMaxSlots);
    std::atomic<int> clashes{0}, ran{0};
    parallel_slots(100, [&](std::int64_t slot, std::int64_t) {
      if (busy[static_cast<std::size_t>(slot)].fetch_add(1) != 0) clashes.fetch_add(1);
      ran.fetch_add(1);
      busy[static_cast<std::size_t>(slot)].fetch_sub(1);
    });
    CHECK(clashes.load() == 0);
    CHECK(ran.load() == 100);
  }
  CHECK_THROWS_AS(set_num_threads(0), limpid::ArgumentError);
}

TEST_CASE("thread pool: exceptions reach the caller, nested and concurrent calls run serially") {
  Threads restore;
  set_num_threads(3);
  for (int round = 0; round < 50; ++round) {
    CHECK_THROWS_AS(parallel_for(20,
                                 [&](std::int64_t task) {
                                   if (task == 7) throw std::runtime_error("seven");
                                 }),
                    std::runtime_error);
    std::atomic<int> after{0};
    parallel_for(8, [&](std::int64_t) { parallel_for(4, [&](std::int64_t) { after.fetch_add(1); }); });
    CHECK(after.load() == 32);
  }
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) parallel_for(16, [&](std::int64_t task) { total += task; });
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(total.load() == 3 * 200 * 120);
}

namespace {

template <class T>
void check_gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb, bool accumulate, bool with_bias,
                std::int64_t batch, Random& random) {
  GemmDesc d;
  d.m = m, d.n = n, d.k = k, d.accumulate = accumulate, d.batch = batch;
  d.a_row = ta ? 1 : k, d.a_col = ta ? m : 1, d.b_row = tb ? 1 : n, d.b_col = tb ? k : 1, d.c_row = n + 3;
  d.a_batch = m * k, d.b_batch = k * n, d.c_batch = m * d.c_row;
  Guarded<T> a(batch * m * k), b(batch * k * n), bias(n), start(batch * d.c_batch);
  random.fill(a), random.fill(b), random.fill(bias), random.fill(start);
  std::vector<double> want(static_cast<std::size_t>(start.size()));
  for (std::int64_t i = 0; i < start.size(); ++i) want[static_cast<std::size_t>(i)] = static_cast<double>(start[i]);
  for (std::int64_t q = 0; q < batch; ++q) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double& w = want[static_cast<std::size_t>(q * d.c_batch + i * d.c_row + j)];
        double s = (accumulate ? w : 0.0) + (with_bias ? static_cast<double>(bias[j]) : 0.0);
        for (std::int64_t l = 0; l < k; ++l) {
          s += static_cast<double>(a[q * d.a_batch + i * d.a_row + l * d.a_col]) *
               static_cast<double>(b[q * d.b_batch + l * d.b_row + j * d.b_col]);
        }
        w = s;
      }
    }
  }
  const std::size_t bytes = gemm_workspace(d, sizeof(T));
  const Guarded<T> got = run_all_threads<T>(start.size(), [&](Guarded<T>& c) {
    std::memcpy(c.data(), start.data(), static_cast<std::size_t>(start.size()) * sizeof(T));
    Guarded<unsigned char> workspace(static_cast<std::int64_t>(bytes));
    gemm(d, a.data(), b.data(), c.data(), with_bias ? bias.data() : nullptr, workspace.data());
    CHECK(workspace.intact());
  });
  CHECK_MESSAGE(error_of(got, want) < tolerance<T>(static_cast<double>(k)), "m ", m, " n ", n, " k ", k, " ta ", ta,
                " tb ", tb, " acc ", accumulate, " bias ", with_bias, " T ", sizeof(T));
}

template <class T>
void check_conv(const ConvDesc& d, Random& random) {
  const std::int64_t oh = d.oh(), ow = d.ow(), cg = d.c / d.groups, kg = d.k / d.groups;
  REQUIRE((oh > 0 && ow > 0));
  Guarded<T> x(d.n * d.h * d.w * d.c), w(d.k * cg * d.r * d.s), bias(d.k), dy(d.n * oh * ow * d.k);
  random.fill(x), random.fill(w), random.fill(bias), random.fill(dy);
  std::vector<double> y(static_cast<std::size_t>(dy.size())), dx(static_cast<std::size_t>(x.size())),
      dw(static_cast<std::size_t>(w.size())), db(static_cast<std::size_t>(d.k));
  for (std::int64_t n = 0; n < d.n; ++n)
    for (std::int64_t i = 0; i < oh; ++i)
      for (std::int64_t j = 0; j < ow; ++j)
        for (std::int64_t k = 0; k < d.k; ++k) {
          const std::int64_t at = ((n * oh + i) * ow + j) * d.k + k;
          const double g = static_cast<double>(dy[at]);
          double sum = static_cast<double>(bias[k]);
          db[static_cast<std::size_t>(k)] += g;
          for (std::int64_t r = 0; r < d.r; ++r)
            for (std::int64_t s = 0; s < d.s; ++s) {
              const std::int64_t iy = i * d.stride_h - d.pad_h + r * d.dil_h,
                                 ix = j * d.stride_w - d.pad_w + s * d.dil_w;
              if (iy < 0 || iy >= d.h || ix < 0 || ix >= d.w) continue;
              for (std::int64_t c = 0; c < cg; ++c) {
                const std::int64_t xi = ((n * d.h + iy) * d.w + ix) * d.c + k / kg * cg + c;
                const std::int64_t wi = ((k * cg + c) * d.r + r) * d.s + s;
                sum += static_cast<double>(x[xi]) * static_cast<double>(w[wi]);
                dx[static_cast<std::size_t>(xi)] += g * static_cast<double>(w[wi]);
                dw[static_cast<std::size_t>(wi)] += g * static_cast<double>(x[xi]);
              }
            }
          y[static_cast<std::size_t>(at)] = sum;
        }
  const double loose = std::strcmp(plan_conv2d(ConvPass::forward, d, sizeof(T)).algorithm, "winograd") == 0 ? 30 : 1;
  const auto workspace_of = [&](ConvPass pass) { return plan_conv2d(pass, d, sizeof(T)); };
  const auto name = limpid::concat("n", d.n, " c", d.c, " h", d.h, " w", d.w, " k", d.k, " r", d.r, " s", d.s,
                                   " stride", d.stride_h, d.stride_w, " pad", d.pad_h, d.pad_w, " dil", d.dil_h,
                                   d.dil_w, " g", d.groups, " size", sizeof(T));
  CAPTURE(name);
  {
    const ConvPlan plan = workspace_of(ConvPass::forward);
    const auto got = run_all_threads<T>(dy.size(), [&](Guarded<T>& out) {
      Guarded<unsigned char> ws(static_cast<std::int64_t>(plan.workspace_bytes));
      conv2d_forward(d, plan, x.data(), w.data(), bias.data(), out.data(), ws.data());
      CHECK(ws.intact());
    });
    CHECK(error_of(got, y) < loose * tolerance<T>(static_cast<double>(cg * d.r * d.s)));
  }
  {
    const ConvPlan plan = workspace_of(ConvPass::backward_input);
    const auto got = run_all_threads<T>(x.size(), [&](Guarded<T>& out) {
      Guarded<unsigned char> ws(static_cast<std::int64_t>(plan.workspace_bytes));
      conv2d_backward_input(d, plan, dy.data(), w.data(), out.data(), ws.data());
      CHECK(ws.intact());
    });
    CHECK(error_of(got, dx) < loose * tolerance<T>(static_cast<double>(kg * d.r * d.s)));
  }
  {
    const ConvPlan plan = workspace_of(ConvPass::backward_weight);
    const auto got = run_all_threads<T>(w.size(), [&](Guarded<T>& out) {
      Guarded<unsigned char> ws(static_cast<std::int64_t>(plan.workspace_bytes));
      conv2d_backward_weight(d, plan, x.data(), dy.data(), out.data(), ws.data());
      CHECK(ws.intact());
    });
    CHECK(error_of(got, dw) < loose * tolerance<T>(static_cast<double>(d.n * oh * ow)));
    const auto sums = run_all_threads<T>(d.k, [&](Guarded<T>& out) {
      Guarded<unsigned char> ws(static_cast<std::int64_t>(column_sum_workspace(d.n * oh * ow, d.k, sizeof(T))));
      conv2d_backward_bias(d, dy.data(), out.data(), ws.data());
      CHECK(ws.intact());
    });
    CHECK(error_of(sums, db) < tolerance<T>(static_cast<double>(d.n * oh * ow)));
  }
}

}  // namespace

TEST_CASE("gemm equals the plain product") {
  Random random(1);
  for (std::int64_t m : {1, 2, 3, 5, 13, 70}) {
    for (std::int64_t n : {1, 7, 16, 33, 70}) {
      for (std::int64_t k : {1, 9, 17, 130}) {
        for (int form = 0; form < 4; ++form) {
          const bool accumulate = random.next() > 0, bias = random.next() > 0;
          check_gemm<float>(m, n, k, form & 1, form & 2, accumulate, bias, 1, random);
          check_gemm<double>(m, n, k, form & 1, form & 2, !accumulate, bias, 1, random);
        }
      }
    }
  }
  for (int form = 0; form < 4; ++form) {
    check_gemm<float>(201, 261, 601, form & 1, form & 2, form == 1, true, 1, random);
    check_gemm<double>(65, 130, 1030, form & 1, form & 2, form == 2, true, 1, random);
    check_gemm<float>(31, 45, 40, form & 1, form & 2, form == 3, true, 5, random);
    check_gemm<float>(1, 300, 2000, form & 1, form & 2, false, true, 1, random);
    check_gemm<float>(2, 40, 300, form & 1, form & 2, false, false, 20, random);
  }
}

TEST_CASE("gemm with an empty inner dimension gives the bias") {
  GemmDesc d;
  d.m = 3, d.n = 5, d.k = 0, d.a_row = 0, d.a_col = 1, d.b_row = 5, d.b_col = 1, d.c_row = 5;
  Guarded<float> c(15), bias(5);
  Random(3).fill(bias);
  gemm<float>(d, nullptr, nullptr, c.data(), bias.data(), nullptr);
  for (std::int64_t i = 0; i < 15; ++i) CHECK(c[i] == bias[i % 5]);
  d.b_row = 1, d.b_col = 0;
  gemm<float>(d, nullptr, nullptr, c.data(), nullptr, nullptr);
  for (std::int64_t i = 0; i < 15; ++i) CHECK(c[i] == 0.0f);
}

TEST_CASE("convolution equals the plain loops") {
  Random random(2);
  for (std::int64_t c = 1; c <= 70; c += 1 + c / 4) {
    ConvDesc d{.n = 1 + c % 3, .c = c, .h = 7, .w = 6, .k = 71 - c, .r = 3, .s = 3};
    d.pad_h = c % 2, d.pad_w = (c / 2) % 3;
    check_conv<float>(d, random);
    check_conv<double>(d, random);
  }
  const ConvDesc cases[] = {
      {.n = 2, .c = 1, .h = 28, .w = 28, .k = 6, .r = 5, .s = 5, .pad_h = 2, .pad_w = 2},
      {.n = 2, .c = 3, .h = 19, .w = 23, .k = 64, .r = 3, .s = 3},
      {.n = 1, .c = 3, .h = 33, .w = 31, .k = 17, .r = 7, .s = 7, .stride_h = 2, .stride_w = 2, .pad_h = 3, .pad_w = 3},
      {.n = 3, .c = 16, .h = 9, .w = 9, .k = 32, .r = 3, .s = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1},
      {.n = 2, .c = 16, .h = 8, .w = 8, .k = 48, .r = 1, .s = 1, .stride_h = 2, .stride_w = 2},
      {.n = 2, .c = 40, .h = 8, .w = 5, .k = 24, .r = 1, .s = 1},
      {.n = 1, .c = 5, .h = 11, .w = 14, .k = 9, .r = 2, .s = 4, .stride_h = 3, .stride_w = 1, .pad_h = 1, .pad_w = 2},
      {.n = 2, .c = 16, .h = 13, .w = 12, .k = 16, .r = 3, .s = 3, .pad_h = 2, .pad_w = 2, .dil_h = 2, .dil_w = 2},
      {.n = 1,
       .c = 7,
       .h = 15,
       .w = 12,
       .k = 5,
       .r = 3,
       .s = 2,
       .stride_h = 2,
       .stride_w = 3,
       .pad_h = 3,
       .pad_w = 1,
       .dil_h = 3,
       .dil_w = 2},
      {.n = 2, .c = 12, .h = 7, .w = 7, .k = 20, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1, .groups = 4},
      {.n = 2,
       .c = 32,
       .h = 6,
       .w = 7,
       .k = 64,
       .r = 3,
       .s = 3,
       .stride_h = 2,
       .stride_w = 2,
       .pad_h = 1,
       .pad_w = 1,
       .groups = 2},
      {.n = 2,
       .c = 13,
       .h = 9,
       .w = 8,
       .k = 13,
       .r = 3,
       .s = 3,
       .stride_h = 2,
       .stride_w = 1,
       .pad_h = 1,
       .pad_w = 1,
       .groups = 13},
      {.n = 3,
       .c = 32,
       .h = 9,
       .w = 8,
       .k = 32,
       .r = 3,
       .s = 5,
       .pad_h = 2,
       .pad_w = 2,
       .dil_h = 2,
       .dil_w = 1,
       .groups = 32},
      {.n = 1, .c = 4, .h = 6, .w = 6, .k = 8, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1, .groups = 4},
      {.n = 1, .c = 3, .h = 1, .w = 1, .k = 2, .r = 1, .s = 1},
      {.n = 1, .c = 2, .h = 3, .w = 3, .k = 2, .r = 3, .s = 3, .pad_h = 4, .pad_w = 4},
      {.n = 9, .c = 64, .h = 10, .w = 9, .k = 70, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1},
      {.n = 2, .c = 200, .h = 5, .w = 5, .k = 130, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1},
      {.n = 2, .c = 100, .h = 4, .w = 5, .k = 30, .r = 3, .s = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1},
      {.n = 17, .c = 32, .h = 12, .w = 13, .k = 64, .r = 3, .s = 3},
  };
  for (const ConvDesc& d : cases) {
    check_conv<float>(d, random);
    check_conv<double>(d, random);
  }
  set_conv_algorithm(ConvAlgorithm::direct);
  for (const ConvDesc& d : cases) check_conv<float>(d, random);
  set_conv_algorithm(ConvAlgorithm::automatic);
}

TEST_CASE("Winograd is planned for wide float 3x3 layers with stride 1 only, and equals the plain loops") {
  const ConvDesc d{.n = 3, .c = 16, .h = 10, .w = 11, .k = 20, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1};
  const auto algorithm = [](const ConvDesc& desc, std::size_t size) {
    return std::string(plan_conv2d(ConvPass::forward, desc, size).algorithm);
  };
  CHECK(algorithm(d, 4) == "winograd");
  CHECK(algorithm(d, 8) == "direct");
  ConvDesc strided = d, dilated = d, grouped = d, thin = d, padded = d, small = d;
  strided.stride_w = 2, dilated.dil_h = 2, grouped.groups = 4, thin.c = 15, padded.pad_h = 3, small.h = 2, small.w = 2;
  for (const ConvDesc& other : {strided, dilated, grouped, padded, small}) CHECK(algorithm(other, 4) == "direct");
  CHECK(algorithm(thin, 4) == "thin");
  CHECK(algorithm(thin, 8) == "thin");
  CHECK(std::string(plan_conv2d(ConvPass::backward_input, thin, 4).algorithm) == "direct");
  set_conv_algorithm(ConvAlgorithm::direct);
  CHECK(conv_algorithm() == ConvAlgorithm::direct);
  CHECK(algorithm(d, 4) == "direct");
  set_conv_algorithm(ConvAlgorithm::automatic);
  Random random(4);
  for (std::int64_t c : {16, 17, 31, 32, 40, 130}) {
    for (std::int64_t k : {16, 23, 48, 129}) {
      for (std::int64_t pad : {0, 1, 2}) {
        ConvDesc e{.n = 1 + c % 3, .c = c, .h = 6 + k % 5, .w = 7 + c % 4, .k = k, .r = 3, .s = 3};
        e.pad_h = pad, e.pad_w = (pad + k) % 3;
        check_conv<float>(e, random);
      }
    }
  }
  // Tiles enough for several blocks and partitions.
  check_conv<float>({.n = 5, .c = 33, .h = 26, .w = 25, .k = 18, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1}, random);
  check_conv<float>({.n = 7, .c = 144, .h = 16, .w = 17, .k = 120, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1}, random);
}

TEST_CASE("convolution without images writes nothing but a zero weight gradient") {
  const ConvDesc d{.n = 0, .c = 3, .h = 5, .w = 5, .k = 4, .r = 3, .s = 3};
  Guarded<float> w(4 * 27), dw(4 * 27);
  Random(1).fill(w);
  const ConvPlan plan = plan_conv2d(ConvPass::backward_weight, d, 4);
  Guarded<unsigned char> ws(static_cast<std::int64_t>(plan.workspace_bytes));
  conv2d_backward_weight<float>(d, plan, nullptr, nullptr, dw.data(), ws.data());
  for (std::int64_t i = 0; i < dw.size(); ++i) CHECK(dw[i] == 0.0f);
  const ConvPlan forward = plan_conv2d(ConvPass::forward, d, 4);
  Guarded<unsigned char> ws2(static_cast<std::int64_t>(forward.workspace_bytes));
  conv2d_forward<float>(d, forward, nullptr, w.data(), nullptr, nullptr, ws2.data());
  CHECK((ws.intact() && ws2.intact() && dw.intact()));
}

TEST_CASE("the kernels of the build's baseline give the same results within rounding") {
  hwy::DisableTargets(HWY_AVX2 | HWY_AVX3);
  Random random(12);
  for (int form = 0; form < 4; ++form) {
    check_gemm<float>(70, 83, 300, form & 1, form & 2, form == 1, true, 2, random);
    check_gemm<double>(23, 41, 77, form & 1, form & 2, form == 2, true, 1, random);
    check_gemm<float>(3, 20, 50, form & 1, form & 2, form == 3, true, 1, random);
  }
  for (std::int64_t c : {3, 16, 40, 150}) {
    const ConvDesc d{.n = 2, .c = c, .h = 9, .w = 10, .k = 133, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1};
    check_conv<float>(d, random);
    check_conv<double>(d, random);
  }
  check_conv<float>({.n = 2, .c = 20, .h = 9, .w = 10, .k = 20, .r = 3, .s = 3, .stride_h = 2, .groups = 20}, random);
  hwy::DisableTargets(0);
}
