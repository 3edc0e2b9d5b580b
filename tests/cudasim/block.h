// One block of emulated CUDA threads: who runs next, who waits for what, and the block's shared memory.
//
// A fiber takes threads from the list of unstarted ones and runs them one after the other, as plain calls, as long as none
// has to wait. A thread that waits keeps the fiber, and another fiber goes on.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cudasim/device_calls.h>
#include <cudasim/emulator.h>
#include <cudasim/fiber.h>

namespace limpid::cudasim {

enum class ThreadState : std::uint8_t { not_started, running, ready, at_barrier, in_warp_operation, done };

struct Thread {
  ThreadState state = ThreadState::not_started;
  Fiber* fiber = nullptr;
  Site site;  // where it waits
  ThreadRegisters registers;
};

// A warp operation that some lanes have reached.
struct PendingWarpOp {
  WarpOp op;
  unsigned mask = 0;     // lanes that it is for
  unsigned arrived = 0;  // lanes that are there
  unsigned readers = 0;  // lanes that have not taken the result yet
  std::size_t bytes = 0;
  Site site;
  bool open = false;  // lanes are still missing
  unsigned char values[32 * kWarpValueBytes];
};

// Who is ordered before whom inside a warp. clocks[a][b] is the number of warp operations of lane b that lane a has seen the
// end of: what b did before them is ordered before what a does now. A barrier of the block orders everything.
using LaneClocks = std::array<std::array<std::uint16_t, 32>, 32>;

struct Warp {
  std::vector<std::unique_ptr<PendingWarpOp>> operations;
  LaneClocks clocks;
};

class Block {
 public:
  // Runs one block of a grid to its end. False: a finding ended it.
  bool run(const Kernel& kernel, uint3 index, dim3 grid, dim3 block, std::size_t shared_bytes);

  // Called by the thread that runs now.
  int sync_threads(Site site, BarrierOp op, bool predicate);
  void warp_exchange(unsigned mask, WarpOp op, const void* value, std::size_t bytes, WarpValues& out, Site site);
  void* static_shared(const void* key, std::size_t bytes, Site site);
  void* dynamic_shared() const { return dynamic_shared_; }
  // A finding by the current thread, and then its end, which ends the block. Two steps: nothing on the stack that is left
  // behind may own memory, since no destructor runs.
  void note_failure(Site site, cudaError_t code, const std::string& what);
  [[noreturn]] void leave_failed();

  bool is_running() const { return running_fiber_ != nullptr; }
  int current() const { return current_; }
  unsigned linear_index() const { return linear_index_; }
  unsigned barriers_passed() const { return barriers_passed_; }
  const Fiber& running_fiber() const { return *running_fiber_; }
  const LaneClocks& clocks() const { return warps_[static_cast<std::size_t>(current_ / 32)].clocks; }
  cudaError_t error() const { return error_; }
  // "block (0,0,0) thread (3,0,0)" of a thread in a block of this shape.
  static std::string name_of_thread(uint3 block_index, uint3 thread_index);
  std::string name_of_thread(int thread) const;
  void start_grid(std::uint64_t seed) { random_ = seed * 0x9E3779B97F4A7C15ull + 1; }

 private:
  struct SharedArray {
    const void* key;
    char* data;
  };

  static void fiber_main();
  void run_threads();
  void thread_ended();
  void wait_for_turn();
  Fiber* next_fiber();
  Fiber& idle_fiber();
  void let_go(std::vector<int>& threads);
  void release_barrier();
  void check_same_barrier();
  PendingWarpOp& join_warp_op(unsigned mask, WarpOp op, std::size_t bytes, Site site);
  void complete(PendingWarpOp& pending, int warp);
  unsigned exited_lanes(int warp) const;
  unsigned lanes_of(int warp) const;
  void permute(std::vector<int>& threads);
  void deadlock();
  void abandon();
  char* allocate_shared(std::size_t bytes);
  void free_shared();

  const Kernel* kernel_ = nullptr;
  int count_ = 0;    // threads of the block
  int alive_ = 0;    // not done
  int current_ = -1;
  int at_barrier_ = 0;
  unsigned linear_index_ = 0;
  unsigned barriers_passed_ = 0;
  int predicates_ = 0;          // true predicates at the barrier that is filling up
  std::array<int, 2> results_;  // of the last two barriers
  bool failed_ = false;
  cudaError_t error_ = cudaSuccess;
  std::uint64_t random_ = 1;
  std::vector<Thread> threads_;
  std::vector<int> order_;  // in which threads start
  std::size_t started_ = 0;
  std::vector<int> ready_;  // ring: a thread is queued at most once
  std::size_t ready_first_ = 0, ready_count_ = 0;
  std::vector<Warp> warps_;
  std::vector<SharedArray> shared_arrays_;
  std::size_t static_bytes_ = 0, dynamic_bytes_ = 0;
  char* dynamic_shared_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* running_fiber_ = nullptr;
  Fiber* scheduler_ = nullptr;  // the caller's own stack
};

Block& the_block();
std::string place_of(const Site& site);  // "file.cu:12"
// Keeps the first finding.
void set_finding(const std::string& text);

}  // namespace limpid::cudasim
