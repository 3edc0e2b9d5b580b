#include <limpid/tensor/storage.h>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/backend.h>
#include <limpid/tensor/dry.h>

namespace limpid {

namespace {
thread_local memory::Allocator* scoped_pool = nullptr;
thread_local Device scoped_device;
}  // namespace

PoolScope::PoolScope(memory::Allocator& pool, Device device) : former_(scoped_pool), former_device_(scoped_device) {
  scoped_pool = &pool;
  scoped_device = device;
}
PoolScope::~PoolScope() {
  scoped_pool = former_;
  scoped_device = former_device_;
}

memory::Allocator& allocator_for(Device device) {
  if (device.is_dry()) return dry::pool(device);
  if (device.type == DeviceType::cpu) return memory::host_allocator();
  return backend_of(device).allocator(device.index);
}

memory::Allocator& pinned_allocator() { return cuda_backend().pinned_allocator(); }

memory::Allocator& io_allocator_for(Device device) { return device.is_dry() ? dry::io_pool() : memory::io_allocator(); }

Ref<Storage> Storage::create(std::size_t bytes, Device device, memory::Role role, NameId name) {
  bool scoped = scoped_pool && device == scoped_device;
  return create_in(scoped ? *scoped_pool : allocator_for(device), bytes, device, role, name);
}

Ref<Storage> Storage::create_in(memory::Allocator& pool, std::size_t bytes, Device device, memory::Role role, NameId name) {
  Ref<Storage> storage(new Storage);
  storage->bytes_ = bytes;
  storage->device_ = device;
  storage->pool_ = &pool;
  const memory::StreamId stream =
      device.type == DeviceType::cuda ? backend_of(device).current_stream(device.index)
      : device == kDryCuda            ? dry::current_stream()
                                      : memory::StreamId{0};
  storage->block_ = pool.allocate(bytes, role, name, stream);
  storage->data_ = storage->block_ ? storage->block_->ptr : nullptr;
  return storage;
}

Ref<Storage> Storage::wrap(void* data, std::size_t bytes, Device device, std::function<void()> deleter) {
  Ref<Storage> storage(new Storage);
  storage->data_ = data;
  storage->bytes_ = bytes;
  storage->device_ = device;
  storage->pool_ = &allocator_for(device);
  storage->deleter_ = std::move(deleter);
  storage->pool_->add_external(bytes);
  storage->external_ = true;
  return storage;
}

void Storage::throw_dry() const {
  LIMPID_THROW(DeviceError, "[data] ", bytes_, " bytes on ", device_, " have no contents: nothing was computed");
}

Storage::~Storage() {
  if (block_) pool_->free(block_);
  if (external_) pool_->remove_external(bytes_);
  if (deleter_) deleter_();
}

memory::Role Storage::role() const {
  if (external_) return memory::Role::external;
  return block_ ? block_->role : memory::Role::other;
}

void Storage::set_role(memory::Role role) {
  if (!block_) return;
  if (saved_ > 0) {
    role_before_saved_ = role;  // takes effect when the last node lets go
  } else {
    pool_->set_role(block_, role);
  }
}

void Storage::set_name(NameId name) {
  if (block_) pool_->set_name(block_, name);
}

NameId Storage::name() const { return block_ ? block_->name : 0; }

bool Storage::is_pinned() const { return block_ && pool_->device().is_page_locked(); }

void Storage::record_stream(memory::StreamId stream) {
  if (block_) pool_->record_stream(block_, stream);
}

void Storage::add_saved() {
  if (saved_++ > 0 || !block_) return;
  role_before_saved_ = block_->role;
  bool own_row = role_before_saved_ == memory::Role::param || role_before_saved_ == memory::Role::io ||
                 role_before_saved_ == memory::Role::optimizer || role_before_saved_ == memory::Role::grad;
  if (!own_row) pool_->set_role(block_, memory::Role::saved);
}

void Storage::remove_saved() {
  if (--saved_ > 0 || !block_) return;
  if (block_->role == memory::Role::saved) pool_->set_role(block_, role_before_saved_);
}

}  // namespace limpid
