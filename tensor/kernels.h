// The kernel contract: one plain table of function pointers a device. A backend fills it in one designated initialiser;
// there is no registration. Shapes, dtypes and broadcasting have been checked by tensor/raw_*.cpp before a kernel runs;
// outputs are allocated, workspaces too (with the size that the plan function gave). Kernels never allocate.
//
// Required entries: null is an error that names op and device. Optional entries (marked) may be null: the composition
// runs instead and says so in the scope record.
#pragma once

#include <cstdint>
#include <span>

#include <limpid/tensor/functors.h>
#include <limpid/tensor/kernel_entries.h>
#include <limpid/tensor/tensor.h>

namespace limpid {

enum class ReduceOp : std::uint8_t { sum, prod, max, min, any, all, sum_squares };

// What a plan function answers before anything runs: pure, usable without the device.
struct OpPlan {
  const char* algorithm = "default";
  std::size_t workspace_bytes = 0;
};

struct MatmulDesc {  // c[b] = a[b] * b[b], element strides; ldc = n, c is dense
  DType dtype = DType::float32;
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  std::int64_t a_batch = 0, a_row = 0, a_col = 0;
  std::int64_t b_batch = 0, b_row = 0, b_col = 0;
};
struct Conv2dDesc {
  DType dtype = DType::float32;
  std::int64_t n = 0, c = 0, h = 0, w = 0, k = 0, r = 0, s = 0;
  std::int64_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dil_h = 1, dil_w = 1, groups = 1;
  std::int64_t oh() const { return (h + 2 * pad_h - dil_h * (r - 1) - 1) / stride_h + 1; }
  std::int64_t ow() const { return (w + 2 * pad_w - dil_w * (s - 1) - 1) / stride_w + 1; }
};
enum class Conv2dPass : std::uint8_t { forward, backward_input, backward_weight };
struct Pool2dDesc {
  std::int64_t n = 0, c = 0, h = 0, w = 0, oh = 0, ow = 0;
  std::int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dil_h = 1, dil_w = 1;
  bool count_include_pad = true;
};
struct LossDesc {
  std::int64_t rows = 0, classes = 0;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
};

// One chunk a parameter tensor of a fused optimizer step. States may be undefined where the rule needs none.
struct OptimChunk {
  Tensor param, grad, state0, state1, state2;
  double trust = 1;  // written by rules with a trust ratio: what the update of this tensor was multiplied by
};
// Mixed precision decides on the device whether a step happens: it changes nothing when found_inf (f32, one element) is
// not 0. `skipped` (i64, one element): earlier steps that did not happen and that the args' `step` counts all the same.
// Both undefined: a step as any other.
struct StepGuard {
  Tensor found_inf, skipped;
};
struct SgdArgs {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
  std::int64_t step;  // from 1; the first one fills the momentum buffer
  StepGuard guard = {};
};
struct AdamArgs {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled, amsgrad;  // decoupled = AdamW
  std::int64_t step;        // from 1
  StepGuard guard = {};
};
struct RmspropArgs {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered;
  StepGuard guard = {};
};
struct LambArgs {
  double lr, beta1, beta2, eps, weight_decay;
  double grad_scale;        // the gradients are multiplied by it first
  bool adapt, trust_clip;   // trust ratio instead of 1; at most 1
  std::int64_t step;        // from 1
};
struct LarsArgs {
  double lr, momentum, dampening, weight_decay, trust_coefficient, eps;
  bool nesterov, first_step, adapt, trust_clip;
};

struct Kernels {
  const char* device;

  // ---- memory
  void (*fill)(Tensor& out, const Scalar& value);
  void (*copy)(Tensor& out, const Tensor& x);  // same shape, any strides, any dtypes
  void (*flip)(Tensor& out, const Tensor& x, std::uint32_t dims_mask);

  // ---- elementwise; operands are already expanded to out's shape (strides 0 where broadcast), same dtype
  void (*unary)(UnaryOp op, Tensor& out, const Tensor& x, UnaryParams params);
  // out = dL/dx. x or y may be undefined where the op does not read it.
  void (*unary_grad)(UnaryOp op, Tensor& out, const Tensor& x, const Tensor& y, const Tensor& grad, UnaryParams params);
  void (*binary)(BinaryOp op, Tensor& out, const Tensor& a, const Tensor& b);
  void (*binary_grad)(BinaryOp op, bool of_b, Tensor& out, const Tensor& a, const Tensor& b, const Tensor& y, const Tensor& grad);
  void (*compare)(CompareOp op, Tensor& out, const Tensor& a, const Tensor& b);  // out is bool
  void (*where)(Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b);
  void (*add_scaled)(Tensor& out, const Tensor& x, double alpha);  // out += alpha * x, same shape and dtype
  void (*is_finite)(Tensor& out, const Tensor& x);  // bool
  bool (*all_finite)(const Tensor& x);                             // reads back: debugging modes only

