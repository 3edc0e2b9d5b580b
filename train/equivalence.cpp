#include <limpid/train/equivalence.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/error.h>
#include <limpid/optim/sgd.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/raw.h>
#include <limpid/train/accumulator.h>

namespace limpid::train {
namespace {

constexpr double kProofBound = 1e-12;
constexpr double kMeasuredBound = 1e-5;        // in float32; other dtypes by their rounding
constexpr std::int64_t kFitCoordinates = 1 << 16;  // of the gradient, evenly spread, that the weights are fitted to
constexpr double kWeightBound = 1e-9;          // the fit's own noise is far below

using Gradient = std::vector<double>;  // of all parameters, one behind the other

// Forward and backward of samples [first, first + size), each weighing 1/N.
void run_piece(nn::Module& model, const Tensor& x, const Tensor& y, std::int64_t first, std::int64_t size) {
  begin_micro_batch(0, first);
  const Tensor sum = cross_entropy(model(narrow(x, 0, first, size)), narrow(y, 0, first, size),
                                   {.reduction = Reduction::sum});
  mul(sum, 1.0 / static_cast<double>(x.size(0))).backward();
}

std::vector<std::int64_t> firsts_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> firsts(sizes.size(), 0);
  std::partial_sum(sizes.begin(), sizes.end() - 1, firsts.begin() + 1);
  return firsts;
}

Gradient take_gradient(nn::Module& model) {
  Gradient all;
  all.reserve(static_cast<std::size_t>(model.num_parameters()));
  for (Tensor& p : model.parameters()) {
    if (p.grad().defined()) {
      const auto values = p.grad().to_vector<double>();
      all.insert(all.end(), values.begin(), values.end());
    } else {
      all.resize(all.size() + static_cast<std::size_t>(p.numel()), 0);
    }
    p.set_grad(Tensor());
  }
  return all;
}

double norm(const Gradient& g) { return std::sqrt(std::inner_product(g.begin(), g.end(), g.begin(), 0.0)); }

double distance(const Gradient& a, const Gradient& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// Zero over zero is no difference.
double relative(double difference, double whole) {
  if (difference == 0) return 0;
  return whole > 0 ? difference / whole : std::numeric_limits<double>::infinity();
}

void add_to(Gradient& sum, const Gradient& g, double factor = 1) {
  if (sum.empty()) sum.resize(g.size(), 0);
  for (std::size_t i = 0; i < g.size(); i++) sum[i] += factor * g[i];
}

Gradient sum_of(const std::vector<Gradient>& pieces) {
  Gradient sum;
  for (const Gradient& g : pieces) add_to(sum, g);
  return sum;
}

GradientDifference compare(const nn::Module& model, const Gradient& a, const Gradient& b) {
  GradientDifference d;
  d.relative = relative(distance(a, b), norm(b));
  std::size_t at = 0;
  for (const auto& [name, p] : model.named_parameters()) {
    double diff = 0, whole = 0;
    for (const std::size_t end = at + static_cast<std::size_t>(p.numel()); at < end; at++) {
      const double e = std::abs(a[at] - b[at]);
      diff += e * e;
      whole += b[at] * b[at];
      d.largest = std::max(d.largest, e);
    }
    const double r = relative(std::sqrt(diff), std::sqrt(whole));
    if (d.worst.empty() || r > d.worst_relative) d.worst = name, d.worst_relative = r;
  }
  return d;
}

// The model of the problem in one dtype, and its runs.
class Bench {
 public:
  Bench(const EquivalenceProblem& problem, DType dtype)
      : problem_(problem), model_(problem.model()), x_(cast(problem.x, dtype)) {
    model_->to(dtype);
    for (auto& [name, buffer] : model_->named_buffers()) buffers_.emplace_back(buffer, raw::clone(buffer));
  }

  nn::Module& model() { return *model_; }
  std::int64_t samples() const { return x_.size(0); }

  struct Run {
    Gradient gradient;
    LayerDecisions decisions;
  };
  using Kinds = std::vector<DecisionKind>;
  Run whole() {
    return watched(nullptr, {}, [&] {
      prepare(problem_.batch_norm == BatchNormMode::frozen ? BatchNormMode::frozen : BatchNormMode::micro);
      run_piece(*model_, x_, problem_.y, 0, samples());
    });
  }
  Run loop(const LayerDecisions* replay = nullptr, Kinds kinds = {}) {
    return watched(replay, std::move(kinds), [&] {
      prepare(problem_.batch_norm);
      problem_.loop({*model_, x_, problem_.y, problem_.micro_batches, problem_.batch_norm});
    });
  }
  // The gradient of each micro-batch as it should be under these statistics, with the dropout masks of `masks` where given.
  std::vector<Gradient> pieces(BatchNormMode mode, const LayerDecisions* masks = nullptr) {
    std::vector<Gradient> all;
    watched(masks, {DecisionKind::dropout}, [&] {
      prepare(mode);
      const std::vector<std::int64_t>& sizes = problem_.micro_batches;
      const std::vector<std::int64_t> firsts = firsts_of(sizes);
      auto pass = [&](std::size_t i) { run_piece(*model_, x_, problem_.y, firsts[i], sizes[i]); };
      ExactBatchNorm exact(*model_);
      if (mode == BatchNormMode::exact) exact.collect(sizes.size(), pass);
      for (std::size_t i = 0; i < sizes.size(); i++) {
        pass(i);
        all.push_back(take_gradient(*model_));
      }
    });
    return all;
  }

 private:
  void prepare(BatchNormMode mode) {
    NoGradGuard guard;
    for (auto& [buffer, value] : buffers_) raw::copy(buffer, value);
    model_->zero_grad();
    set_batch_norm_mode(*model_, mode);
  }
  template <class Body>
  Run watched(const LayerDecisions* replay, Kinds kinds, Body&& body) {
    const RandomStateScope random;
    const DecisionWatch watch(*model_, samples(), replay, std::move(kinds));
    body();
    return {take_gradient(*model_), watch.decisions()};
  }

  const EquivalenceProblem& problem_;
  std::shared_ptr<nn::Module> model_;
  Tensor x_;
  std::vector<std::pair<Tensor, Tensor>> buffers_;
};

// ---- weights: least squares by Householder reflections (Golub and Van Loan, section 5.3)

struct Fit {
  std::vector<double> weights;  // empty: the pieces do not determine them
  double residual = 0;          // relative to the gradient
};

Gradient spread(const Gradient& g) {
  const auto step = std::max<std::size_t>(1, g.size() / static_cast<std::size_t>(kFitCoordinates));
  Gradient some;
  for (std::size_t i = 0; i < g.size(); i += step) some.push_back(g[i]);
  return some;
}

Fit fit_weights(const std::vector<Gradient>& pieces, const Gradient& gradient) {
  std::vector<Gradient> a;
  for (const Gradient& piece : pieces) a.push_back(spread(piece));
  Gradient b = spread(gradient);
  const double size = norm(b);
  const std::size_t rows = b.size(), k = a.size();
  Fit fit;
  fit.residual = relative(distance(b, sum_of(a)), size);
  if (rows < k) return fit;
  const double scale = norm(*std::max_element(a.begin(), a.end(), [](auto& p, auto& q) { return norm(p) < norm(q); }));
  for (std::size_t c = 0; c < k; c++) {
    Gradient v(a[c].begin() + static_cast<std::ptrdiff_t>(c), a[c].end());
    const double length = norm(v);
    if (!(length > 1e-9 * scale)) return fit;
    const double alpha = v[0] > 0 ? -length : length;
    v[0] -= alpha;
    const double half = std::inner_product(v.begin(), v.end(), v.begin(), 0.0) / 2;
    auto reflect = [&](Gradient& column) {
      const double factor = std::inner_product(v.begin(), v.end(), column.begin() + static_cast<std::ptrdiff_t>(c), 0.0) / half;
      for (std::size_t i = 0; i < v.size(); i++) column[c + i] -= factor * v[i];
    };
    for (std::size_t other = c; other < k; other++) reflect(a[other]);
    reflect(b);
  }
  fit.weights.resize(k);
  for (std::size_t c = k; c-- > 0;) {
    double value = b[c];
    for (std::size_t other = c + 1; other < k; other++) value -= a[other][c] * fit.weights[other];
    fit.weights[c] = value / a[c][c];
  }
  fit.residual = relative(norm(Gradient(b.begin() + static_cast<std::ptrdiff_t>(k), b.end())), size);
  return fit;
}

// What the weights look like. `w`: times N, so that 1 is right.
std::string explain_weights(const std::vector<double>& w, const std::vector<std::int64_t>& sizes) {
  auto near = [](double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(1.0, std::abs(b)); };
  const auto k = static_cast<double>(sizes.size());
  const auto n = static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  std::string lost;
  bool not_divided = true, means = true;
  for (std::size_t i = 0; i < w.size(); i++) {
    const auto m = static_cast<double>(sizes[i]);
    if (near(w[i], 0)) lost += concat(lost.empty() ? "" : ", ", i);
    not_divided &= near(w[i], n / m);
    means &= near(w[i], n / m / k);
  }
  const auto [least, most] = std::minmax_element(w.begin(), w.end());
  auto rounded = [](double weight) { return std::round(weight * 1e6) / 1e6 + 0.0; };  // no -0
  const std::string range =
      concat("samples weigh ", rounded(*least), "/N to ", rounded(*most), "/N instead of 1/N");
  if (not_divided) return concat("the loss means of ", sizes.size(), " micro-batches were added and not divided: ", range);
  if (means) return concat("the means of unequal micro-batches were averaged: ", range);
  if (!lost.empty()) return concat("missing micro-batch ", lost, ": ", range);
  return range;
}

// The narrowest dtype that holds every value as it is; nothing: none does.
std::optional<DType> narrowest_dtype(const Gradient& g, std::initializer_list<DType> dtypes) {
  const Tensor values = from_vector(g, {static_cast<std::int64_t>(g.size())});
  for (DType dtype : dtypes)
    if (raw::cast(raw::cast(values, dtype), DType::float64).to_vector<double>() == g) return dtype;
  return std::nullopt;
}

std::int64_t flipped(const std::vector<Flips>& flips) {
  return std::accumulate(flips.begin(), flips.end(), std::int64_t{0}, [](std::int64_t n, auto& f) { return n + f.flipped; });
}
std::int64_t decisions(const std::vector<Flips>& flips) {
  return std::accumulate(flips.begin(), flips.end(), std::int64_t{0}, [](std::int64_t n, auto& f) { return n + f.of; });
}

// Moves the masks of dropout out of `flips`.
std::vector<Flips> take_masks(std::vector<Flips>& flips) {
  const auto at = std::stable_partition(flips.begin(), flips.end(), [](auto& f) { return f.kind != DecisionKind::dropout; });
  std::vector<Flips> masks(at, flips.end());
  flips.erase(at, flips.end());
  return masks;
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::float32: return 0x1p-24;
    case DType::float16: return 0x1p-11;
    case DType::bfloat16: return 0x1p-8;
    default: return 0x1p-53;
  }
}

// ---- the two halves

class Check {
 public:
  explicit Check(const EquivalenceProblem& problem) : problem_(problem) {
    report_.samples = problem.x.size(0);
    report_.micro_batches = problem.micro_batches;
    report_.batch_norm = problem.batch_norm;
    report_.dtype = problem.dtype;
    report_.proof_bound = kProofBound;
    report_.measured_bound = kMeasuredBound * unit_roundoff(problem.dtype) / unit_roundoff(DType::float32);
  }

