// Random numbers by counter (Philox 4x32-10, Salmon et al. 2011): the k-th number of a key is a pure function of key and k,
// the same on every device and for every thread count.
#pragma once

#include <cstdint>
#include <unordered_map>

#include <limpid/base/macros.h>

namespace limpid {

struct Philox4 {
  std::uint32_t v[4];
};

// Ten rounds; constants from the paper.
LIMPID_HD inline Philox4 philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high = 0) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low), c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high), c3 = static_cast<std::uint32_t>(counter_high >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; round++) {
    std::uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0, n1 = static_cast<std::uint32_t>(p1);
    std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1, n3 = static_cast<std::uint32_t>(p0);
    c0 = n0, c1 = n1, c2 = n2, c3 = n3;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// 24 bits -> [0, 1).
LIMPID_HD inline float uniform_from_bits(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 5.9604644775390625e-8f; }

// Mixes several numbers into one key (splitmix64 finaliser, Steele et al. 2014).
inline std::uint64_t mix_key(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a + 0x9E3779B97F4A7C15ull * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// A seed and a position; checkpoints store both.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) : seed_(seed) {}
  std::uint64_t seed() const { return seed_; }
  std::uint64_t position() const { return position_; }
  void set(std::uint64_t seed, std::uint64_t position = 0) { seed_ = seed, position_ = position; }
  // Reserves `count` blocks of four 32-bit numbers and returns the first one's counter.
  std::uint64_t advance(std::uint64_t count) {
    std::uint64_t first = position_;
    position_ += count;
    return first;
  }
  std::uint64_t next() {  // one 64-bit number
    Philox4 p = philox(seed_, advance(1));
    return (static_cast<std::uint64_t>(p.v[1]) << 32) | p.v[0];
  }
  double uniform();                          // [0, 1), 53 bits
  double normal();                           // Box-Muller
  std::int64_t below(std::int64_t bound);    // [0, bound), unbiased

 private:
  std::uint64_t seed_;
  std::uint64_t position_ = 0;
};

Generator& default_generator();
// Seeds the default generator and the keyed streams below.
void manual_seed(std::uint64_t seed);

// Keyed streams for layers such as dropout. A mask is a function of (seed, step, layer, occurrence of the layer in the
// micro-batch, sample, element): how the batch was cut and which thread computed it do not matter.
// One context per thread; the training step sets it, and without one the step stays 0 and occurrences keep counting.
struct RandomContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::int64_t sample_offset = 0;  // index of the micro-batch's first sample inside the effective batch
};
RandomContext& random_context();
// Starts a micro-batch: occurrences count from 0 again.
void begin_micro_batch(std::uint64_t step, std::int64_t sample_offset);
// The key of this use of `layer` (an interned name), and counts the occurrence.
std::uint64_t next_layer_key(std::uint32_t layer);

// The thread's whole random state: copied before a forward pass that may be recomputed, and put back for the recomputation,
// so that it draws the same numbers again.
struct RandomState {
  RandomContext context;
  std::unordered_map<std::uint32_t, std::uint32_t> occurrences;  // layer -> uses in this micro-batch
};
RandomState& random_state();

// Random state as it was, at the end of the scope.
class RandomStateScope {
 public:
  RandomStateScope() : former_(random_state()) {}
  explicit RandomStateScope(const RandomState& state) : RandomStateScope() { random_state() = state; }
  ~RandomStateScope() { random_state() = former_; }
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  RandomState former_;
};

}  // namespace limpid
