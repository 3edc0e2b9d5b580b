// Indexed reads and writes. Indices are checked first, in logical order, so the error is the first bad one; additions to
// one place happen in the order of the index, so results do not depend on threads.
#include <cstring>

#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>

namespace limpid::cpu {
namespace {

void check_indices(const char* op, const Tensor& index, std::int64_t bound) {
  const std::int64_t* data = index.data<std::int64_t>();
  std::int64_t n = index.numel();
  if (index.is_contiguous()) {  // a quick look; the walk below finds the place of a bad one
    bool good = true;
    for (std::int64_t i = 0; i < n; i++) good &= data[i] >= 0 && data[i] < bound;
    if (good) return;
  }
  Strides strides = index.strides();
  Shape at = Shape::filled(index.dim(), 0);
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < n; i++) {
    std::int64_t value = data[offset];
    LIMPID_CHECK(value >= 0 && value < bound, IndexError, "[", op, "] index ", value, " at position ", at,
                 " is outside [0, ", bound, ")");
    for (int d = index.dim() - 1; d >= 0; d--) {
      offset += strides[d];
      if (++at[d] < index.shape()[d]) break;
      offset -= index.shape()[d] * strides[d];
      at[d] = 0;
    }
  }
}

// The shape with `dim` cut to one element: the lanes along dim.
Shape lanes_of(Shape shape, int dim) {
  shape[dim] = 1;
  return shape;
}

template <class Bits>
void gather_bits(Tensor& out, const Tensor& x, int dim, const Tensor& index) {
  Bits* y = static_cast<Bits*>(out.raw_mutable_data());
  const Bits* in = static_cast<const Bits*>(x.raw_data());
  const std::int64_t* at_index = index.data<std::int64_t>();
  std::int64_t x_step = x.strides()[dim];
  Strides x_strides = x.strides();
  x_strides[dim] = 0;
  run_loop(plan_loop<3>(out.shape(), {&out.strides(), &index.strides(), &x_strides}), kGrain,
           [&](const std::int64_t (&at)[3], const std::int64_t (&step)[3], std::int64_t n) {
             for (std::int64_t i = 0; i < n; i++) {
               y[at[0] + i * step[0]] = in[at[2] + i * step[2] + at_index[at[1] + i * step[1]] * x_step];
             }
           });
}

template <class Bits>
void select_bits(Tensor& out, const Tensor& x, int dim, const Tensor& index) {
  Bits* y = static_cast<Bits*>(out.raw_mutable_data());
  const Bits* in = static_cast<const Bits*>(x.raw_data());
  const std::int64_t* at_index = index.data<std::int64_t>();
  std::int64_t count = index.numel(), index_step = index.strides()[0];
  std::int64_t y_step = out.strides()[dim], x_step = x.strides()[dim];
  auto slice = plan_loop<2>(lanes_of(out.shape(), dim), {&out.strides(), &x.strides()});
  if (slice.numel == 0) return;
  parallel_chunks(count, std::max<std::int64_t>(1, kGrain / slice.numel), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i++) {
      Bits* to = y + i * y_step;
      const Bits* from = in + at_index[i * index_step] * x_step;
      run_range(slice, 0, slice.numel,
                [&](const std::int64_t (&at)[2], const std::int64_t (&step)[2], std::int64_t n) {
                  if (step[0] == 1 && step[1] == 1) {
                    std::memcpy(to + at[0], from + at[1], static_cast<std::size_t>(n) * sizeof(Bits));
                    return;
                  }
                  for (std::int64_t j = 0; j < n; j++) to[at[0] + j * step[0]] = from[at[1] + j * step[1]];
                });
    }
  });
}

template <class T>
void add_to(T& target, T value) {
  using C = compute_t<T>;
  target = static_cast<T>(static_cast<C>(target) + static_cast<C>(value));
}

}  // namespace

void gather(Tensor& out, const Tensor& x, int dim, const Tensor& index) {
  check_indices("gather", index, x.shape()[dim]);
  switch (size_of(out.dtype())) {
    case 1: return gather_bits<std::uint8_t>(out, x, dim, index);
    case 2: return gather_bits<std::uint16_t>(out, x, dim, index);
    case 4: return gather_bits<std::uint32_t>(out, x, dim, index);
    default: return gather_bits<std::uint64_t>(out, x, dim, index);
  }
}