  EquivalenceReport run() {
    prove();
    if (problem_.dtype != DType::float64) measure();
    std::stable_sort(report_.findings.begin(), report_.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.effect > b.effect; });
    const bool measured = !report_.measured || report_.measured->relative <= report_.measured_bound ||
                          (report_.without_kinks && report_.without_kinks->relative <= report_.measured_bound);
    report_.equal = report_.proof.relative <= report_.proof_bound && measured;
    return std::move(report_);
  }

 private:
  void found(Cause cause, double effect, std::string text) { report_.findings.push_back({cause, effect, std::move(text)}); }

  void prove() {
    Bench bench(problem_, DType::float64);
    const std::size_t layers = batch_norm_layers(bench.model()).size();
    report_.batch_norm_layers = static_cast<std::int64_t>(layers);
    const Bench::Run whole = bench.whole(), loop = bench.loop();
    report_.proof = compare(bench.model(), loop.gradient, whole.gradient);
    const double size = norm(whole.gradient);
    report_.flips = flips_between(loop.decisions, whole.decisions);
    const std::vector<Flips> masks = take_masks(report_.flips);

    // Each cause is taken out by itself: first as the loop drew its masks, then with the right ones.
    const bool other_masks = flipped(masks) > 0;
    BatchNormMode mode = problem_.batch_norm;
    std::vector<Gradient> seen = bench.pieces(mode, &loop.decisions);
    Fit fit = fit_weights(seen, loop.gradient);
    if (layers > 0 && mode == BatchNormMode::exact && fit.residual > kWeightBound) {
      // Exact statistics were announced; does the loop make do with those of its micro-batches?
      std::vector<Gradient> ghost = bench.pieces(BatchNormMode::micro, &loop.decisions);
      if (Fit second = fit_weights(ghost, loop.gradient); second.residual < fit.residual)
        fit = std::move(second), seen = std::move(ghost), mode = BatchNormMode::micro;
    }
    report_.weights = fit.weights;
    report_.unexplained = fit.residual;

    Gradient weighted;
    for (std::size_t i = 0; i < seen.size(); i++) add_to(weighted, seen[i], fit.weights.empty() ? 1 : fit.weights[i]);
    const bool weights_right = std::all_of(fit.weights.begin(), fit.weights.end(),
                                           [](double w) { return std::abs(w - 1) <= kWeightBound; });
    const Gradient fair = sum_of(seen);
    // Sums kept in fewer bits look like slightly other weights; the values themselves tell.
    const auto narrow_sums = narrowest_dtype(loop.gradient, {DType::bfloat16, DType::float16, DType::float32});
    if (narrow_sums && size > 0) {
      found(Cause::precision, relative(distance(loop.gradient, fair), size),
            concat("every element of the gradient is a number of ", to_string(*narrow_sums), ": it was added up in it"));
    } else if (!weights_right) {
      found(Cause::normaliser, relative(distance(weighted, fair), size), explain_weights(fit.weights, problem_.micro_batches));
    }
    const Gradient right = other_masks ? sum_of(bench.pieces(mode)) : fair;
    if (other_masks)
      found(Cause::rng, relative(distance(fair, right), size),
            concat(flipped(masks), " of ", decisions(masks), " dropout decisions differ, the first in ", first_of(masks),
                   ": the micro-batches draw other masks than their samples have in the whole batch"));
    if (layers > 0) {
      const double effect = relative(distance(right, whole.gradient), size);
      const std::vector<Gradient> exact = mode == BatchNormMode::exact ? std::vector<Gradient>{right}
                                                                       : bench.pieces(BatchNormMode::exact);
      if (problem_.batch_norm != BatchNormMode::frozen)
        report_.exact_batch_norm = relative(distance(sum_of(exact), whole.gradient), size);
      if (effect > kProofBound)
        found(Cause::batch_norm, effect,
              concat(layers, layers == 1 ? " layer takes" : " layers take", " the statistics of a micro-batch, not of all ",
                     report_.samples, " samples"));
    }
    if (fit.residual > kWeightBound && !narrow_sums)
      found(Cause::unexplained, fit.residual, "no weights of the micro-batches explain this part of the gradient");
  }