  // ---- reductions over the dims in the mask; out has those dims as 1 (keepdim form). Fixed order of summation.
  void (*reduce)(ReduceOp op, Tensor& out, const Tensor& x, std::uint32_t dims_mask);
  void (*arg_reduce)(bool maximum, Tensor& out, const Tensor& x, int dim);

  // ---- indexing (index: i64, checked by the kernel: IndexError with position and value)
  void (*gather)(Tensor& out, const Tensor& x, int dim, const Tensor& index);
  void (*scatter_add)(Tensor& out, int dim, const Tensor& index, const Tensor& source);  // out holds the base values
  void (*index_select)(Tensor& out, const Tensor& x, int dim, const Tensor& index);
  void (*index_add)(Tensor& out, int dim, const Tensor& index, const Tensor& source);
  void (*one_hot)(Tensor& out, const Tensor& index);

  // ---- linear algebra
  OpPlan (*plan_matmul)(const MatmulDesc& desc);
  void (*matmul)(const MatmulDesc& desc, const OpPlan& plan, Tensor& out, const Tensor& a, const Tensor& b,
                 const Tensor& bias, Tensor& workspace, bool accumulate);  // bias: [n] or undefined

  // ---- convolution: x, y channels_last; weight contiguous [K,C/g,R,S]
  OpPlan (*plan_conv2d)(Conv2dPass pass, const Conv2dDesc& desc);
  void (*conv2d)(const Conv2dDesc&, const OpPlan&, Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& workspace);
  void (*conv2d_backward_input)(const Conv2dDesc&, const OpPlan&, Tensor& dx, const Tensor& dy, const Tensor& w, Tensor& workspace);
  void (*conv2d_backward_weight)(const Conv2dDesc&, const OpPlan&, Tensor& dw, const Tensor& x, const Tensor& dy, Tensor& workspace);
  void (*conv2d_backward_bias)(const Conv2dDesc&, Tensor& db, const Tensor& dy);

  // ---- pooling, channels_last; indices are i32 h*W+w of the maximum
  void (*max_pool2d)(const Pool2dDesc&, Tensor& y, Tensor& indices, const Tensor& x);
  void (*max_pool2d_backward)(const Pool2dDesc&, Tensor& dx, const Tensor& dy, const Tensor& indices);
  void (*avg_pool2d)(const Pool2dDesc&, Tensor& y, const Tensor& x);
  void (*avg_pool2d_backward)(const Pool2dDesc&, Tensor& dx, const Tensor& dy);
  void (*adaptive_avg_pool2d)(const Pool2dDesc&, Tensor& y, const Tensor& x);
  void (*adaptive_avg_pool2d_backward)(const Pool2dDesc&, Tensor& dx, const Tensor& dy);

  // ---- batch norm in five kernels; x is [P,C] dense with C fastest (channels_last images) . Statistics are [3,C] f64:
  // count, mean, M2 (sum of squared deviations). Parts of several ranks or micro-batches are merged by combine.
  std::size_t (*plan_batch_norm)(std::int64_t pixels, std::int64_t channels, DType dtype);  // workspace bytes of the reductions
  void (*batch_norm_statistics)(Tensor& stats, const Tensor& x, Tensor& workspace);
  void (*batch_norm_combine)(Tensor& stats, const Tensor& parts);  // parts [n,3,C]
  // y = (x - mean) * invstd * weight + bias; mean, invstd [C] f64
  void (*batch_norm_apply)(Tensor& y, const Tensor& x, const Tensor& mean, const Tensor& invstd, const Tensor& weight, const Tensor& bias);
  // sums [2,C] f64: sum dy, sum dy * xhat
  void (*batch_norm_backward_reduce)(Tensor& sums, const Tensor& x, const Tensor& dy, const Tensor& mean, const Tensor& invstd, Tensor& workspace);
  // dx = weight*invstd*(dy - sum_dy/count - xhat*sum_dy_xhat/count); count 0: statistics were constants
  void (*batch_norm_backward_apply)(Tensor& dx, const Tensor& x, const Tensor& dy, const Tensor& mean, const Tensor& invstd,
                                    const Tensor& weight, const Tensor& sums, double count);

