#include <limpid/memory/allocator.h>

#include <algorithm>
#include <mutex>

#include <limpid/base/error.h>
#include <limpid/memory/host_memory.h>
#include <limpid/memory/verdict.h>

namespace limpid::memory {
namespace {

// Requests from here on cannot be rounded without overflow; no device has that much.
constexpr std::size_t kMaxRequest = std::size_t{1} << 60;

// What host_allocator() will be made of. A function's static, because statics of other files may ask for tensors.
struct HostPool {
  std::mutex mutex;
  PolicyFactory policy = make_native_policy;
  AllocatorSettings settings;
  bool exists = false;
  std::shared_ptr<HostMemory> device = std::make_shared<HostMemory>("cpu");
  std::shared_ptr<HostMemory> io_device = std::make_shared<HostMemory>("cpu (io)");
};
HostPool& host_pool() {
  static auto* pool = new HostPool;
  return *pool;
}

}  // namespace

Allocator::Allocator(std::shared_ptr<MemoryDevice> device, AllocatorSettings settings, PolicyFactory policy)
    : device_(std::move(device)), settings_(settings), books_(lock_) {
  LIMPID_CHECK(device_, ArgumentError, "[allocator] needs a device");
  settings_.validate();
  for (std::size_t pool = 0; pool < settings_.pool_count(); pool++) {
    policies_.push_back(policy(PolicyContext{*device_, settings_, books_}));
  }
  fraction_ = settings_.per_process_memory_fraction;
  apply_limit();
}

Allocator::~Allocator() = default;

Block* Allocator::allocate(std::size_t bytes, Role role, NameId name, StreamId stream) {
  if (bytes == 0) return nullptr;
  const Scope& scope = current_scope();
  std::lock_guard guard(lock_);
  Block* block = LIMPID_LIKELY(bytes <= kMaxRequest) ? policy_of(role).allocate(bytes, stream) : nullptr;
  if (LIMPID_UNLIKELY(!block)) block = allocate_again(bytes, role, name, stream);
  block->id = next_id_++;
  block->role = role;
  block->role_pool = settings_.role_pools[static_cast<std::size_t>(role)];
  block->name = name;
  block->op = scope.op;
  block->module = scope.module;
  block->phase = scope.phase;
  books_.allocated(*block, scope);
  after();
  return block;
}

// The policy has given back its own cache; those of the other pools are still there.
Block* Allocator::allocate_again(std::size_t bytes, Role role, NameId name, StreamId stream) {
  if (policies_.size() > 1 && bytes <= kMaxRequest) {
    for (auto& policy : policies_) {
      if (policy.get() != &policy_of(role)) policy->release_cached();
    }
    if (Block* block = policy_of(role).allocate(bytes, stream)) return block;
  }
  out_of_memory(bytes, role, name, stream);
}

void Allocator::free(Block* block) noexcept {
  if (!block) return;
  std::lock_guard guard(lock_);
  books_.freed(*block, current_scope());
  policies_[block->role_pool]->free(block);
  after();
}

void Allocator::set_role(Block* block, Role role) noexcept {
  std::lock_guard guard(lock_);
  if (block->role == role) return;
  books_.rows.live[static_cast<std::size_t>(block->role)] -= block->requested;
  books_.rows.live[static_cast<std::size_t>(role)] += block->requested;
  block->role = role;
  books_.trace.append(TraceKind::role, block->id, block->requested, role, block->name, block->stream, current_scope());
  after();
}

void Allocator::set_name(Block* block, NameId name) noexcept {
  std::lock_guard guard(lock_);
  if (block->name == name) return;
  block->name = name;
  books_.trace.append(TraceKind::name, block->id, block->requested, block->role, name, block->stream, current_scope());
}

void Allocator::record_stream(Block* block, StreamId stream) {
  if (!block) return;
  std::lock_guard guard(lock_);
  policies_[block->role_pool]->record_stream(block, stream);
  books_.trace.append(TraceKind::record_stream, block->id, block->requested, block->role, block->name, stream,
                      current_scope());
}

void Allocator::release(std::uint64_t keep) {
  books_.trace.append(TraceKind::empty_cache, 0, keep, Role::other, 0, 0, current_scope());
  for (auto& policy : policies_) policy->release_to(keep);
  after();
}

void Allocator::empty_cache(std::uint64_t keep) {
  std::lock_guard guard(lock_);
  release(keep);
}

void Allocator::end_step() {
  std::lock_guard guard(lock_);
  if (books_.rows.reserved > settings_.retain) release(settings_.retain);
}

void Allocator::add_external(std::size_t bytes) {
  std::lock_guard guard(lock_);
  books_.rows.external += bytes;
}

void Allocator::remove_external(std::size_t bytes) {
  std::lock_guard guard(lock_);
  LIMPID_CHECK(bytes <= books_.rows.external, InternalError, "[allocator] external memory is ", books_.rows.external,
               " bytes, cannot remove ", bytes);
  books_.rows.external -= bytes;
}

void Allocator::set_capacity(std::uint64_t bytes) {
  std::lock_guard guard(lock_);
  if (bytes > 0 && books_.rows.reserved > bytes) release(0);
  device_->set_capacity(bytes);
  apply_limit();
}

void Allocator::set_memory_fraction(double fraction) {
  LIMPID_CHECK(fraction >= 0 && fraction <= 1, ArgumentError, "[allocator] memory fraction must be in [0, 1], got ",
               fraction);
  std::lock_guard guard(lock_);
  fraction_ = fraction;
  apply_limit();
}

void Allocator::apply_limit() {
  limit_.reset();
  if (fraction_ < 1) limit_ = static_cast<std::uint64_t>(fraction_ * static_cast<double>(device_->mem_info().total));
  for (auto& policy : policies_) policy->set_limit(limit_);
}

void Allocator::after_device_call() {
  books_.device_changed = false;
  books_.device_refused = 0;
  books_.note_reserved_peak();
}

#ifndef NDEBUG
void Allocator::assert_balanced() const {
  const LedgerRows& r = books_.rows;
  LIMPID_CHECK(r.balanced(), InternalError, "[ledger] reserved is ", r.reserved, " bytes, its rows sum to ",
               r.live_total + r.rounding + r.slack + r.pending_free + r.free_in_used + r.free_whole);
  std::uint64_t sum = 0;
  for (std::uint64_t bytes : r.live) sum += bytes;
  LIMPID_CHECK(sum == r.live_total, InternalError, "[ledger] roles sum to ", sum, " bytes, live is ", r.live_total);
}
#endif

void Allocator::out_of_memory(std::size_t bytes, Role role, NameId name, StreamId stream) {
  books_.ooms++;
  books_.trace.append(TraceKind::oom, 0, bytes, role, name, stream, current_scope());
  OutOfMemoryInfo info;
  info.device = device_->name();
  info.requested = bytes;
  info.rounded = bytes <= kMaxRequest ? policy_of(role).round(bytes) : bytes;
  const LedgerRows& rows = books_.rows;
  info.live = rows.live_total + rows.rounding + rows.slack;
  info.reserved = rows.reserved;
  info.cached = rows.free_in_used + rows.free_whole;
  info.pending = rows.pending_free;
  MemoryInfo memory = device_->mem_info();
  info.device_free = memory.free;
  info.processes = device_->processes();
  info.capacity = memory.total;
  info.limit = limit_;
  info.role = role;
  info.name = name_of(name);
  info.scope = current_scope();
  info.device_asked = books_.device_refused;
  judge(info, policies_, settings_.role_pools[static_cast<std::size_t>(role)], rows, stream);
  look_back(info, name, books_.trace);
  after();
  throw OutOfMemoryError(std::move(info));
}

void Allocator::for_each_segment(const std::function<void(const Segment&, std::uint8_t)>& visit) const {
  for (std::size_t pool = 0; pool < policies_.size(); pool++) {
    policies_[pool]->for_each_segment([&](const Segment& s) { visit(s, static_cast<std::uint8_t>(pool)); });
  }
}

std::uint64_t Allocator::record_to(Trace::Sink sink) {
  std::lock_guard guard(lock_);
  if (books_.trace.is_whole()) {
    books_.trace.start_sink(std::move(sink), true);
    return 0;
  }
  std::vector<TraceRecord> live, uses;
  for_each_segment([&](const Segment& segment, std::uint8_t) {
    for (const Block* b = segment.first; b; b = b->next) {
      if (b->state != BlockState::allocated) continue;
      live.push_back({b->id, b->requested, b->stream, b->name, b->op, b->module, 0, 0, TraceKind::alloc, b->role,
                      b->phase, 0});
      if (!b->stream_uses) continue;
      for (StreamId stream : *b->stream_uses) {
        uses.push_back({b->id, b->requested, stream, b->name, b->op, b->module, 0, 0, TraceKind::record_stream, b->role,
                        b->phase, 0});
      }
    }
  });
  std::sort(live.begin(), live.end(), [](const TraceRecord& a, const TraceRecord& b) { return a.id < b.id; });
  if (!live.empty()) sink(live.data(), live.size());
  if (!uses.empty()) sink(uses.data(), uses.size());
  books_.trace.start_sink(std::move(sink), false);
  return live.size();
}

Stats Allocator::stats() const {
  std::lock_guard guard(lock_);
  return books_.stats();
}

std::int64_t Allocator::live_blocks() const {
  std::lock_guard guard(lock_);
  const auto& current = books_.metrics[static_cast<std::size_t>(Metric::allocation)].current;
  return current[0] + current[1];
}

std::string Allocator::memory_summary(bool abbreviated) const {
  return memory::memory_summary(stats(), device_->name(), abbreviated);
}

void Allocator::reset_peak_stats() {
  std::lock_guard guard(lock_);
  books_.reset_peaks();
}

// Only the rows are kept with a peak. What others hold of the device is read now: it is outside our sight between
// calls.
Ledger Allocator::complete(const LedgerRows& rows, const Scope& scope) const {
  Ledger ledger;
  static_cast<LedgerRows&>(ledger) = rows;
  MemoryInfo memory = device_->mem_info();
  std::uint64_t handed_out = memory.total - memory.free;
  ledger.other = handed_out - std::min(handed_out, books_.rows.reserved);
  ledger.capacity = std::max(memory.total, ledger.other + ledger.reserved);  // a peak from before set_capacity()
  ledger.device_free = ledger.capacity - ledger.other - ledger.reserved;
  ledger.scope = scope;
  ledger.peak_live = std::max(books_.peak_live.live_total, books_.rows.live_total);
  ledger.peak_reserved = books_.peak_reserved.reserved;
  return ledger;
}

Ledger Allocator::ledger() const {
  std::lock_guard guard(lock_);
  return complete(books_.rows, current_scope());
}

Ledger Allocator::ledger_at_peak() const {
  std::lock_guard guard(lock_);
  return complete(books_.peak_live, books_.peak_live_scope);
}

Ledger Allocator::ledger_at_reserved_peak() const {
  std::lock_guard guard(lock_);
  return complete(books_.peak_reserved, books_.peak_reserved_scope);
}

std::vector<SegmentInfo> Allocator::snapshot() const {
  std::lock_guard guard(lock_);
  std::vector<SegmentInfo> out;
  for_each_segment([&](const Segment& segment, std::uint8_t role_pool) {
    SegmentInfo info;
    info.address = reinterpret_cast<std::uintptr_t>(segment.base);
    info.size = segment.size;
    info.stream = segment.stream;
    info.pool = segment.pool;
    info.role_pool = role_pool;
    info.expandable = segment.expandable;
    for (const Block* b = segment.first; b != segment.end; b = b->next) {
      BlockInfo block;
      block.address = reinterpret_cast<std::uintptr_t>(b->ptr);
      block.size = b->size;
      block.state = b->state;
      if (b->state != BlockState::free) {
        block.requested = b->requested;
        block.rounded = b->rounded;
        block.role = b->role;
        block.phase = b->phase;
        block.name = b->name;
        block.op = b->op;
        block.module = b->module;
        block.id = b->id;
      }
      info.blocks.push_back(block);
    }
    out.push_back(std::move(info));
  });
  std::sort(out.begin(), out.end(), [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return out;
}

void set_host_policy(PolicyFactory policy, const AllocatorSettings& settings) {
  settings.validate();
  HostPool& pool = host_pool();
  std::lock_guard guard(pool.mutex);
  LIMPID_CHECK(!pool.exists, ArgumentError,
               "[allocator] the pool of CPU tensors exists: choose its policy before the first tensor is made");
  pool.policy = std::move(policy);
  pool.settings = settings;
}

void set_host_huge_pages(bool on) {
  host_pool().device->set_huge_pages(on);
  host_pool().io_device->set_huge_pages(on);
}

bool host_huge_pages() { return host_pool().device->huge_pages(); }

bool host_pool_exists() {
  HostPool& pool = host_pool();
  std::lock_guard guard(pool.mutex);
  return pool.exists;
}

Allocator& host_allocator() {
  static Allocator* allocator = [] {
    HostPool& pool = host_pool();
    std::lock_guard guard(pool.mutex);
    auto* made = new Allocator(pool.device, pool.settings, pool.policy);
    pool.exists = true;
    return made;
  }();
  return *allocator;
}

Allocator& io_allocator() {
  static Allocator* allocator = new Allocator(host_pool().io_device);
  return *allocator;
}

}  // namespace limpid::memory
