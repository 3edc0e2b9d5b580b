// Shapes and strides: up to kMaxDims numbers held inline, so that no tensor needs a heap vector for them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <limpid/base/error.h>

namespace limpid {

inline constexpr int kMaxDims = 8;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  Shape(const std::vector<std::int64_t>& dims) : Shape(std::span(dims)) {}
  explicit Shape(std::span<const std::int64_t> dims);
  // `rank` dims, all `value`.
  static Shape filled(int rank, std::int64_t value);

  int size() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  std::int64_t operator[](int i) const { return dims_[i]; }
  std::int64_t& operator[](int i) { return dims_[i]; }
  std::int64_t back() const { return dims_[rank_ - 1]; }
  const std::int64_t* begin() const { return dims_; }
  const std::int64_t* end() const { return dims_ + rank_; }
  std::int64_t* begin() { return dims_; }
  std::int64_t* end() { return dims_ + rank_; }
  void push_back(std::int64_t dim);
  void insert(int at, std::int64_t dim);
  void erase(int at);
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; i++) n *= dims_[i];
    return n;
  }
  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; i++)
      if (dims_[i] != other.dims_[i]) return false;
    return true;
  }
  std::vector<std::int64_t> vec() const { return {begin(), end()}; }

 private:
  std::int64_t dims_[kMaxDims] = {};
  int rank_ = 0;
};
using Strides = Shape;

std::string to_string(const Shape& shape);  // "[8,4,32,32]"

enum class MemoryFormat : std::uint8_t { contiguous, channels_last };

// Row-major strides; channels_last (rank 4, shape NCHW) gives strides {H*W*C, 1, W*C, C}.
Strides strides_for(const Shape& shape, MemoryFormat format = MemoryFormat::contiguous);

// True when walking the dims in that format's order visits memory without gaps. Dims of size 1 do not matter; empty
// tensors are contiguous in every format.
bool is_contiguous(const Shape& shape, const Strides& strides, MemoryFormat format = MemoryFormat::contiguous);

// NumPy broadcasting of two shapes; ShapeError "[op] cannot broadcast [2,3] with [4]".
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

// -1 counts from the end; IndexError "[op] dim 3 is out of range for rank 2".
int normalize_dim(const char* op, std::int64_t dim, int rank);

}  // namespace limpid
