// Copies between the host and GPUs, in order with the current streams, and the memory that they use.
#pragma once

#include <limpid/cuda/runtime.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/tensor.h>

namespace limpid::cu {

// The pool of a GPU's tensors, and that of pinned host memory: made at first use, never destroyed.
memory::Allocator& allocator(int device);
memory::Allocator& pinned_allocator();
// Policy and settings of the pool of a GPU. ArgumentError once it exists.
void set_memory_policy(int device, memory::PolicyFactory policy, const memory::AllocatorSettings& settings = {});
bool pool_exists(int device);

// tensor/backend.h says what these two do.
void copy(Tensor& out, const Tensor& x, bool non_blocking);
void wait_for_copies(const Storage& host);

// A copy of a pinned host tensor that runs beside the computing: on copy_stream(device), while what is in the current
// stream goes on. The current stream's later work waits for it, the host does not. The host's memory may be written to
// again after wait_for_copies(). A tensor that is not pinned is copied as by to(): in the current stream, and waited
// for.
Tensor upload(const Tensor& host, int device);

}  // namespace limpid::cu
