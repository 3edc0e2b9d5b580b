#include "fake_kernels.h"

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include <limpid/cuda/kernel_table.h>
#include <limpid/cuda/runtime.h>
#include <limpid/tensor/kernels.h>
#include <limpid/tensor/tensor.h>

#include "fake_cuda.h"

namespace limpid::cudasim::fake {
namespace {

std::atomic<std::uint64_t> queued{0};

// The same place in memory as a tensor of the CPU, owned by nobody.
Tensor borrowed(const Tensor& t) {
  if (!t.defined()) return {};
  auto impl = make_ref<TensorImpl>();
  impl->storage = Storage::wrap(t.storage()->data(), t.storage()->bytes(), kCpu, {});
  impl->offset = t.impl()->offset;
  impl->shape = t.shape();
  impl->strides = t.strides();
  impl->numel = t.numel();
  impl->dtype = t.dtype();
  return Tensor(std::move(impl));
}

// What an operation keeps of an argument, and how it hands that to the kernel.
template <class T>
struct Kept {  // numbers and descriptions
  std::decay_t<T> value;
  explicit Kept(const T& v) : value(v) {}
  std::decay_t<T>& get() { return value; }
};
template <>
struct Kept<Tensor> {
  Tensor value;
  explicit Kept(const Tensor& v) : value(borrowed(v)) {}
  Tensor& get() { return value; }
};
template <class T>
requires std::is_same_v<std::remove_const_t<T>, Tensor> std::vector<Tensor> borrowed_all(std::span<T> tensors) {
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) out.push_back(borrowed(t));
  return out;
}
std::vector<OptimChunk> borrowed_all(std::span<OptimChunk> chunks) {
  std::vector<OptimChunk> out(chunks.begin(), chunks.end());
  for (OptimChunk& c : out) {
    for (Tensor* t : {&c.param, &c.grad, &c.state0, &c.state1, &c.state2}) *t = borrowed(*t);
  }
  return out;
}
template <class T>
struct Kept<std::span<T>> {
  decltype(borrowed_all(std::declval<std::span<T>>())) value;
  explicit Kept(std::span<T> v) : value(borrowed_all(v)) {}
  std::span<T> get() { return std::span<T>(value); }
};
template <class T>
requires requires(T args) { args.guard; }
struct Kept<T> {  // the optimizers' arguments
  T value;
  explicit Kept(const T& v) : value(v) {
    value.guard.found_inf = borrowed(v.guard.found_inf);
    value.guard.skipped = borrowed(v.guard.skipped);
  }
  T& get() { return value; }
};

// The device of a call is that of the first tensor in it.
template <class T>
void find_device(const T& argument, std::optional<int>& device) {
  if (device) return;
  if constexpr (std::is_same_v<T, Tensor>) {
    if (argument.defined()) device = argument.device().index;
  } else if constexpr (std::is_same_v<T, std::span<Tensor>> || std::is_same_v<T, std::span<const Tensor>>) {
    for (const Tensor& t : argument) find_device(t, device);
  } else if constexpr (std::is_same_v<T, std::span<OptimChunk>>) {
    for (const OptimChunk& c : argument) find_device(c.param, device);
  }
}

void written(Tensor& t) {
  if (t.defined()) t.storage()->bump_version();
}
void written(std::span<Tensor> tensors) {
  for (Tensor& t : tensors) written(t);
}
void written(std::span<OptimChunk> chunks) {
  for (OptimChunk& c : chunks) {
    for (Tensor* t : {&c.param, &c.state0, &c.state1, &c.state2}) written(*t);
  }
}
template <class T>
void written(const T&) {}

void give_back(std::span<OptimChunk> to, const std::vector<OptimChunk>& from) {
  for (std::size_t i = 0; i < to.size(); i++) to[i].trust = from[i].trust;
}

template <auto Entry>
struct Queued;
template <class Result, class... Args, Result (*Kernels::*Entry)(Args...)>
struct Queued<Entry> {
  static Result call(Args... args) {
    std::optional<int> device;
    (find_device<std::decay_t<Args>>(args, device), ...);
    const cu::Stream stream = cu::current_stream(device.value_or(0));
    auto kept = std::make_shared<std::tuple<Kept<std::decay_t<Args>>...>>(Kept<std::decay_t<Args>>(args)...);
    auto result = std::make_shared<std::conditional_t<std::is_void_v<Result>, int, Result>>();
    queued++;
    const auto run = [kept, result]() -> int {
      try {
        std::apply(
            [&](auto&... k) {
              if constexpr (std::is_void_v<Result>) {
                (cpu_kernels().*Entry)(k.get()...);
              } else {
                *result = (cpu_kernels().*Entry)(k.get()...);
              }
            },
            *kept);
        return 0;
      } catch (const Error&) {
        return 710;  // cudaErrorAssert
      }
    };
    const int status = enqueue({.kernel = "cpu kernel", .stream = stream.handle, .run = run});
    LIMPID_CHECK(status == 0, DeviceError, "[fake kernel] launch failed with status ", status);
    (written(args), ...);
    if constexpr (!std::is_void_v<Result>) {
      stream.synchronize();
      return *result;
    } else if constexpr (sizeof...(Args) == 2 &&
                         std::is_same_v<std::decay_t<std::tuple_element_t<0, std::tuple<Args...>>>,
                                        std::span<OptimChunk>>) {
      if constexpr (!requires(std::decay_t<std::tuple_element_t<1, std::tuple<Args...>>> a) { a.guard; }) {
        stream.synchronize();  // trust ratios are read back
        give_back(std::get<0>(std::tie(args...)), std::get<0>(*kept).value);
      }
    }
  }
};

}  // namespace

std::uint64_t kernels_queued() { return queued; }

}  // namespace limpid::cudasim::fake

namespace limpid::cu {

const Kernels* cuda_kernels() {
  using cudasim::fake::Queued;
#define LIMPID_PLAN(name) .name = cpu_kernels().name,
#define LIMPID_RUN(name) .name = Queued<&Kernels::name>::call,
  static const Kernels table{.device = "cuda", LIMPID_KERNEL_ENTRIES(LIMPID_PLAN, LIMPID_RUN)};
#undef LIMPID_PLAN
#undef LIMPID_RUN
  return &table;
}

}  // namespace limpid::cu