  static std::string first_of(const std::vector<Flips>& flips) {
    const auto it = std::find_if(flips.begin(), flips.end(), [](const Flips& f) { return f.flipped > 0; });
    return it == flips.end() ? "" : it->layer;
  }

  void measure() {
    Bench bench(problem_, problem_.dtype);
    const Bench::Run whole = bench.whole(), loop = bench.loop();
    report_.measured = compare(bench.model(), loop.gradient, whole.gradient);
    report_.flips = flips_between(loop.decisions, whole.decisions);
    take_masks(report_.flips);
    const std::int64_t flips = flipped(report_.flips);
    // In float64 nothing differs, so what does here is rounding, alone or through a decision that it turned.
    const bool rounding_only = report_.proof.relative <= kProofBound;
    GradientDifference left = *report_.measured;
    if (flips > 0) {
      const Bench::Run same = bench.loop(&whole.decisions, {DecisionKind::relu, DecisionKind::max_pool});
      left = compare(bench.model(), same.gradient, whole.gradient);
      report_.without_kinks = left;
      const double effect = relative(distance(loop.gradient, same.gradient), norm(whole.gradient));
      if (rounding_only && report_.measured->relative > report_.measured_bound)
        found(Cause::kinks, effect,
              concat(flips, " of ", decisions(report_.flips), " ReLU and pooling decisions flipped, the first in ",
                     first_of(report_.flips)));
    }
    if (rounding_only && left.relative > report_.measured_bound)
      found(Cause::precision, left.relative, concat("rounding in ", to_string(problem_.dtype)));
  }

