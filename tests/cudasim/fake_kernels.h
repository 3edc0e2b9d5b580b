// The CPU's kernels as the kernel table of the fake GPU: each call becomes an operation of the current stream and runs,
// on the fake's memory, when the stream gets there. With it whole programs run on the fake without a CUDA kernel: what
// is tested is the host's part, its streams, copies and memory. A program that links fake_kernels.cpp has the table.
//
// An operation knows its tensors by address only: it keeps nothing alive, so memory that is reused too early is seen.
// What a kernel refuses (an index out of range) is a fault of the device. Entries that read back wait for their stream.
#pragma once

#include <cstdint>

namespace limpid::cudasim::fake {

std::uint64_t kernels_queued();  // calls of the table so far

}  // namespace limpid::cudasim::fake