  // ---- norms over rows of a contiguous [rows, len]; weight, bias [len/inner] repeated every `inner` elements, row r uses
  // the affine slice (r % affine_rows): layer norm inner=1, affine_rows=1; group norm inner=H*W, affine_rows=groups.
  // mean, invstd: [rows] f64. weight, bias and their gradients may be undefined.
  void (*row_norm)(Tensor& y, Tensor& mean, Tensor& invstd, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   std::int64_t inner, std::int64_t affine_rows, double eps);
  void (*row_norm_backward)(Tensor& dx, Tensor& dweight, Tensor& dbias, const Tensor& dy, const Tensor& x, const Tensor& mean,
                            const Tensor& invstd, const Tensor& weight, std::int64_t inner, std::int64_t affine_rows);

  // ---- softmax over the last dim of a contiguous [rows, n]
  void (*softmax)(Tensor& y, const Tensor& x, bool log);
  void (*softmax_backward)(Tensor& dx, const Tensor& dy, const Tensor& y, bool log);
  // Fused log-softmax + NLL. logits [rows, classes] contiguous, labels i64 [rows]; class_weight [classes] or undefined.
  // losses [rows] unreduced (already weighted), row_weights [rows] the weight of the row's target (0 when ignored);
  // losses, row_weights, log_sum_exp and row_scale are f64 for f64 logits and f32 otherwise.
  void (*cross_entropy)(const LossDesc&, Tensor& losses, Tensor& row_weights, Tensor& log_sum_exp, const Tensor& logits,
                        const Tensor& labels, const Tensor& class_weight);
  // d logits = row_scale[row] * d losses[row]; row_scale [rows]
  void (*cross_entropy_backward)(const LossDesc&, Tensor& dx, const Tensor& row_scale, const Tensor& logits,
                                 const Tensor& labels, const Tensor& class_weight, const Tensor& log_sum_exp);

  // ---- random: element i of sample n takes number (sample_offset + n) * elements_per_sample + i of the key
  void (*uniform)(Tensor& out, std::uint64_t key, std::uint64_t first);  // [0,1)
  void (*normal)(Tensor& out, std::uint64_t key, std::uint64_t first);
  void (*dropout)(Tensor& out, const Tensor& x, double p, std::uint64_t key, std::int64_t sample_offset);

  // ---- optimizers: one call a parameter group
  void (*sgd)(std::span<OptimChunk> chunks, const SgdArgs& args);
  void (*adam)(std::span<OptimChunk> chunks, const AdamArgs& args);
  void (*rmsprop)(std::span<OptimChunk> chunks, const RmspropArgs& args);
  // f32 and f64 parameters only; the trust ratios are read back.
  void (*lamb)(std::span<OptimChunk> chunks, const LambArgs& args);
  void (*lars)(std::span<OptimChunk> chunks, const LarsArgs& args);
  double (*sum_of_squares)(std::span<const Tensor> tensors);  // f64 accumulation; reads back
  void (*scale)(std::span<Tensor> tensors, double factor);

  // ---- loss scaling; scale, inv_scale, found_inf: f32, growth_tracker: i32, one element each. No reading back.
  // Dense gradients, in place: x = x * inv_scale, x itself for 1. found_inf = 1 when an element was not finite before.
  void (*amp_unscale)(std::span<Tensor> grads, Tensor& found_inf, const Tensor& inv_scale);
  // found_inf not 0: scale *= backoff, tracker = 0. Else the tracker counts; at `interval` it becomes 0 and
  // scale *= growth, unless that overflows. Products in f64, rounded once.
  void (*amp_update)(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth, double backoff,
                     std::int64_t interval);
};

// Every entry is in the list of kernel_entries.h, in this order.
#define LIMPID_COUNT_ENTRY(name) +1
static_assert(sizeof(Kernels) == (1 LIMPID_KERNEL_ENTRIES(LIMPID_COUNT_ENTRY, LIMPID_COUNT_ENTRY)) * sizeof(void*),
              "struct Kernels and LIMPID_KERNEL_ENTRIES (tensor/kernel_entries.h) differ");
#undef LIMPID_COUNT_ENTRY

// The table of a device. DeviceError when there is none: says why.
const Kernels& kernels_for(Device device);
const Kernels& cpu_kernels();
// The table with its plan functions, and run entries that compute and allocate nothing: they give what they would write
// a new version, and what they read back is "all finite" or 0.
Kernels silenced(Kernels table, const char* device);
// The plan functions of the CPU with run entries that compute nothing (tensor/dry.h).
const Kernels& dry_kernels();

}  // namespace limpid
