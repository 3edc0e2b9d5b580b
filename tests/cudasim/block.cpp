#include <cudasim/block.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include <cudasim/memory_map.h>

namespace limpid::cudasim {

Block& the_block() {
  static Block* block = new Block;  // never destroyed: its fibers may be needed by a static object's destructor
  return *block;
}

std::string place_of(const Site& site) {
  const char* slash = std::strrchr(site.file, '/');
  return std::string(slash ? slash + 1 : site.file) + ":" + std::to_string(site.line);
}

std::string Block::name_of_thread(uint3 block_index, uint3 thread_index) {
  auto triple = [](uint3 v) {
    return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
  };
  return "block " + triple(block_index) + " thread " + triple(thread_index);
}

std::string Block::name_of_thread(int thread) const {
  const ThreadRegisters& r = threads_[static_cast<std::size_t>(thread)].registers;
  return name_of_thread(r.block_index, r.thread_index);
}

bool Block::run(const Kernel& kernel, uint3 index, dim3 grid, dim3 block, std::size_t shared_bytes) {
  kernel_ = &kernel;
  count_ = alive_ = static_cast<int>(block.x * block.y * block.z);
  const auto count = static_cast<std::size_t>(count_);
  current_ = -1;
  at_barrier_ = predicates_ = 0;
  barriers_passed_ = 0;
  failed_ = false;
  error_ = cudaSuccess;
  linear_index_ = static_cast<unsigned>((std::uint64_t(index.z) * grid.y + index.y) * grid.x + index.x);
  started_ = ready_first_ = ready_count_ = 0;
  threads_.assign(count, Thread{});
  order_.resize(count);
  ready_.resize(count);
  warps_.resize((count + 31) / 32);
  for (Warp& warp : warps_) {
    warp.operations.clear();
    warp.clocks = {};
  }
  int thread = 0;
  for (unsigned z = 0; z < block.z; z++) {
    for (unsigned y = 0; y < block.y; y++) {
      for (unsigned x = 0; x < block.x; x++, thread++) {
        threads_[static_cast<std::size_t>(thread)].registers = {{x, y, z}, index, block, grid, thread % 32};
        order_[static_cast<std::size_t>(thread)] = thread;
      }
    }
  }
  permute(order_);
  static_bytes_ = 0;
  dynamic_bytes_ = shared_bytes;
  dynamic_shared_ = shared_bytes > 0 ? allocate_shared(shared_bytes) : nullptr;

  Fiber caller;
  scheduler_ = &caller;
  while (alive_ > 0 && !failed_) {
    Fiber* fiber = next_fiber();
    if (!fiber) {
      deadlock();
      break;
    }
    counters().switches++;
    running_fiber_ = fiber;
    caller.switch_to(*fiber);
  }
  running_fiber_ = nullptr;
  if (failed_) abandon();
  free_shared();
  counters().blocks++;
  counters().threads += count;
  return !failed_;
}

// The stack of every fiber: threads, then waiting for the next block.
void Block::fiber_main() {
  Fiber::entered();
  for (;;) {
    Block& block = the_block();
    Fiber* self = block.running_fiber_;
    block.run_threads();
    block.idle_.push_back(self);
    block.wait_for_turn();
  }
}

void Block::run_threads() {
  while (started_ < order_.size() && !failed_ && ready_count_ == 0) {
    current_ = order_[started_++];
    Thread& thread = threads_[static_cast<std::size_t>(current_)];
    thread.fiber = running_fiber_;
    thread.state = ThreadState::running;
    registers = thread.registers;
    kernel_->body();
    thread_ended();
  }
}

void Block::thread_ended() {
  const int warp = current_ / 32;
  Thread& thread = threads_[static_cast<std::size_t>(current_)];
  thread.state = ThreadState::done;
  thread.fiber = nullptr;
  alive_--;
  if (alive_ > 0 && at_barrier_ == alive_) release_barrier();
  for (auto& pending : warps_[static_cast<std::size_t>(warp)].operations) {
    if (pending->open && (pending->mask >> (current_ % 32) & 1)) {
      note_failure(pending->site, cudaErrorLaunchFailure, "exits, but lanes of its warp wait for it in a warp operation here");
      leave_failed();
    }
  }
}

// The fiber that goes on now, or null: back to the scheduler, since nobody can, or the block has failed.
Fiber* Block::next_fiber() {
  if (failed_) return nullptr;
  if (ready_count_ > 0) {
    current_ = ready_[ready_first_];
    ready_first_ = ready_first_ + 1 == ready_.size() ? 0 : ready_first_ + 1;
    ready_count_--;
    Thread& thread = threads_[static_cast<std::size_t>(current_)];
    thread.state = ThreadState::running;
    registers = thread.registers;
    return thread.fiber;
  }
  return started_ < order_.size() ? &idle_fiber() : nullptr;
}

Fiber& Block::idle_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(config().stack_bytes, fiber_main));
    return *fibers_.back();
  }
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return *fiber;
}

// Gives the processor away; returns when it is this fiber's turn again.
void Block::wait_for_turn() {
  Fiber* self = running_fiber_;
  Fiber* next = next_fiber();
  if (next == self) return;
  counters().switches++;
  running_fiber_ = next;
  self->switch_to(next ? *next : *scheduler_);
}

void Block::let_go(std::vector<int>& threads) {
  permute(threads);
  for (int thread : threads) {
    threads_[static_cast<std::size_t>(thread)].state = ThreadState::ready;
    ready_[(ready_first_ + ready_count_++) % ready_.size()] = thread;
  }
}

// ---------------------------------------------------------------- barrier of the block

