#include <limpid/tensor/shape.h>

#include <algorithm>

namespace limpid {

Shape::Shape(std::span<const std::int64_t> dims) {
  LIMPID_CHECK(dims.size() <= kMaxDims, ShapeError, "[shape] at most ", kMaxDims, " dims are supported, got ",
               dims.size());
  rank_ = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), dims_);
}

Shape Shape::filled(int rank, std::int64_t value) {
  Shape s;
  for (int i = 0; i < rank; i++) s.push_back(value);
  return s;
}

void Shape::push_back(std::int64_t dim) { insert(rank_, dim); }

void Shape::insert(int at, std::int64_t dim) {
  LIMPID_CHECK(rank_ < kMaxDims, ShapeError, "[shape] at most ", kMaxDims, " dims are supported, got ", rank_ + 1);
  for (int i = rank_; i > at; i--) dims_[i] = dims_[i - 1];
  dims_[at] = dim;
  rank_++;
}

void Shape::erase(int at) {
  for (int i = at; i + 1 < rank_; i++) dims_[i] = dims_[i + 1];
  rank_--;
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.size(); i++) out += (i ? "," : "") + std::to_string(shape[i]);
  return out + "]";
}

namespace {
// Dims from the innermost (fastest) outwards.
void inner_to_outer(int rank, MemoryFormat format, int (&order)[kMaxDims]) {
  for (int i = 0; i < rank; i++) order[i] = rank - 1 - i;
  if (format == MemoryFormat::channels_last) {
    order[0] = 1;  // C
    order[1] = 3;  // W
    order[2] = 2;  // H
    order[3] = 0;  // N
  }
}
}  // namespace

Strides strides_for(const Shape& shape, MemoryFormat format) {
  LIMPID_CHECK(format == MemoryFormat::contiguous || shape.size() == 4, ShapeError,
               "[channels_last] expects 4 dims, got ", shape);
  Strides strides = shape;
  int order[kMaxDims];
  inner_to_outer(shape.size(), format, order);
  std::int64_t step = 1;
  for (int i = 0; i < shape.size(); i++) {
    strides[order[i]] = step;
    step *= std::max<std::int64_t>(shape[order[i]], 1);
  }
  return strides;
}

bool is_contiguous(const Shape& shape, const Strides& strides, MemoryFormat format) {
  if (format == MemoryFormat::channels_last && shape.size() != 4) return false;
  int order[kMaxDims];
  inner_to_outer(shape.size(), format, order);
  std::int64_t step = 1;
  bool dense = true;
  for (int i = 0; i < shape.size(); i++) {
    std::int64_t extent = shape[order[i]];
    if (extent == 0) return true;
    if (extent != 1 && strides[order[i]] != step) dense = false;
    step *= extent;
  }
  return dense;
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  if (a == b) return a;
  int rank = std::max(a.size(), b.size());
  Shape out = Shape::filled(rank, 1);
  for (int i = 1; i <= rank; i++) {
    std::int64_t da = i <= a.size() ? a[a.size() - i] : 1;
    std::int64_t db = i <= b.size() ? b[b.size() - i] : 1;
    LIMPID_CHECK(da == db || da == 1 || db == 1, ShapeError, "[", op, "] cannot broadcast ", a, " with ", b);
    out[rank - i] = da == 1 ? db : da;
  }
  return out;
}

int normalize_dim(const char* op, std::int64_t dim, int rank) {
  int limit = std::max(rank, 1);  // a 0-d tensor accepts dim 0 and -1, as in PyTorch
  LIMPID_CHECK(dim >= -limit && dim < limit, IndexError, "[", op, "] dim ", dim, " is out of range for rank ", rank);
  return static_cast<int>(dim < 0 ? dim + limit : dim);
}

}  // namespace limpid
