// 2-D convolution on the CPU, float and double: forward, gradient of the input, gradient of the weight, gradient of the
// bias. Activations are NHWC and dense; the weight is dense [k][c/groups][r][s], as in PyTorch. Plans are pure
// functions of shape, element size and the algorithm setting; kernels allocate nothing and give the same bits for any
// thread count.
#pragma once

#include <cstddef>
#include <cstdint>

#include <limpid/tensor/cpu/task_list.h>

namespace limpid::cpu {

struct ConvDesc {
  std::int64_t n = 0, c = 0, h = 0, w = 0, k = 0, r = 1, s = 1;
  std::int64_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dil_h = 1, dil_w = 1, groups = 1;
  std::int64_t oh() const { return (h + 2 * pad_h - dil_h * (r - 1) - 1) / stride_h + 1; }
  std::int64_t ow() const { return (w + 2 * pad_w - dil_w * (s - 1) - 1) / stride_w + 1; }
};

enum class ConvPass : std::uint8_t { forward, backward_input, backward_weight };

// automatic: Winograd where it is faster and safe (float, 3x3, stride 1, wide enough). direct: never Winograd.
enum class ConvAlgorithm : std::uint8_t { automatic, direct };
void set_conv_algorithm(ConvAlgorithm algorithm);
ConvAlgorithm conv_algorithm();

// How much of the work is in the workspace at a time. Smaller pieces give the same bits, except fewer `parts`, whose
// sums are added in another order, and Winograd's weight gradient.
struct ConvPieces {
  std::int64_t slots = 0;     // tasks with scratch of their own
  std::int64_t rows = 0;      // direct: patches a task
  std::int64_t cols = 0;      // direct: output channels whose filters are packed at a time
  std::int64_t parts = 1;     // weight gradient: partial sums, added at the end
  std::int64_t halvings = 0;  // winograd: of the blocks of tiles
};
struct ConvPlan {
  const char* algorithm = "direct";  // "direct", "thin", "depthwise" or "winograd"
  std::size_t workspace_bytes = 0;   // 64-byte aligned memory
  ConvPieces pieces = {};
};
// With a cap: the first of a list of ever smaller plans that fits, or the smallest. The bytes of a plan as the cap give
// that plan again.
ConvPlan plan_conv2d(ConvPass pass, const ConvDesc& desc, std::size_t element_size, std::size_t cap = SIZE_MAX);

// The plan must be the one of the same pass and desc. bias: k values or null.
template <class T>
void conv2d_forward(const ConvDesc& desc, const ConvPlan& plan, const T* x, const T* w, const T* bias, T* y,
                    void* workspace);
// Forward under a Winograd plan; each tile of the result goes to the tail (conv_tail.h) instead of to a y.
template <class T>
struct TailTarget;
void conv2d_winograd_tail(const ConvDesc& desc, const ConvPlan& plan, const float* x, const float* w, const float* bias,
                          const TailTarget<float>& tail, void* workspace);
template <class T>
void conv2d_backward_input(const ConvDesc& desc, const ConvPlan& plan, const T* dy, const T* w, T* dx, void* workspace);
template <class T>
void conv2d_backward_weight(const ConvDesc& desc, const ConvPlan& plan, const T* x, const T* dy, T* dw,
                            void* workspace);
// db[k] = sum over pixels of dy. Workspace: column_sum_workspace(n*oh*ow, k, sizeof(T)) of math_kernels.h.
template <class T>
void conv2d_backward_bias(const ConvDesc& desc, const T* dy, T* db, void* workspace);

// The tasks of the forward pass under a plan. Padding: whole panels of output channels, and for Winograd tiles that stick
// out of the image; its multiply-adds are counted as those of the direct form.
TaskList conv2d_forward_tasks(const ConvDesc& desc, const ConvPlan& plan, std::size_t element_size);

}  // namespace limpid::cpu