  const EquivalenceProblem& problem_;
  EquivalenceReport report_;
};

}  // namespace

// ---- loops

void accumulation_loop(const AccumulationWindow& w) {
  optim::SGD optimizer(w.model.parameters(), {.lr = 0});
  Accumulator accumulator(optimizer);
  const std::vector<std::int64_t> firsts = firsts_of(w.micro_batches);
  const auto samples = static_cast<double>(w.x.size(0));
  auto loss = [&](std::size_t i) {
    begin_micro_batch(0, firsts[i]);
    return cross_entropy(w.model(narrow(w.x, 0, firsts[i], w.micro_batches[i])),
                         narrow(w.y, 0, firsts[i], w.micro_batches[i]));
  };
  ExactBatchNorm exact(w.model);
  if (w.batch_norm == BatchNormMode::exact) {
    exact.collect(w.micro_batches.size(),
                  [&](std::size_t i) { mul(loss(i), static_cast<double>(w.micro_batches[i]) / samples).backward(); });
  }
  accumulator.begin(samples);
  for (std::size_t i = 0; i < firsts.size(); i++) accumulator.add_mean(loss(i), static_cast<double>(w.micro_batches[i]));
  exact.finish();
}

GradientLoop loop_with(LoopBug bug) {
  return [bug](const AccumulationWindow& w) {
    const std::vector<std::int64_t> firsts = firsts_of(w.micro_batches);
    const std::size_t k = firsts.size();
    for (std::size_t i = 0; i < k; i++) {
      if (bug == LoopBug::lost && i + 1 == k) break;
      const std::int64_t size = w.micro_batches[i];
      begin_micro_batch(0, bug == LoopBug::no_offset ? 0 : firsts[i]);
      double weight = static_cast<double>(size) / static_cast<double>(w.x.size(0));
      if (bug == LoopBug::not_divided) weight = 1;
      if (bug == LoopBug::mean_of_means) weight = 1 / static_cast<double>(k);
      mul(cross_entropy(w.model(narrow(w.x, 0, firsts[i], size)), narrow(w.y, 0, firsts[i], size)), weight).backward();
      if (bug != LoopBug::bf16_sums) continue;
      for (Tensor& p : w.model.parameters())
        if (p.grad().defined()) p.set_grad(raw::cast(raw::cast(p.grad(), DType::bfloat16), p.dtype()));
    }
  };
}

