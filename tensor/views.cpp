// Views: new shapes and strides over the same storage.
#include <limpid/tensor/raw.h>

namespace limpid::raw {

bool overlaps_itself(const Tensor& x) {
  if (x.numel() < 2) return false;
  // By growing stride, each dim must step over all that the smaller ones reach.
  int order[kMaxDims];
  int rank = 0;
  for (int i = 0; i < x.dim(); i++) {
    if (x.shape()[i] == 1) continue;
    int at = rank++;
    while (at > 0 && x.strides()[order[at - 1]] > x.strides()[i]) {
      order[at] = order[at - 1];
      at--;
    }
    order[at] = i;
  }
  std::int64_t reach = 0;
  for (int i = 0; i < rank; i++) {
    if (x.strides()[order[i]] <= reach) return true;
    reach += x.strides()[order[i]] * (x.shape()[order[i]] - 1);
  }
  return false;
}

bool shares_memory(const Tensor& a, const Tensor& b) {
  if (a.storage() != b.storage() || a.numel() == 0 || b.numel() == 0) return false;
  auto last = [](const Tensor& t) {
    std::int64_t at = t.impl()->offset;
    for (int i = 0; i < t.dim(); i++) at += t.strides()[i] * (t.shape()[i] - 1);
    return at;
  };
  return a.impl()->offset <= last(b) && b.impl()->offset <= last(a);
}

bool is_overwritten_by(const Tensor& x, const Tensor& out) {
  if (x.storage() != out.storage()) return false;
  bool same_places = x.impl()->offset == out.impl()->offset && x.shape() == out.shape() && x.strides() == out.strides();
  return !same_places && shares_memory(x, out);
}

Shape infer_shape(const char* op, const Tensor& x, Shape shape) {
  int unknown = -1;
  std::int64_t known = 1;
  bool overflow = false;
  for (int i = 0; i < shape.size(); i++) {
    if (shape[i] == -1) {
      LIMPID_CHECK(unknown < 0, ShapeError, "[", op, "] only one dim can be -1, got ", shape);
      unknown = i;
    } else {
      LIMPID_CHECK(shape[i] >= 0, ShapeError, "[", op, "] dims must not be negative, got ", shape);
      overflow |= __builtin_mul_overflow(known, shape[i], &known);
    }
  }
  bool fits = !overflow && (unknown < 0 ? known == x.numel() : known > 0 && x.numel() % known == 0);
  LIMPID_CHECK(fits, ShapeError, "[", op, "] shape ", shape, " does not hold the ", x.numel(), " elements of ", x);
  if (unknown >= 0) shape[unknown] = x.numel() / known;
  return shape;
}

std::optional<Tensor> try_view(const Tensor& x, const Shape& shape) {
  if (x.is_contiguous()) return as_strided(x, shape, strides_for(shape), x.impl()->offset);
  // Groups of old dims that are contiguous among themselves can be re-cut into new dims (NumPy's rule): walk both shapes
  // from the back, and give each new dim a stride inside the current group.
  Strides strides = Shape::filled(shape.size(), 0);
  int old_dim = x.dim() - 1;
  int new_dim = shape.size() - 1;
  while (old_dim >= 0) {
    std::int64_t group = x.shape()[old_dim];
    std::int64_t step = x.strides()[old_dim];
    while (old_dim > 0 && (x.shape()[old_dim - 1] == 1 ||
                           x.strides()[old_dim - 1] == x.shape()[old_dim] * x.strides()[old_dim])) {
      old_dim--;
      group *= x.shape()[old_dim];
    }
    std::int64_t filled = 1;
    while (new_dim >= 0 && (filled < group || shape[new_dim] == 1)) {
      strides[new_dim] = step * filled;
      filled *= shape[new_dim];
      new_dim--;
    }
    if (filled != group) return std::nullopt;
    old_dim--;
  }
  return as_strided(x, shape, strides, x.impl()->offset);
}

Tensor reshape(const Tensor& x, Shape shape) {
  shape = infer_shape("reshape", x, shape);
  if (auto view = try_view(x, shape)) return *view;
  return as_strided(contiguous(x), shape, strides_for(shape), 0);
}

Tensor permute(const Tensor& x, const std::vector<std::int64_t>& dims) {
  LIMPID_CHECK(static_cast<int>(dims.size()) == x.dim(), ShapeError, "[permute] expects ", x.dim(), " dims for ", x,
               ", got ", dims.size());
  Shape shape = x.shape();
  Strides strides = x.strides();
  unsigned seen = 0;
  for (int i = 0; i < x.dim(); i++) {
    int from = normalize_dim("permute", dims[static_cast<std::size_t>(i)], x.dim());
    LIMPID_CHECK(!(seen & (1u << from)), ArgumentError, "[permute] dim ", from, " is named twice in ", Shape(dims));
    seen |= 1u << from;
    shape[i] = x.shape()[from];
    strides[i] = x.strides()[from];
  }
  return as_strided(x, shape, strides, x.impl()->offset);
}

Tensor transpose(const Tensor& x, std::int64_t a, std::int64_t b) {
  int da = normalize_dim("transpose", a, x.dim());
  int db = normalize_dim("transpose", b, x.dim());
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::swap(shape[da], shape[db]);
  std::swap(strides[da], strides[db]);
  return as_strided(x, shape, strides, x.impl()->offset);
}

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  LIMPID_CHECK(x.dim() > 0, ShapeError, "[narrow] cannot narrow a 0-d tensor");
  int d = normalize_dim("narrow", dim, x.dim());
  std::int64_t extent = x.shape()[d];
  LIMPID_CHECK(start >= 0 && length >= 0 && start <= extent - length, IndexError, "[narrow] ", length,
               " elements from ", start, " are outside dim ", d, " of size ", extent);
  Shape shape = x.shape();
  shape[d] = length;
  return as_strided(x, shape, x.strides(), x.impl()->offset + start * x.strides()[d]);
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  LIMPID_CHECK(x.dim() > 0, ShapeError, "[select] cannot select from a 0-d tensor");
  int d = normalize_dim("select", dim, x.dim());
  std::int64_t extent = x.shape()[d];
  LIMPID_CHECK(index >= -extent && index < extent, IndexError, "[select] index ", index, " is out of range for dim ", d,
               " of size ", extent);
  if (index < 0) index += extent;
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(d);
  strides.erase(d);
  return as_strided(x, shape, strides, x.impl()->offset + index * x.strides()[d]);
}

