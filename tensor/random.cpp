#include <limpid/tensor/random.h>

#include <atomic>
#include <cmath>

#include <limpid/base/error.h>
#include <limpid/base/names.h>

namespace limpid {
namespace {

std::atomic<std::uint64_t> g_seed{0};

// FNV-1a (Fowler, Noll, Vo) of the layer's name: interned ids depend on the order of first use, names do not.
std::uint64_t layer_hash(std::uint32_t layer) {
  const std::string& text = name_of(layer);
  if (text.empty() || text == "?") return layer;
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace

double Generator::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Generator::normal() {
  constexpr double kTwoPi = 6.283185307179586476925;
  double u1 = 1.0 - uniform();  // (0, 1]
  double u2 = uniform();
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(kTwoPi * u2);
}

std::int64_t Generator::below(std::int64_t bound) {
  LIMPID_CHECK(bound > 0, ArgumentError, "[random] bound must be positive, got ", bound);
  // Numbers below the remainder of 2^64 / bound would make small results more likely: draw again.
  std::uint64_t range = static_cast<std::uint64_t>(bound);
  std::uint64_t unfair = (0 - range) % range;
  std::uint64_t number = next();
  while (number < unfair) number = next();
  return static_cast<std::int64_t>(number % range);
}

Generator& default_generator() {
  static Generator generator;
  return generator;
}

RandomState& random_state() {
  thread_local RandomState state{{.seed = g_seed.load(), .step = 0, .sample_offset = 0}, {}};
  return state;
}

RandomContext& random_context() { return random_state().context; }

void manual_seed(std::uint64_t seed) {
  default_generator().set(seed);
  g_seed.store(seed);
  random_state() = {{.seed = seed, .step = 0, .sample_offset = 0}, {}};
}

void begin_micro_batch(std::uint64_t step, std::int64_t sample_offset) {
  RandomState& state = random_state();
  state.context.step = step;
  state.context.sample_offset = sample_offset;
  state.occurrences.clear();
}

std::uint64_t next_layer_key(std::uint32_t layer) {
  RandomState& state = random_state();
  std::uint64_t occurrence = state.occurrences[layer]++;
  return mix_key(mix_key(mix_key(state.context.seed, state.context.step), layer_hash(layer)), occurrence);
}

}  // namespace limpid
