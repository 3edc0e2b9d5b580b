// Speed of the CPU kernels: GFLOP/s of gemm and of the convolutions of small networks, GB/s of norm and elementwise
// loops. Usage: kernel_bench [threads] [direct]. Medians of repeated runs; a figure is only comparable with others of
// its run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/cpu/gemm.h>
#include <limpid/tensor/cpu/math_kernels.h>
#include <limpid/tensor/cpu/norm.h>
#include <limpid/tensor/cpu/optim.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/cpu/pool.h>

using namespace limpid::cpu;

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Median time of a call, after one warm-up; about 0.3 s of runs, at least 5.
double measure(const std::function<void()>& fn) {
  fn();
  std::vector<double> times;
  const double begin = seconds();
  while (times.size() < 5 || (seconds() - begin < 0.3 && times.size() < 2000)) {
    const double t = seconds();
    fn();
    times.push_back(seconds() - t);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

// 64-byte aligned floats with a repeating pattern of small values.
struct Buffer {
  explicit Buffer(std::int64_t n) : data(static_cast<float*>(std::aligned_alloc(2 << 20, round(n)))) {
    for (std::int64_t i = 0; i < n; ++i) data[i] = static_cast<float>((i * 37) % 101 - 50) * 0.01f;
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  static std::size_t round(std::int64_t n) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(float) + 64;
    return (bytes + (2 << 20) - 1) / (2 << 20) * (2 << 20);
  }
  float* data;
};

void bench_gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
  GemmDesc d;
  d.m = m, d.n = n, d.k = k, d.c_row = n;
  d.a_row = ta ? 1 : k, d.a_col = ta ? m : 1, d.b_row = tb ? 1 : n, d.b_col = tb ? k : 1;
  Buffer a(m * k), b(k * n), c(m * n), ws(static_cast<std::int64_t>(gemm_workspace(d, 4) / 4));
  const double t = measure([&] { gemm<float>(d, a.data, b.data, c.data, nullptr, ws.data); });
  std::printf("gemm %5ld x %5ld x %5ld %s%s  %9.2f us  %6.1f GFLOP/s\n", long(m), long(n), long(k), ta ? "T" : "N",
              tb ? "T" : "N", t * 1e6, 2e-9 * double(m) * double(n) * double(k) / t);
}

std::int64_t y_size(const ConvDesc& d) { return d.n * d.k * d.oh() * d.ow(); }

double total_ms = 0;

void bench_conv(const char* name, ConvDesc d, int repeats, bool input_gradient = true) {
  const std::int64_t oh = d.oh(), ow = d.ow();
  Buffer x(d.n * d.c * d.h * d.w), y(d.n * d.k * oh * ow), w(d.k * d.c / d.groups * d.r * d.s);
  const double flop = 2e-9 * double(y_size(d)) * double(d.c / d.groups * d.r * d.s);
  std::printf("%-26s x%d", name, repeats);
  for (ConvPass pass : {ConvPass::forward, ConvPass::backward_input, ConvPass::backward_weight}) {
    if (pass == ConvPass::backward_input && !input_gradient) {
      std::printf("  %-31s", "-");
      continue;
    }
    const ConvPlan plan = plan_conv2d(pass, d, 4);
    Buffer ws(static_cast<std::int64_t>(plan.workspace_bytes / 4));
    const double t = measure([&] {
      if (pass == ConvPass::forward) conv2d_forward<float>(d, plan, x.data, w.data, nullptr, y.data, ws.data);
      if (pass == ConvPass::backward_input) conv2d_backward_input<float>(d, plan, y.data, w.data, x.data, ws.data);
      if (pass == ConvPass::backward_weight) conv2d_backward_weight<float>(d, plan, x.data, y.data, w.data, ws.data);
    });
    total_ms += t * 1e3 * repeats;
    std::printf("  %c %8.3f ms %6.1f GF/s %4.1f MiB", plan.algorithm[0], t * 1e3, flop / t,
                double(plan.workspace_bytes) / 1048576.0);
  }
  std::printf("\n");
}

void bench_bandwidth(const char* name, double bytes, const std::function<void()>& fn) {
  const double t = measure(fn);
  std::printf("%-34s %8.3f ms  %6.1f GB/s\n", name, t * 1e3, bytes / t * 1e-9);
}

void bench_rest() {
  const std::int64_t pixels = 16 * 1024, channels = 64, n = pixels * channels;
  const double bytes = 4.0 * double(n);
  Buffer x(n), y(n), dx(n), ws(static_cast<std::int64_t>(batch_norm_workspace(pixels, channels) / 4 + 1));
  std::vector<double> stats(3 * channels), mean(channels, 0.1), invstd(channels, 1.5);
  bench_bandwidth("batch norm statistics", bytes,
                  [&] { batch_norm_statistics(pixels, channels, x.data, stats.data(), ws.data); });
  bench_bandwidth("batch norm apply", 2 * bytes, [&] {
    batch_norm_apply<float>(pixels, channels, x.data, mean.data(), invstd.data(), nullptr, nullptr, y.data);
  });
  bench_bandwidth("batch norm backward reduce", 2 * bytes, [&] {
    batch_norm_backward_reduce(pixels, channels, x.data, y.data, mean.data(), invstd.data(), stats.data(), ws.data);
  });
  bench_bandwidth("batch norm backward apply", 3 * bytes, [&] {
    batch_norm_backward_apply<float>(pixels, channels, x.data, y.data, mean.data(), invstd.data(), nullptr,
                                     stats.data(), double(pixels), dx.data);
  });
  bench_bandwidth("relu", 2 * bytes, [&] { relu(n, x.data, y.data); });
  bench_bandwidth("add", 3 * bytes, [&] { add(n, x.data, y.data, dx.data); });
  bench_bandwidth("nchw -> nhwc", 2 * bytes, [&] { nchw_to_nhwc(16, channels, 1024, x.data, y.data); });
  const PoolDesc pool{.n = 512,
                      .c = 64,
                      .h = 24,
                      .w = 24,
                      .oh = 12,
                      .ow = 12,
                      .kernel_h = 2,
                      .kernel_w = 2,
                      .stride_h = 2,
                      .stride_w = 2};
  const std::int64_t in = 512 * 64 * 576;
  Buffer big(in), small(in / 4);
  std::vector<std::int32_t> index(static_cast<std::size_t>(in / 4));
  bench_bandwidth("max pool 2x2, lenet B512", 4.0 * double(in) * 1.5,
                  [&] { max_pool2d(pool, big.data, small.data, index.data()); });
  bench_bandwidth("max pool backward", 4.0 * double(in) * 1.5,
                  [&] { max_pool2d_backward(pool, small.data, index.data(), big.data); });
  const std::int64_t params = 1200000;
  Buffer p(params), g(params), m(params), v(params);
  for (std::int64_t i = 0; i < params; ++i) v.data[i] = 0.01f;
  const Chunk<float> chunk{p.data, g.data, m.data, v.data, nullptr, params};
  bench_bandwidth("adam, 1.2 M parameters", 7 * 4.0 * double(params),
                  [&] { adam_step<float>(std::span<const Chunk<float>>(&chunk, 1), AdamStep{.lr = 1e-3}); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) set_num_threads(std::atoi(argv[1]));
  if (argc > 2 && std::strcmp(argv[2], "direct") == 0) set_conv_algorithm(ConvAlgorithm::direct);
  std::printf("threads %d\n", num_threads());
  const double fork = measure([] {
    for (int i = 0; i < 100; ++i) parallel_for(8, [](std::int64_t) {});
  });
  std::printf("fork-join %.2f us\n", fork * 1e4);

  const std::int64_t sizes[][3] = {{1, 128, 784},   {64, 128, 784},   {64, 10, 128},    {64, 64, 64},
                                   {256, 256, 256}, {512, 128, 9216}, {128, 9216, 512}, {1024, 1024, 1024}};
  for (const auto& s : sizes) {
    bench_gemm(s[0], s[1], s[2], false, false);
    bench_gemm(s[0], s[1], s[2], false, true);
    bench_gemm(s[0], s[1], s[2], true, false);
  }
  const auto net = [](const char* name, const std::function<void()>& fn) {
    total_ms = 0;
    fn();
    std::printf("%s: convolutions of one training step %.1f ms\n", name, total_ms);
  };
  net("lenet B512", [] {
    bench_conv("lenet conv1 1->32", {.n = 512, .c = 1, .h = 28, .w = 28, .k = 32, .r = 3, .s = 3}, 1, false);
    bench_conv("lenet conv2 32->64", {.n = 512, .c = 32, .h = 26, .w = 26, .k = 64, .r = 3, .s = 3}, 1);
  });
  net("seed B16",
      [] { bench_conv("seed 3->64 224", {.n = 16, .c = 3, .h = 224, .w = 224, .k = 64, .r = 3, .s = 3}, 1, false); });
  net("resnet18 B16", [] {
    const auto layer = [](const char* name, std::int64_t c, std::int64_t k, std::int64_t h, std::int64_t r,
                          std::int64_t stride, int repeats, bool input_gradient = true) {
      ConvDesc d{.n = 16, .c = c, .h = h, .w = h, .k = k, .r = r, .s = r};
      d.stride_h = d.stride_w = stride, d.pad_h = d.pad_w = r / 2;
      bench_conv(name, d, repeats, input_gradient);
    };
    layer("3->64 32", 3, 64, 32, 3, 1, 1, false);
    layer("64->64 32", 64, 64, 32, 3, 1, 4);
    layer("64->128 /2", 64, 128, 32, 3, 2, 1);
    layer("64->128 1x1 /2", 64, 128, 32, 1, 2, 1);
    layer("128->128 16", 128, 128, 16, 3, 1, 3);
    layer("128->256 /2", 128, 256, 16, 3, 2, 1);
    layer("128->256 1x1 /2", 128, 256, 16, 1, 2, 1);
    layer("256->256 8", 256, 256, 8, 3, 1, 3);
    layer("256->512 /2", 256, 512, 8, 3, 2, 1);
    layer("256->512 1x1 /2", 256, 512, 8, 1, 2, 1);
    layer("512->512 4", 512, 512, 4, 3, 1, 3);
  });
  bench_rest();
  return 0;
}
