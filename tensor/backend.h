// What tensor/ asks of a device that is not the CPU: its kernels, its memory and copies. A plain struct of functions,
// like the kernel table. The room of the backend defines it: cuda/backend.cpp, or cuda/absent.cpp in a build without
// CUDA. Not here: streams, events and errors of CUDA (cuda/runtime.h).
#pragma once

#include <cstdint>
#include <memory>

#include <limpid/memory/device.h>
#include <limpid/tensor/device.h>

namespace limpid {

namespace memory {
class Allocator;
}
class Storage;
class Tensor;
struct Kernels;

struct Backend {
  // DeviceError that says why when the device cannot be used: no driver, no such index, ... Cheap when it can.
  void (*check_device)(Device device);
  // The kernel table, or null while there is none.
  const Kernels* (*kernels)();
  // The memory of device `index`, for a pool of one's own.
  std::shared_ptr<memory::MemoryDevice> (*memory)(int index);
  // Of the tensors and workspaces of device `index`.
  memory::Allocator& (*allocator)(int index);
  // The stream that orders this thread's work on device `index` now.
  memory::StreamId (*current_stream)(int index);
  // The same bytes on another device: both are dense with equal shape, strides and dtype, and at least one of them is
  // on this backend. In order with the current streams. To and from the host it returns when the bytes are there,
  // unless `non_blocking` and the host's side is pinned.
  void (*copy)(Tensor& out, const Tensor& x, bool non_blocking);
  // Page-locked host memory, which copies read and write asynchronously. In order with no stream: a block that a copy
  // uses is reused when the copy is done.
  memory::Allocator& (*pinned_allocator)();
  // Waits for the copies that still read or write this host memory. Before the host writes to it again.
  void (*wait_for_copies)(const Storage& host);
};

const Backend& cuda_backend();
// The kernel table of dry:cuda: the plan functions of the CUDA kernels, and entries that allocate what those allocate
// and compute nothing. Needs no CUDA. cuda/dry_kernels.cpp.
const Kernels& dry_cuda_kernels();

// The backend of a device that can be used; DeviceError says why it cannot. Not for cpu and dry devices.
const Backend& backend_of(Device device);

// Whether tensors of the device can be computed with: false for a device that is not there or has no kernels.
bool computes(Device device) noexcept;
// The first CUDA device if it computes, else the CPU.
Device best_device() noexcept;

}  // namespace limpid