void scatter_add(Tensor& out, int dim, const Tensor& index, const Tensor& source) {
  check_indices("scatter_add", index, out.shape()[dim]);
  if (index.numel() == 0) return;
  const std::int64_t* at_index = index.data<std::int64_t>();
  std::int64_t length = index.shape()[dim];
  std::int64_t out_step = out.strides()[dim], index_step = index.strides()[dim], source_step = source.strides()[dim];
  // Lanes along dim never meet in `out`; each is walked in order.
  auto lanes = plan_loop<3>(lanes_of(index.shape(), dim), {&out.strides(), &index.strides(), &source.strides()});
  visit_dtype(out.dtype(), [&]<class T>() {
    T* y = out.mutable_data<T>();
    const T* in = source.data<T>();
    run_loop(lanes, std::max<std::int64_t>(1, kGrain / length),
             [&](const std::int64_t (&at)[3], const std::int64_t (&step)[3], std::int64_t n) {
               for (std::int64_t j = 0; j < length; j++) {
                 for (std::int64_t i = 0; i < n; i++) {
                   std::int64_t to = at_index[at[1] + i * step[1] + j * index_step];
                   add_to(y[at[0] + i * step[0] + to * out_step], in[at[2] + i * step[2] + j * source_step]);
                 }
               }
             });
  });
}

void index_select(Tensor& out, const Tensor& x, int dim, const Tensor& index) {
  check_indices("index_select", index, x.shape()[dim]);
  switch (size_of(out.dtype())) {
    case 1: return select_bits<std::uint8_t>(out, x, dim, index);
    case 2: return select_bits<std::uint16_t>(out, x, dim, index);
    case 4: return select_bits<std::uint32_t>(out, x, dim, index);
    default: return select_bits<std::uint64_t>(out, x, dim, index);
  }
}

void index_add(Tensor& out, int dim, const Tensor& index, const Tensor& source) {
  check_indices("index_add", index, out.shape()[dim]);
  const std::int64_t* at_index = index.data<std::int64_t>();
  std::int64_t count = index.numel(), index_step = index.strides()[0];
  std::int64_t out_step = out.strides()[dim], source_step = source.strides()[dim];
  auto slice = plan_loop<2>(lanes_of(out.shape(), dim), {&out.strides(), &source.strides()});
  if (count == 0) return;
  visit_dtype(out.dtype(), [&]<class T>() {
    T* y = out.mutable_data<T>();
    const T* in = source.data<T>();
    // Parts of the slice are independent; inside one, rows are added in the order of the index.
    run_loop(slice, std::max<std::int64_t>(16, kGrain / count),
             [&](const std::int64_t (&at)[2], const std::int64_t (&step)[2], std::int64_t n) {
               for (std::int64_t i = 0; i < count; i++) {
                 T* to = y + at[0] + at_index[i * index_step] * out_step;
                 const T* from = in + at[1] + i * source_step;
                 for (std::int64_t j = 0; j < n; j++) add_to(to[j * step[0]], from[j * step[1]]);
               }
             });
  });
}

void one_hot(Tensor& out, const Tensor& index) {
  std::int64_t classes = out.shape()[out.dim() - 1];
  check_indices("one_hot", index, classes);
  fill(out, 0);
  Strides strides = out.strides();
  std::int64_t step_class = strides[out.dim() - 1];
  strides.erase(out.dim() - 1);
  const std::int64_t* at_index = index.data<std::int64_t>();
  visit_dtype(out.dtype(), [&]<class T>() {
    T* y = out.mutable_data<T>();
    run_loop(plan_loop<2>(index.shape(), {&strides, &index.strides()}), kGrain,
             [&](const std::int64_t (&at)[2], const std::int64_t (&step)[2], std::int64_t n) {
               for (std::int64_t i = 0; i < n; i++) {
                 y[at[0] + i * step[0] + at_index[at[1] + i * step[1]] * step_class] = static_cast<T>(1);
               }
             });
  });
}

}  // namespace limpid::cpu
