#include <limpid/train/gradient_noise.h>

#include <cmath>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>

namespace limpid::train {
namespace {

double square_sum(const Tensor& t) { return mul(t, t).sum().item(); }

void drop_gradients(std::vector<Tensor>& parameters) {
  for (Tensor& p : parameters) p.set_grad(Tensor());
}

}  // namespace

std::optional<double> GradientNoise::scale() const {
  if (!(variance > 0 && mean_square > 0) || !std::isfinite(variance / mean_square)) return std::nullopt;
  return variance / mean_square;
}

GradientNoise gradient_noise(std::vector<Tensor> parameters, std::int64_t parts, std::int64_t size,
                             const std::function<Tensor(std::int64_t)>& loss) {
  LIMPID_CHECK(parts >= 2 && size >= 1, ArgumentError, "[gradient_noise] wants at least 2 parts of 1 sample, got ", parts, " of ",
               size);
  std::vector<Tensor> sums(parameters.size());
  double part_square = 0;  // mean of |g|^2 over the parts
  for (std::int64_t part = 0; part < parts; part++) {
    drop_gradients(parameters);
    loss(part).backward();
    NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); i++) {
      if (!parameters[i].grad().defined()) continue;
      const Tensor g = parameters[i].grad().to(DType::float64);
      part_square += square_sum(g) / static_cast<double>(parts);
      sums[i] = sums[i].defined() ? add(sums[i], g) : g;
    }
  }
  drop_gradients(parameters);
  NoGradGuard no_grad;
  double whole_square = 0;  // |mean of g|^2
  for (const Tensor& sum : sums) {
    if (sum.defined()) whole_square += square_sum(sum) / static_cast<double>(parts * parts);
  }
  const double b = static_cast<double>(size), all = static_cast<double>(size * parts);
  return {.mean_square = (all * whole_square - b * part_square) / (all - b),
          .variance = (part_square - whole_square) / (1 / b - 1 / all),
          .samples = size * parts};
}

}  // namespace limpid::train
