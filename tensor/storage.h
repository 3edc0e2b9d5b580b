// Storage: the bytes behind one or more tensors. They come from the device's caching allocator, or belong to an outside
// owner (from_blob). Holds the version counter that views and detach() share: every write bumps it, and a tensor saved
// for backward compares it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <limpid/base/macros.h>
#include <limpid/base/names.h>
#include <limpid/base/ref.h>
#include <limpid/memory/device.h>
#include <limpid/memory/role.h>
#include <limpid/tensor/device.h>

namespace limpid {

namespace memory {
struct Block;
class Allocator;
}  // namespace memory

// The allocator of a device's tensors and workspaces. DeviceError when this build has no such device.
memory::Allocator& allocator_for(Device device);
// The pool of the data set and the loader on the host of that device: a dry device has one of its own.
memory::Allocator& io_allocator_for(Device device);

// Page-locked host memory, for tensors on the CPU that are copied to and from a GPU without waiting. DeviceError without
// a GPU.
memory::Allocator& pinned_allocator();

// While it lives, storages that this thread creates on `device` come from `pool`: the thread's default device (the CPU, or
// dry:cpu in a dry run) where none is named. A loader's threads use it, so that whatever a user's data set creates stays out of the training pool.
class PoolScope {
 public:
  explicit PoolScope(memory::Allocator& pool, Device device = default_device());
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  memory::Allocator* former_;
  Device former_device_;
};

class Storage final : public RefCounted {
 public:
  // `bytes` uninitialised bytes, on a GPU in order with the current stream; OutOfMemoryError. 0 bytes: data() is null.
  static Ref<Storage> create(std::size_t bytes, Device device, memory::Role role, NameId name = 0);
  // The same from a given pool, e.g. the loader's.
  static Ref<Storage> create_in(memory::Allocator& pool, std::size_t bytes, Device device, memory::Role role,
                                NameId name = 0);
  // Memory of an outside owner; `deleter` (may be empty) runs when the last tensor lets go.
  static Ref<Storage> wrap(void* data, std::size_t bytes, Device device, std::function<void()> deleter);
  ~Storage() override;

  // DeviceError on a dry device: there are no bytes.
  void* data() const {
    if (LIMPID_UNLIKELY(device_.is_dry())) throw_dry();
    return data_;
  }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  std::uint32_t version() const { return version_; }
  void bump_version() { version_++; }

  memory::Role role() const;
  void set_role(memory::Role role);
  void set_name(NameId name);
  NameId name() const;
  // The allocator's record; null for no bytes and for memory of an outside owner.
  const memory::Block* block() const { return block_; }
  // True for memory of pinned_allocator().
  bool is_pinned() const;
  // Also `stream` uses the bytes: once let go, they are not reused before that stream has got there.
  void record_stream(memory::StreamId stream);
  // A tensor kept for backward counts as role `saved` for as long as at least one node keeps it; parameters, batches
  // and external memory stay what they are.
  void add_saved();
  void remove_saved();

 private:
  Storage() = default;
  [[noreturn]] void throw_dry() const;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  std::uint32_t version_ = 0;
  std::uint32_t saved_ = 0;
  memory::Role role_before_saved_ = memory::Role::activation;
  memory::Block* block_ = nullptr;
  memory::Allocator* pool_ = nullptr;
  bool external_ = false;
  std::function<void()> deleter_;
};

}  // namespace limpid