LoopBug loop_bug_named(const std::string& name) {
  constexpr std::pair<const char*, LoopBug> kBugs[] = {{"not-divided", LoopBug::not_divided},
                                                       {"mean-of-means", LoopBug::mean_of_means},
                                                       {"lost", LoopBug::lost},
                                                       {"no-offset", LoopBug::no_offset},
                                                       {"bf16-sums", LoopBug::bf16_sums}};
  std::string known;
  for (const auto& [known_name, bug] : kBugs) {
    if (name == known_name) return bug;
    known += (known.empty() ? "" : ", ") + std::string(known_name);
  }
  LIMPID_THROW(ArgumentError, "[equivalence] there is no mistake '", name, "'; there are ", known);
}

EquivalenceReport check_accumulation(const EquivalenceProblem& problem) {
  LIMPID_CHECK(problem.model && problem.loop, ArgumentError, "[equivalence] a model and a loop are needed");
  LIMPID_CHECK(is_floating(problem.dtype), DTypeError, "[equivalence] the gradients have a floating dtype, got ",
               problem.dtype);
  LIMPID_CHECK(problem.x.defined() && problem.x.dim() >= 1 && problem.x.size(0) >= 1, ShapeError,
               "[equivalence] needs samples, got ", problem.x);
  LIMPID_CHECK(problem.y.defined() && problem.y.dim() == 1 && problem.y.size(0) == problem.x.size(0), ShapeError,
               "[equivalence] needs a class for each of ", problem.x.size(0), " samples, got ", problem.y);
  std::int64_t samples = 0;
  for (std::int64_t size : problem.micro_batches) {
    LIMPID_CHECK(size >= 1, ArgumentError, "[equivalence] a micro-batch has at least 1 sample, got ", size);
    samples += size;
  }
  LIMPID_CHECK(samples == problem.x.size(0), ArgumentError, "[equivalence] the micro-batches have ", samples,
               " samples together, the batch ", problem.x.size(0));
  return Check(problem).run();
}

}  // namespace limpid::train
