// Matrix products: PyTorch's rules for vectors, matrices and batches, mapped onto one batched kernel with free strides.
#include <limpid/tensor/raw.h>

namespace limpid::raw {
namespace {

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  LIMPID_CHECK(a.defined() && b.defined(), ArgumentError, "[", op, "] got an undefined tensor");
  LIMPID_CHECK(a.device() == b.device(), DeviceError, "[", op, "] operands are on different devices: ", a, " and ", b);
}

// Runs the kernel, or the empty sum when there is nothing to add up.
void run(const MatmulDesc& desc, Tensor& out, const Tensor& a, const Tensor& b, const Tensor& bias) {
  if (out.numel() == 0) return;
  const Kernels& kernels = kernels_for(out.device());
  if (desc.k == 0) {
    if (bias.defined()) {
      copy(out, bias);
    } else {
      fill(out, 0);
    }
    return;
  }
  OpPlan plan = kernels.plan_matmul(desc);
  Tensor work = workspace(plan.workspace_bytes, out.device());
  kernels.matmul(desc, plan, out, a, b, bias, work, false);
}

// The batch dims of x (all but the last two) as one dim: its stride, or nothing when they do not collapse.
std::optional<std::int64_t> batch_stride(const Tensor& x) {
  std::int64_t stride = 0, extent = 1;
  for (int d = x.dim() - 3; d >= 0; d--) {
    if (x.shape()[d] == 1) continue;
    if (extent == 1) {
      stride = x.strides()[d];
    } else if (x.strides()[d] != stride * extent) {
      return std::nullopt;
    }
    extent *= x.shape()[d];
  }
  return stride;
}

}  // namespace

Tensor matmul(const Tensor& a_in, const Tensor& b_in) {
  check_operands("matmul", a_in, b_in);
  LIMPID_CHECK(a_in.dim() > 0 && b_in.dim() > 0, ShapeError, "[matmul] operands must have at least one dim: ", a_in,
               " and ", b_in);
  DType dtype = promote(a_in.dtype(), b_in.dtype());
  LIMPID_CHECK(dtype != DType::boolean, DTypeError, "[matmul] does not take bool, got ", a_in, " and ", b_in);
  // A vector is a row on the left, a column on the right; the added dim goes away at the end.
  Tensor a = cast(a_in.dim() == 1 ? unsqueeze(a_in, 0) : a_in, dtype);
  Tensor b = cast(b_in.dim() == 1 ? unsqueeze(b_in, 1) : b_in, dtype);
  std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  LIMPID_CHECK(b.size(-2) == k, ShapeError, "[matmul] inner sizes differ: ", a_in, " and ", b_in);

  Shape batch_a, batch_b;
  for (int d = 0; d + 2 < a.dim(); d++) batch_a.push_back(a.shape()[d]);
  for (int d = 0; d + 2 < b.dim(); d++) batch_b.push_back(b.shape()[d]);
  Shape batch = broadcast_shapes("matmul", batch_a, batch_b);
  Shape result = batch;
  if (a_in.dim() > 1) result.push_back(m);
  if (b_in.dim() > 1) result.push_back(n);
  Tensor out = empty(result, dtype, a.device());

  MatmulDesc desc{.dtype = dtype, .m = m, .n = n, .k = k};
  if (b.dim() == 2 && a.dim() > 2 && a.is_contiguous()) {  // rows of all batches in one product
    desc.m = m * batch.numel();
    desc.a_row = k;
    desc.a_col = 1;
  } else {
    auto expanded = [&](const Tensor& x, const Shape& own) {
      if (own == batch) return x;
      Shape shape = batch;
      shape.push_back(x.size(-2));
      shape.push_back(x.size(-1));
      return expand("matmul", x, shape);
    };
    a = expanded(a, batch_a);
    b = expanded(b, batch_b);
    if (!batch_stride(a)) a = contiguous(a);
    if (!batch_stride(b)) b = contiguous(b);
    desc.batch = batch.numel();
    desc.a_batch = *batch_stride(a);
    desc.b_batch = *batch_stride(b);
    desc.a_row = a.stride(-2);
    desc.a_col = a.stride(-1);
  }
  desc.b_row = b.stride(-2);
  desc.b_col = b.stride(-1);
  run(desc, out, a, b, Tensor());
  return out;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_operands("linear", x, weight);
  LIMPID_CHECK(x.dim() == 2 && weight.dim() == 2, ShapeError, "[linear] expects x [m,k] and weight [n,k], got ", x,
               " and ", weight);
  std::int64_t m = x.shape()[0], k = x.shape()[1], n = weight.shape()[0];
  LIMPID_CHECK(weight.shape()[1] == k, ShapeError, "[linear] weight expects ", weight.shape()[1],
               " features, input has ", k, " (input ", x, ")");
  LIMPID_CHECK(is_floating(x.dtype()) && x.dtype() == weight.dtype(), DTypeError,
               "[linear] input and weight must have one floating dtype: ", x, " and ", weight);
  if (bias.defined()) {
    check_operands("linear", x, bias);
    LIMPID_CHECK(bias.dim() == 1 && bias.shape()[0] == n, ShapeError, "[linear] bias must be [", n, "], got ",
                 bias.shape());
    LIMPID_CHECK(bias.dtype() == x.dtype(), DTypeError, "[linear] input and bias must have one dtype: ", x, " and ",
                 bias);
  }
  Tensor out = empty({m, n}, x.dtype(), x.device());
  MatmulDesc desc{.dtype = x.dtype(), .m = m, .n = n, .k = k};
  desc.a_row = x.strides()[0], desc.a_col = x.strides()[1];
  desc.b_row = weight.strides()[1], desc.b_col = weight.strides()[0];
  run(desc, out, x, weight, bias.defined() ? contiguous(bias) : bias);
  return out;
}

}  // namespace limpid::raw
