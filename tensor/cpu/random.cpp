// Counter-based random numbers: every element is a function of key and position alone, so layout and threads do not
// matter. Positions count elements in logical (row-major) order.
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>
#include <limpid/tensor/random_values.h>

namespace limpid::cpu {
namespace {

// Memory offset of the logical element `index`, and steps through the elements in logical order.
class LogicalWalk {
 public:
  LogicalWalk(const Tensor& t, std::int64_t index) : shape_(t.shape()), strides_(t.strides()) {
    at_ = Shape::filled(shape_.size(), 0);
    for (int d = shape_.size() - 1; d >= 0; d--) {
      at_[d] = index % shape_[d];
      index /= shape_[d];
      offset_ += at_[d] * strides_[d];
    }
  }
  std::int64_t offset() const { return offset_; }
  void next() {
    for (int d = shape_.size() - 1; d >= 0; d--) {
      offset_ += strides_[d];
      if (++at_[d] < shape_[d]) return;
      offset_ -= shape_[d] * strides_[d];
      at_[d] = 0;
    }
  }

 private:
  const Shape& shape_;
  const Strides& strides_;
  Shape at_;
  std::int64_t offset_ = 0;
};

template <class T>
T from_double(double value) {
  return static_cast<T>(static_cast<compute_t<T>>(value));
}

// Fills block by block: make(Philox4, T[4]).
template <class T, class Make>
void fill_blocks(Tensor& out, std::uint64_t key, std::uint64_t first, Make make) {
  T* y = out.mutable_data<T>();
  const std::int64_t n = out.numel();
  const bool plain = out.is_contiguous();
  parallel_chunks((n + 3) / 4, kGrainCostly / 4, [&](std::int64_t begin, std::int64_t end) {
    LogicalWalk walk(out, plain ? 0 : begin * 4);
    for (std::int64_t block = begin; block < end; block++) {
      T values[4];
      make(philox(key, first + static_cast<std::uint64_t>(block)), values);
      for (std::int64_t i = block * 4, lane = 0; lane < 4 && i < n; lane++, i++) {
        if (plain) {
          y[i] = values[lane];
        } else {
          y[walk.offset()] = values[lane];
          walk.next();
        }
      }
    }
  });
}

}  // namespace

void uniform(Tensor& out, std::uint64_t key, std::uint64_t first) {
  visit_floating(out.dtype(), "rand", [&]<class T>() {
    fill_blocks<T>(out, key, first, [](const Philox4& p, T* values) {
      for (int lane = 0; lane < 4; lane++) values[lane] = kernel::uniform_value<T>(p.v[lane]);
    });
  });
}

void normal(Tensor& out, std::uint64_t key, std::uint64_t first) {
  visit_floating(out.dtype(), "randn", [&]<class T>() {
    fill_blocks<T>(out, key, first, [](const Philox4& p, T* values) {
      double z[4];
      kernel::normal_pair(p.v[0], p.v[1], z[0], z[1]);
      kernel::normal_pair(p.v[2], p.v[3], z[2], z[3]);
      for (int lane = 0; lane < 4; lane++) values[lane] = from_double<T>(z[lane]);
    });
  });
}

void dropout(Tensor& out, const Tensor& x, double p, std::uint64_t key, std::int64_t sample_offset) {
  const std::int64_t n = out.numel();
  if (n == 0) return;
  const std::int64_t samples = out.dim() == 0 ? 1 : out.shape()[0];
  // Dim 0 counts samples, so the number of element i is (sample_offset * elements a sample) + i.
  const std::uint64_t base = static_cast<std::uint64_t>(sample_offset * (n / samples));
  const double keep_scale = p < 1 ? 1.0 / (1.0 - p) : 0.0;
  visit_floating(out.dtype(), "dropout", [&]<class T>() {
    using C = compute_t<T>;
    const C factor = static_cast<C>(keep_scale);
    const float threshold = static_cast<float>(p);
    T* y = out.mutable_data<T>();
    const T* in = x.data<T>();
    const bool plain = out.is_contiguous() && x.is_contiguous();
    parallel_chunks(n, kGrainCostly, [&](std::int64_t begin, std::int64_t end) {
      LogicalWalk out_walk(out, plain ? 0 : begin), in_walk(x, plain ? 0 : begin);
      for (std::int64_t i = begin; i < end;) {
        std::uint64_t counter = base + static_cast<std::uint64_t>(i);
        Philox4 block = philox(key, counter / 4);
        for (std::uint64_t lane = counter % 4; lane < 4 && i < end; lane++, i++) {
          std::int64_t to = plain ? i : out_walk.offset(), from = plain ? i : in_walk.offset();
          bool keep = uniform_from_bits(block.v[lane]) >= threshold;
          y[to] = keep ? static_cast<T>(static_cast<C>(in[from]) * factor) : static_cast<T>(C(0));
          if (!plain) out_walk.next(), in_walk.next();
        }
      }
    });
  });
}

}  // namespace limpid::cpu
