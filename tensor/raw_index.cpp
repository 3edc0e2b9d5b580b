// Indexing operations: shapes and dtypes; index values are checked by the kernels.
#include <limpid/tensor/raw.h>

namespace limpid::raw {
namespace {

// i64 indices on x's device; i32 is widened.
Tensor checked_index(const char* op, const Tensor& x, const Tensor& index) {
  LIMPID_CHECK(x.defined() && index.defined(), ArgumentError, "[", op, "] got an undefined tensor");
  LIMPID_CHECK(index.dtype() == DType::int64 || index.dtype() == DType::int32, DTypeError, "[", op,
               "] index must be i64 or i32, got ", index);
  LIMPID_CHECK(x.device() == index.device(), DeviceError, "[", op, "] operands are on different devices: ", x, " and ",
               index);
  return cast(index, DType::int64);
}

void check_source(const char* op, const Tensor& x, const Tensor& source) {
  LIMPID_CHECK(source.defined(), ArgumentError, "[", op, "] got an undefined tensor");
  LIMPID_CHECK(source.dtype() == x.dtype(), DTypeError, "[", op, "] source must have the dtype of the target: ", source,
               " and ", x);
  LIMPID_CHECK(source.device() == x.device(), DeviceError, "[", op, "] operands are on different devices: ", x, " and ",
               source);
}

// 0-d operands work as one element.
Tensor at_least_1d(const Tensor& x) { return x.dim() == 0 ? reshape(x, {1}) : x; }

Tensor one_dim_index(const char* op, const Tensor& x, const Tensor& index) {
  Tensor checked = checked_index(op, x, index);
  LIMPID_CHECK(index.dim() <= 1, ShapeError, "[", op, "] index must have one dim, got ", index.shape());
  return at_least_1d(checked);
}

}  // namespace

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  Tensor at = checked_index("gather", x, index);
  int d = normalize_dim("gather", dim, x.dim());
  LIMPID_CHECK(x.dim() == index.dim(), ShapeError, "[gather] index must have the rank of the input: ", index.shape(),
               " and ", x.shape());
  for (int i = 0; i < x.dim(); i++) {
    LIMPID_CHECK(i == d || index.shape()[i] <= x.shape()[i], ShapeError, "[gather] index ", index.shape(),
                 " is larger than the input ", x.shape(), " in dim ", i);
  }
  Tensor out = empty(index.shape(), x.dtype(), x.device());
  Tensor flat_out = at_least_1d(out);
  kernels_for(x.device()).gather(flat_out, at_least_1d(x), d, at_least_1d(at));
  return out;
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor at = checked_index("scatter_add", x, index);
  check_source("scatter_add", x, source);
  int d = normalize_dim("scatter_add", dim, x.dim());
  LIMPID_CHECK(x.dtype() != DType::boolean, DTypeError, "[scatter_add] does not take bool, got ", x);
  LIMPID_CHECK(x.dim() == index.dim() && x.dim() == source.dim(), ShapeError,
               "[scatter_add] index and source must have the rank of the input: ", index.shape(), ", ", source.shape(),
               " and ", x.shape());
  for (int i = 0; i < x.dim(); i++) {
    LIMPID_CHECK((i == d || index.shape()[i] <= x.shape()[i]) && index.shape()[i] <= source.shape()[i], ShapeError,
                 "[scatter_add] index ", index.shape(), " is larger than the input ", x.shape(), " or the source ",
                 source.shape(), " in dim ", i);
  }
  Tensor out = clone(x);
  Tensor flat_out = at_least_1d(out);
  kernels_for(x.device()).scatter_add(flat_out, d, at_least_1d(at), at_least_1d(source));
  return out;
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  Tensor at = one_dim_index("index_select", x, index);
  int d = normalize_dim("index_select", dim, x.dim());
  Tensor from = at_least_1d(x);
  Shape shape = from.shape();
  shape[d] = at.numel();
  Tensor out = empty(shape, x.dtype(), x.device(), from.suggested_format());
  kernels_for(x.device()).index_select(out, from, d, at);
  if (x.dim() > 0) return out;
  LIMPID_CHECK(at.numel() == 1, ShapeError, "[index_select] a 0-d input takes one index, got ", at.numel());
  return reshape(out, Shape());
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor at = one_dim_index("index_add", x, index);
  check_source("index_add", x, source);
  int d = normalize_dim("index_add", dim, x.dim());
  LIMPID_CHECK(x.dtype() != DType::boolean, DTypeError, "[index_add] does not take bool, got ", x);
  Tensor out = clone(x);
  Tensor target = at_least_1d(out);
  Tensor from = at_least_1d(source);
  Shape expected = target.shape();
  expected[d] = at.numel();
  LIMPID_CHECK(from.shape() == expected, ShapeError, "[index_add] source must be ", expected, ", got ", source.shape());
  kernels_for(x.device()).index_add(target, d, at, from);
  return out;
}

Tensor one_hot(const Tensor& index, std::int64_t classes) {
  Tensor at = checked_index("one_hot", index, index);
  if (classes == -1) {  // as many as the largest index asks for
    LIMPID_CHECK(index.numel() > 0, ArgumentError, "[one_hot] cannot infer the classes of an empty index");
    classes = reduce(ReduceOp::max, "one_hot", at, {}, false).item_int() + 1;
  }
  LIMPID_CHECK(classes > 0, ArgumentError, "[one_hot] classes must be positive, got ", classes);
  Shape shape = index.shape();
  shape.push_back(classes);
  Tensor out = empty(shape, DType::int64, index.device());
  kernels_for(index.device()).one_hot(out, at);
  return out;
}

}  // namespace limpid::raw
