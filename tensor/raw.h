// Raw operations: the same mathematics without recording. They check arguments, infer shape and dtype, allocate the output
// and call the kernel. autograd/ wraps them; kernels and nodes use them directly. Errors start with the op's name.
// Outputs take role `activation` in the forward phase and `temp` in backward and optimizer phases.
#pragma once

#include <optional>
#include <vector>

#include <limpid/tensor/creation.h>
#include <limpid/tensor/kernels.h>

namespace limpid {

// The role of an op's output in the current phase.
memory::Role op_role();

namespace raw {

// ---- allocation (raw_alloc.cpp)
Tensor empty(const Shape& shape, DType dtype, Device device, MemoryFormat format = MemoryFormat::contiguous);
Tensor empty_like(const Tensor& x);                // same shape; strides kept when dense, else contiguous
Tensor empty_like(const Tensor& x, DType dtype);
Tensor zeros(const Shape& shape, DType dtype, Device device);
Tensor workspace(std::size_t bytes, Device device);  // u8, role workspace; undefined for 0 bytes

// ---- views (views.cpp): share storage
Tensor as_strided(const Tensor& x, const Shape& shape, const Strides& strides, std::int64_t offset);
Tensor detach(const Tensor& x);
std::optional<Tensor> try_view(const Tensor& x, const Shape& shape);  // nothing when a copy would be needed
Shape infer_shape(const char* op, const Tensor& x, Shape shape);       // resolves one -1
Tensor reshape(const Tensor& x, Shape shape);
Tensor permute(const Tensor& x, const std::vector<std::int64_t>& dims);
Tensor transpose(const Tensor& x, std::int64_t a, std::int64_t b);
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
Tensor expand(const char* op, const Tensor& x, const Shape& shape);  // -1 keeps a dim
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, std::int64_t dim);
Tensor unsqueeze(const Tensor& x, std::int64_t dim);

// True when two elements share one place (a stride of 0, say), or may: exact for views, careful for odd strides.
bool overlaps_itself(const Tensor& x);
// True when the ranges of memory that the two reach meet.
bool shares_memory(const Tensor& a, const Tensor& b);
// True when writing `out` element by element may change elements of `x` that are still to be read.
bool is_overwritten_by(const Tensor& x, const Tensor& out);

// ---- copies
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::contiguous);
Tensor clone(const Tensor& x);
Tensor cast(const Tensor& x, DType dtype);
// Between the CPU and a GPU it returns when the bytes are there, unless `non_blocking` and the CPU's side is pinned: the
// result is pinned then too, and is to be read after the stream got there.
Tensor to_device(const Tensor& x, Device device, bool non_blocking = false);
Tensor pin_memory(const Tensor& x);  // x itself when it is pinned; else a copy. DeviceError without a GPU
void copy(Tensor& out, const Tensor& x);  // broadcasts x, casts; x may share memory with out
void fill(Tensor& out, const Scalar& value);  // ArgumentError when the dtype cannot hold the value
Tensor flip(const Tensor& x, const std::vector<std::int64_t>& dims);
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim);
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value);

// ---- elementwise (raw_elementwise.cpp)
Tensor unary(UnaryOp op, const Tensor& x, UnaryParams params = {});
Tensor unary_grad(UnaryOp op, const Tensor& x, const Tensor& y, const Tensor& grad, UnaryParams params = {});
Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b);
// Gradient of operand a (or b), still in the broadcast shape.
Tensor binary_grad(BinaryOp op, bool of_b, const Tensor& a, const Tensor& b, const Tensor& y, const Tensor& grad);
Tensor compare(CompareOp op, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor is_finite(const Tensor& x);
void add_scaled(Tensor& out, const Tensor& x, double alpha);  // out += alpha * x; same shape
bool all_finite(const Tensor& x);
// Names of ops as the tables spell them.
const char* op_name(UnaryOp op);
const char* op_name(BinaryOp op);
const char* op_name(CompareOp op);
enum class Reads : std::uint8_t { neither, input, output };
Reads grad_reads(UnaryOp op);

// ---- reductions (raw_reduce.cpp); empty dims = all
Tensor reduce(ReduceOp op, const char* name, const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim);
Tensor mean(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim);
Tensor arg_reduce(bool maximum, const Tensor& x, std::optional<std::int64_t> dim, bool keepdim);
// Sums a gradient of the broadcast shape back to `shape`; x itself when the shapes agree.
Tensor sum_to(const Tensor& x, const Shape& shape);

// ---- indexing (raw_index.cpp)
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor one_hot(const Tensor& index, std::int64_t classes);

// ---- linear algebra (raw_matmul.cpp)
Tensor matmul(const Tensor& a, const Tensor& b);
// x [m,k] times w [n,k] transposed + bias [n]
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

}  // namespace raw
}  // namespace limpid