int Block::sync_threads(Site site, BarrierOp op, bool predicate) {
  Thread& thread = threads_[static_cast<std::size_t>(current_)];
  const unsigned generation = barriers_passed_;
  thread.state = ThreadState::at_barrier;
  thread.site = site;
  at_barrier_++;
  predicates_ += predicate;
  if (at_barrier_ == alive_) release_barrier();
  wait_for_turn();
  const int votes = results_[generation % 2];
  switch (op) {
    case BarrierOp::sync: return 0;
    case BarrierOp::count: return votes;
    case BarrierOp::all: return votes == count_;
    case BarrierOp::any: return votes > 0;
  }
  return 0;
}

// All threads that are left wait. On the device it must be all of the block, and at one and the same barrier.
void Block::check_same_barrier() {
  int first = -1;
  for (int t = 0; t < count_; t++) {
    const Thread& thread = threads_[static_cast<std::size_t>(t)];
    if (thread.state != ThreadState::at_barrier) continue;
    if (first < 0) first = t;
    const Site& expected = threads_[static_cast<std::size_t>(first)].site;
    if (thread.site.id != expected.id || thread.site.line != expected.line || std::strcmp(thread.site.file, expected.file)) {
      note_failure(expected, cudaErrorLaunchFailure, "divergent barrier: " + name_of_thread(first) + " waits here, but " +
           name_of_thread(t) + " waits at " + place_of(thread.site));
      leave_failed();
    }
  }
  for (int t = 0; t < count_; t++) {
    if (threads_[static_cast<std::size_t>(t)].state == ThreadState::done) {
      note_failure(threads_[static_cast<std::size_t>(first)].site, cudaErrorLaunchFailure, "divergent barrier: " + name_of_thread(first) +
           " waits here, but " + name_of_thread(t) + " has exited");
      leave_failed();
    }
  }
}

void Block::release_barrier() {
  check_same_barrier();
  counters().barriers++;
  results_[barriers_passed_ % 2] = predicates_;
  predicates_ = at_barrier_ = 0;
  barriers_passed_++;
  for (Warp& warp : warps_) warp.clocks = {};
  std::vector<int> waiting;
  waiting.reserve(threads_.size());
  for (int t = 0; t < count_; t++) {
    if (threads_[static_cast<std::size_t>(t)].state == ThreadState::at_barrier) waiting.push_back(t);
  }
  let_go(waiting);
}

// ---------------------------------------------------------------- order, failure, shared memory

void Block::permute(std::vector<int>& threads) {
  switch (config().order) {
    case Order::forward: break;
    case Order::reverse: std::reverse(threads.begin(), threads.end()); break;
    case Order::warp_reverse:
      std::stable_sort(threads.begin(), threads.end(), [](int a, int b) { return a / 32 > b / 32; });
      break;
    case Order::random:
      for (std::size_t i = threads.size(); i > 1; i--) {
        random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
        std::swap(threads[i - 1], threads[random_ % i]);
      }
      break;
  }
}

void Block::note_failure(Site site, cudaError_t code, const std::string& what) {
  set_finding(name_of_thread(current_) + ": " + what + " (" + place_of(site) + ")");
  failed_ = true;
  error_ = code;
}

void Block::leave_failed() {
  Fiber* self = running_fiber_;
  running_fiber_ = nullptr;
  self->leave_for(*scheduler_);
  std::abort();  // a failed thread is never resumed
}

void Block::deadlock() {
  std::string text = "deadlock:";
  int shown = 0;
  for (int t = 0; t < count_ && shown < 6; t++) {
    const Thread& thread = threads_[static_cast<std::size_t>(t)];
    if (thread.state != ThreadState::at_barrier && thread.state != ThreadState::in_warp_operation) continue;
    const char* where = thread.state == ThreadState::at_barrier ? " waits at the barrier " : " waits in the warp operation ";
    text += (shown++ ? "; " : " ") + name_of_thread(t) + where + place_of(thread.site);
  }
  set_finding(text);
  failed_ = true;
  error_ = cudaErrorLaunchTimeout;
}

// Threads that were cut off: their stacks go, no destructor runs.
void Block::abandon() {
  idle_.clear();
  fibers_.clear();
}

// Exact sizes on the heap, so that AddressSanitizer's zones begin at the last byte. No byte stays from block to block.
char* Block::allocate_shared(std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, bytes) != 0) throw std::bad_alloc();
  std::memset(memory, config().shared_fill, bytes);
  add_memory(memory, bytes, Space::shared, false, "shared memory");
  return static_cast<char*>(memory);
}

void* Block::static_shared(const void* key, std::size_t bytes, Site site) {
  for (const SharedArray& array : shared_arrays_) {
    if (array.key == key) return array.data;
  }
  static_bytes_ += (bytes + 15) / 16 * 16;
  const std::size_t limit = std::min(config().max_static_shared, config().max_shared - dynamic_bytes_);
  if (static_bytes_ > limit) {
    note_failure(site, cudaErrorInvalidValue, std::to_string(static_bytes_) + " bytes of static shared memory, " +
         std::to_string(limit) + " are left beside " + std::to_string(dynamic_bytes_) + " dynamic ones");
    leave_failed();
  }
  shared_arrays_.push_back({key, allocate_shared(bytes)});
  return shared_arrays_.back().data;
}

void Block::free_shared() {
  if (dynamic_shared_) shared_arrays_.push_back({nullptr, dynamic_shared_});
  dynamic_shared_ = nullptr;
  for (const SharedArray& array : shared_arrays_) {
    remove_memory(array.data);
    std::free(array.data);
  }
  shared_arrays_.clear();
}

}  // namespace limpid::cudasim
