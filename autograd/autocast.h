// Automatic mixed precision: while an Autocast lives, the operations of this thread choose their dtype by one table, which is
// PyTorch's for CUDA, on every device.
//
//   Tensor loss;
//   {
//     Autocast amp({.dtype = bfloat16});
//     loss = cross_entropy(model(x), y);  // convolutions and products in bf16, the loss in f32
//   }
//   loss.backward();                      // the gradients of f32 parameters are f32
//
// Only f32, f16 and bf16 tensors are cast; f64 and integers stay. Operations outside the table take what they are given.
// Backward runs in the dtypes of the forward pass. Not here: loss scaling (optim/grad_scaler.h), which f16 needs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <limpid/tensor/tensor.h>

namespace limpid {

enum class AutocastRule : std::uint8_t {
  lower,   // to the lower precision
  fp32,    // to f32
  widest,  // to f32 when an input is f32, else as they are
  as_is,   // nothing is cast, here and in the operations that it is made of
};

// The one table. Source: the lists of PyTorch 2.15's CUDA autocast; square is pow(x, 2) there. var is one kernel there.
#define LIMPID_AUTOCAST_TABLE(V)                                                                                         \
  V(matmul, lower) V(bmm, lower) V(linear, lower) V(conv2d, lower)                                                       \
  V(pow, fp32) V(square, fp32) V(rdiv, fp32) V(reciprocal, fp32) V(rsqrt, fp32) V(exp, fp32) V(expm1, fp32)              \
  V(log, fp32) V(log1p, fp32) V(softplus, fp32) V(sum, fp32) V(prod, fp32) V(softmax, fp32) V(log_softmax, fp32)         \
  V(layer_norm, fp32) V(group_norm, fp32) V(cross_entropy, fp32) V(nll_loss, fp32) V(mse_loss, fp32) V(l1_loss, fp32)    \
  V(smooth_l1_loss, fp32) V(binary_cross_entropy_with_logits, fp32) V(scatter_add, widest) V(var, as_is)

struct AutocastEntry {
  std::string_view op;
  AutocastRule rule;
};
const std::vector<AutocastEntry>& autocast_table();
std::string_view to_string(AutocastRule rule);

struct AutocastOptions {
  DType dtype = DType::bfloat16;  // float16 or bfloat16; DTypeError otherwise
  bool enabled = true;            // false: a region inside another one where nothing is cast
  // Parameters (f32 leaves that require a gradient, not parts of a larger storage) are cast once and the copy is used
  // again until the outermost scope ends.
  bool cache = true;
};

// Scopes nest; the innermost one counts.
class Autocast {
 public:
  explicit Autocast(const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  AutocastOptions former_;
};

namespace detail {
inline thread_local AutocastOptions autocast_options{.enabled = false};
}
inline bool autocast_enabled() { return detail::autocast_options.enabled; }
// Those of the innermost scope of this thread.
inline const AutocastOptions& autocast_options() { return detail::autocast_options; }

// Nothing is cast while it lives; the scope that goes on afterwards keeps its cache. Backward runs under one.
class AutocastPause {
 public:
  AutocastPause() : former_(detail::autocast_options.enabled) { detail::autocast_options.enabled = false; }
  ~AutocastPause() { detail::autocast_options.enabled = former_; }
  AutocastPause(const AutocastPause&) = delete;
  AutocastPause& operator=(const AutocastPause&) = delete;

 private:
  bool former_;
};

// The copies of parameters that this thread's cache holds now, in bytes. A copy is made anew when its parameter was written
// since, when it was made without recording and a gradient is wanted now, and when a backward has used up its history.
std::uint64_t autocast_cache_bytes();
void clear_autocast_cache();

}  // namespace limpid
