// Matrix products from tensors to gemm(): f64 and f32 directly, 16-bit floats through f32 copies in the workspace,
// integers by a plain loop.
#include <algorithm>

#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/gemm.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/workspace_cap.h>

namespace limpid::cpu {
namespace {

GemmDesc direct(const MatmulDesc& d) {
  return {.m = d.m, .n = d.n, .k = d.k, .a_row = d.a_row, .a_col = d.a_col, .b_row = d.b_row, .b_col = d.b_col,
          .c_row = d.n, .accumulate = false, .batch = d.batch, .a_batch = d.a_batch, .b_batch = d.b_batch,
          .c_batch = d.m * d.n};
}

// The same product on dense f32 copies; an operand shared by all batches is copied once.
struct Widened {
  Widened(const MatmulDesc& d, std::size_t cap)
      : a_batches(d.a_batch == 0 ? 1 : d.batch), b_batches(d.b_batch == 0 ? 1 : d.batch), gemm(direct(d)) {
    gemm.a_row = d.k, gemm.a_col = 1, gemm.a_batch = d.a_batch == 0 ? 0 : d.m * d.k;
    gemm.b_row = d.n, gemm.b_col = 1, gemm.b_batch = d.b_batch == 0 ? 0 : d.k * d.n;
    const std::size_t copies = float_bytes(a_batches * d.m * d.k) + float_bytes(b_batches * d.k * d.n) +
                               float_bytes(d.batch * d.m * d.n) + float_bytes(d.n);
    gemm_bytes = aligned64(gemm_workspace(gemm, sizeof(float), cap - std::min(cap, copies)));
    bytes = gemm_bytes + copies;
  }
  std::int64_t a_batches, b_batches;
  GemmDesc gemm;
  std::size_t gemm_bytes = 0, bytes = 0;
};

template <class T>
void widen(float* to, const T* from, std::int64_t batches, std::int64_t batch_step, std::int64_t rows,
           std::int64_t row_step, std::int64_t cols, std::int64_t col_step) {
  parallel_chunks(batches * rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(cols, 1)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; i++) {
                      const T* row = from + i / rows * batch_step + i % rows * row_step;
                      if (col_step == 1) {
                        convert_run(cols, row, to + i * cols);
                        continue;
                      }
                      for (std::int64_t j = 0; j < cols; j++) to[i * cols + j] = static_cast<float>(row[j * col_step]);
                    }
                  });
}

template <class T>
void narrow_product(const MatmulDesc& d, const OpPlan& plan, T* c, const T* a, const T* b, const T* bias,
                    Tensor& workspace, bool accumulate) {
  Widened wide(d, plan.workspace_bytes);
  Parts parts(workspace);
  void* gemm_work = parts.take(wide.gemm_bytes);
  float* wide_a = parts.floats(wide.a_batches * d.m * d.k);
  float* wide_b = parts.floats(wide.b_batches * d.k * d.n);
  float* wide_c = parts.floats(d.batch * d.m * d.n);
  float* wide_bias = parts.floats(d.n);
  widen(wide_a, a, wide.a_batches, d.a_batch, d.m, d.a_row, d.k, d.a_col);
  widen(wide_b, b, wide.b_batches, d.b_batch, d.k, d.b_row, d.n, d.b_col);
  if (bias) convert_all(d.n, bias, wide_bias);
  if (accumulate) convert_all(d.batch * d.m * d.n, c, wide_c);
  wide.gemm.accumulate = accumulate;
  gemm<float>(wide.gemm, wide_a, wide_b, wide_c, bias ? wide_bias : nullptr, gemm_work, wide.gemm_bytes);
  convert_all(d.batch * d.m * d.n, wide_c, c);
}

template <class T>
void integer_product(const MatmulDesc& d, T* c, const T* a, const T* b, const T* bias, bool accumulate) {
  parallel_chunks(d.batch * d.m, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(d.n * d.k, 1)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; i++) {
                      const T* row = a + i / d.m * d.a_batch + i % d.m * d.a_row;
                      const T* right = b + i / d.m * d.b_batch;
                      for (std::int64_t j = 0; j < d.n; j++) {
                        std::int64_t sum = (accumulate ? c[i * d.n + j] : 0) + (bias ? bias[j] : 0);
                        for (std::int64_t p = 0; p < d.k; p++) {
                          sum += static_cast<std::int64_t>(row[p * d.a_col]) *
                                 static_cast<std::int64_t>(right[p * d.b_row + j * d.b_col]);
                        }
                        c[i * d.n + j] = static_cast<T>(sum);
                      }
                    }
                  });
}

}  // namespace

OpPlan plan_matmul(const MatmulDesc& desc) {
  const std::size_t cap = workspace_cap() > 0 ? workspace_cap() : SIZE_MAX;
  OpPlan plan{"integer", 0};
  if (is_narrow(desc.dtype)) {
    plan = {"gemm_f32_copies", Widened(desc, cap).bytes};
  } else if (is_floating(desc.dtype)) {
    plan = {"gemm", gemm_workspace(direct(desc), size_of(desc.dtype), cap)};
  }
  check_workspace_cap("matmul", plan.workspace_bytes);
  return plan;
}

// The bytes of the plan are the cap that it was made for, or lead to the same blocks.
void matmul(const MatmulDesc& desc, const OpPlan& plan, Tensor& out, const Tensor& a, const Tensor& b, const Tensor& bias,
            Tensor& workspace, bool accumulate) {
  visit_dtype(desc.dtype, [&]<class T>() {
    const T* bias_data = bias.defined() ? bias.data<T>() : nullptr;
    T* c = out.mutable_data<T>();
    if constexpr (std::is_floating_point_v<T>) {
      GemmDesc d = direct(desc);
      d.accumulate = accumulate;
      gemm<T>(d, a.data<T>(), b.data<T>(), c, bias_data, Parts(workspace).take(0), plan.workspace_bytes);
    } else if constexpr (kIsNarrow<T>) {
      narrow_product<T>(desc, plan, c, a.data<T>(), b.data<T>(), bias_data, workspace, accumulate);
    } else if constexpr (!std::is_same_v<T, bool>) {
      integer_product<T>(desc, c, a.data<T>(), b.data<T>(), bias_data, accumulate);
    } else {
      LIMPID_THROW(InternalError, "matmul kernel called with bool");
    }
  });
}

}  // namespace limpid::cpu