Tensor expand(const char* op, const Tensor& x, const Shape& wanted) {
  if (x.shape() == wanted) return x;
  LIMPID_CHECK(wanted.size() >= x.dim(), ShapeError, "[", op, "] cannot expand ", x.shape(), " to ", wanted);
  Shape shape = wanted;
  Strides strides = Shape::filled(wanted.size(), 0);
  int lead = wanted.size() - x.dim();
  for (int i = 0; i < wanted.size(); i++) {
    std::int64_t extent = i >= lead ? x.shape()[i - lead] : 1;
    if (shape[i] == -1 && i >= lead) shape[i] = extent;
    LIMPID_CHECK(shape[i] >= 0 && (extent == shape[i] || extent == 1), ShapeError, "[", op, "] cannot expand ",
                 x.shape(), " to ", wanted);
    if (i >= lead && extent == shape[i]) strides[i] = x.strides()[i - lead];
  }
  std::int64_t numel = 1;
  bool overflow = false, empty = false;
  for (std::int64_t dim : shape) {
    empty |= dim == 0;
    overflow |= __builtin_mul_overflow(numel, dim, &numel);
  }
  LIMPID_CHECK(empty || !overflow, ShapeError, "[", op, "] ", wanted, " has more elements than fit in 63 bits");
  return as_strided(x, shape, strides, x.impl()->offset);
}

Tensor squeeze(const Tensor& x) {
  Shape shape;
  Strides strides;
  for (int i = 0; i < x.dim(); i++) {
    if (x.shape()[i] == 1) continue;
    shape.push_back(x.shape()[i]);
    strides.push_back(x.strides()[i]);
  }
  return as_strided(x, shape, strides, x.impl()->offset);
}

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  int d = normalize_dim("squeeze", dim, x.dim());
  if (x.dim() == 0 || x.shape()[d] != 1) return as_strided(x, x.shape(), x.strides(), x.impl()->offset);
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(d);
  strides.erase(d);
  return as_strided(x, shape, strides, x.impl()->offset);
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  int d = normalize_dim("unsqueeze", dim, x.dim() + 1);
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::int64_t stride = d < x.dim() ? shape[d] * strides[d] : 1;
  shape.insert(d, 1);
  strides.insert(d, stride);
  return as_strided(x, shape, strides, x.impl()->offset);
}

}  // namespace limpid::raw
