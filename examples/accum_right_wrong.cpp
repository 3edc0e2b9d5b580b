// Gradient accumulation, right and wrong: five loops over the same 28 samples in uneven micro-batches, what a sample
// weighs in each (measured, not claimed), and how far the gradient is from that of the whole batch.
// Exit code 0 when the right loops are right and the wrong ones wrong, 1 when not.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

constexpr std::int64_t kSamples = 28;
const std::vector<std::int64_t> kCuts = {8, 8, 8, 4};  // micro-batches; the last one is short

struct Bench {
  std::shared_ptr<nn::Module> model;
  Tensor x, y;
  std::vector<Tensor> parameters;
};

Tensor loss_of(Bench& b, std::int64_t first, std::int64_t size, Reduction reduction = Reduction::mean) {
  return cross_entropy((*b.model)(narrow(b.x, 0, first, size)), narrow(b.y, 0, first, size), {.reduction = reduction});
}

// |a - b| / |b| over all gradients.
double relative_error(const Bench& b, const std::vector<Tensor>& whole) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < whole.size(); i++) {
    const auto g = b.parameters[i].grad().to_vector<double>(), w = whole[i].to_vector<double>();
    for (std::size_t j = 0; j < w.size(); j++) difference += (g[j] - w[j]) * (g[j] - w[j]), norm += w[j] * w[j];
  }
  return std::sqrt(difference / norm);
}

}  // namespace

static int example(const Arguments&) {
  manual_seed(1);
  Bench b;
  b.model = nn::make_model("mlp", {.input = Shape{1, 6, 6}, .classes = 4, .seed = 1});
  b.model->to(float64);
  b.x = randn({kSamples, 1, 6, 6}, {.dtype = float64});
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < kSamples; i++) labels.push_back((i * i) % 4);
  b.y = from_vector(labels, {kSamples});
  b.parameters = b.model->parameters();
  optim::SGD optimizer(b.parameters, {.lr = 0.0});  // the weights stay, so that all loops have the same gradient to meet

  loss_of(b, 0, kSamples).backward();
  std::vector<Tensor> whole;
  for (const Tensor& p : b.parameters) whole.push_back(p.grad().clone());

  const auto k = static_cast<double>(kCuts.size());
  struct Loop {
    const char* name;
    bool right;
    std::function<void()> run;
  };
  // Runs `part` for each micro-batch.
  auto each = [&](const std::function<void(std::int64_t first, std::int64_t size)>& part) {
    std::int64_t first = 0;
    for (std::int64_t size : kCuts) part(first, size), first += size;
  };
  train::Accumulator accumulator(optimizer);
  const std::vector<Loop> loops = {
      {"Accumulator: sums over the true count", true, [&] {
         accumulator.begin(kSamples);
         each([&](auto first, auto size) { accumulator.add(loss_of(b, first, size, Reduction::sum), static_cast<double>(size)); });
         accumulator.step();
       }},
      {"each mean times size / N", true, [&] {
         each([&](auto first, auto size) { mul(loss_of(b, first, size), static_cast<double>(size) / kSamples).backward(); });
       }},
      {"loss / k: a mean of means", false, [&] { each([&](auto first, auto size) { div(loss_of(b, first, size), k).backward(); }); }},
      {"not divided at all", false, [&] { each([&](auto first, auto size) { loss_of(b, first, size).backward(); }); }},
      {"loss / k, the last one forgotten", false, [&] {
         each([&](auto first, auto size) {
           if (first + size < kSamples) div(loss_of(b, first, size), k).backward();
         });
       }},
  };
  std::printf("%lld samples in micro-batches of 8, 8, 8 and 4; right is 1/%lld = %.5f a sample\n\n", static_cast<long long>(kSamples),
              static_cast<long long>(kSamples), 1.0 / kSamples);
  std::printf("%-40s %12s %12s %9s %16s\n", "loop", "least weight", "most", "samples", "gradient error");
  bool as_expected = true;
  for (const Loop& loop : loops) {
    optimizer.zero_grad();
    const LossWeights weights;
    loop.run();
    const std::vector<double>& rows = weights.rows();
    const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
    const double error = relative_error(b, whole);
    std::printf("%-40s %12.5f %12.5f %9zu %16.2e\n", loop.name, *least, *most, rows.size(), error);
    as_expected &= loop.right == (error <= 1e-12);
  }
  return as_expected ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "Gradient accumulation, right and wrong: five loops over the same samples in uneven "
                               "micro-batches, what a sample\n"
                               "weighs in each, and how far the gradient is from that of the whole batch."},
                     example);
}
