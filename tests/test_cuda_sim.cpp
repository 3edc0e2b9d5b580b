// The fake CUDA runtime by itself: what it refuses, in which order it runs, and that it makes planted bugs of host code
// visible which eager execution hides.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <memory>

#include <limpid/cuda/cuda_memory.h>
#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>
#include <limpid/memory/allocator.h>

#include "cuda_test.h"

using namespace limpid;
using namespace cuda_test;
using fake::Exec;

namespace {

const cu::RuntimeApi& api() { return cu::runtime(); }

struct PlantedBugs {
  bool other_stream_forgotten = false;  // the allocator is not told that another stream uses the block
  bool pinned_reused_early = false;     // the host writes the next batch before the copy of the last has read it
  bool event_forgotten = false;         // the reader's stream does not wait for the writer's
};

// Four batches: the host fills a pinned buffer, stream `load` copies it to a block of its own, stream `sum` adds it up.
float producer_and_consumer(const PlantedBugs& bugs) {
  constexpr std::int64_t n = 4096;
  memory::Allocator pool(std::make_shared<cu::CudaMemory>(0));
  const cu::Stream load = cu::pool_stream(0), sum = cu::pool_stream(0);
  float* host = nullptr;
  REQUIRE(api().cudaHostAlloc(reinterpret_cast<void**>(&host), n * sizeof(float), 0) == 0);
  memory::Block* total = pool.allocate(sizeof(float), memory::Role::temp, 0, sum.id());
  api().cudaMemsetAsync(total->ptr, 0, sizeof(float), sum.handle);
  cu::Event loaded(0);
  for (int batch = 1; batch <= 4; batch++) {
    for (std::int64_t i = 0; i < n; i++) host[i] = static_cast<float>(batch);
    memory::Block* x = pool.allocate(n * sizeof(float), memory::Role::temp, 0, load.id());
    REQUIRE(api().cudaMemcpyAsync(x->ptr, host, n * sizeof(float), cu::kHostToDevice, load.handle) == 0);
    loaded.record(load);
    if (!bugs.event_forgotten) loaded.hold_up(sum);
    launch_sum(sum, static_cast<float*>(total->ptr), static_cast<const float*>(x->ptr), n);
    if (!bugs.other_stream_forgotten) pool.record_stream(x, sum.id());
    pool.free(x);
    if (!bugs.pinned_reused_early) loaded.synchronize();
  }
  float result = 0;
  api().cudaMemcpyAsync(&result, total->ptr, sizeof result, cu::kDeviceToHost, sum.handle);
  sum.synchronize();
  load.synchronize();
  pool.free(total);
  api().cudaFreeHost(host);
  return result;
}
constexpr float kRight = (1 + 2 + 3 + 4) * 4096;

// In how many of 20 seeds the result is wrong.
int noticed(const PlantedBugs& bugs, Exec exec) {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    fake::reset({.exec = exec, .seed = seed});
    wrong += producer_and_consumer(bugs) != kRight;
  }
  return wrong;
}

}  // namespace

TEST_CASE("a right program computes the same in every order, and leaves nothing behind") {
  for (Exec exec : {Exec::eager, Exec::lazy}) CHECK(noticed({}, exec) == 0);
  CHECK(fake::allocations() == 0);
  CHECK(fake::live_events() == 0);
  CHECK(fake::pinned_bytes() == 0);
}

TEST_CASE("planted bugs show in lazy order, and in eager order none does") {
  const PlantedBugs bugs[] = {
      {.other_stream_forgotten = true}, {.pinned_reused_early = true}, {.event_forgotten = true}};
  for (const PlantedBugs& bug : bugs) {
    CAPTURE(bug.other_stream_forgotten);
    CAPTURE(bug.pinned_reused_early);
    const int lazy = noticed(bug, Exec::lazy);
    MESSAGE("noticed in " << lazy << " of 20 seeds");
    CHECK(lazy >= 5);
    CHECK(noticed(bug, Exec::eager) == 0);
  }
}

TEST_CASE("nothing runs before somebody waits; the default stream and blocking streams wait for each other") {
  fake::reset({});
  int order = 0, first = 0, second = 0, beside = 0;
  cu::StreamHandle blocking = nullptr;
  REQUIRE(api().cudaStreamCreateWithFlags(&blocking, 0) == 0);
  const auto at = [&](int& where) { return [&order, &where] { return where = ++order, 0; }; };
  fake::enqueue({.kernel = "first", .stream = blocking, .run = at(first)});
  fake::enqueue({.kernel = "second", .stream = nullptr, .run = at(second)});
  fake::enqueue({.kernel = "beside", .stream = cu::pool_stream(0).handle, .run = at(beside)});
  CHECK(order == 0);
  REQUIRE(api().cudaStreamSynchronize(nullptr) == 0);
  CHECK(first > 0);
  CHECK(second > first);
  cu::synchronize(0);
  CHECK(beside > 0);
  CHECK(api().cudaStreamDestroy(blocking) == 0);
  CHECK(api().cudaStreamDestroy(blocking) != 0);
}

TEST_CASE("seeds choose the order") {
  std::string first;
  bool differs = false;
  for (std::uint64_t seed = 1; seed <= 8; seed++) {
    fake::reset({.seed = seed});
    std::string order;
    const cu::Stream a = cu::pool_stream(0), b = cu::pool_stream(0);
    for (int i = 0; i < 4; i++) {
      fake::enqueue({.kernel = "a", .stream = a.handle, .run = [&order] { return order += 'a', 0; }});
      fake::enqueue({.kernel = "b", .stream = b.handle, .run = [&order] { return order += 'b', 0; }});
    }
    cu::synchronize(0);
    CHECK(order.size() == 8);
    if (first.empty()) first = order;
    differs |= order != first;
  }
  CHECK(differs);
}

TEST_CASE("memory: capacity, fresh contents, wrong sides of a copy, wrong frees") {
  fake::reset({.capacity = 8 * kMiB});
  void *a = nullptr, *b = nullptr;
  REQUIRE(api().cudaMalloc(&a, 5 * kMiB) == 0);
  CHECK(api().cudaMalloc(&b, 4 * kMiB) == cu::kMemoryAllocation);
  CHECK(api().cudaGetLastError() == cu::kMemoryAllocation);
  CHECK(api().cudaGetLastError() == 0);
  std::size_t free = 0, total = 0;
  REQUIRE(api().cudaMemGetInfo(&free, &total) == 0);
  CHECK(free == 3 * kMiB);
  CHECK(total == 8 * kMiB);
  float x = 0, host[4] = {1, 2, 3, 4};
  fake::peek(&x, a, sizeof x);
  CHECK(std::isnan(x));
  CHECK(api().cudaMemcpyAsync(a, host, 16, cu::kDeviceToHost, nullptr) != 0);
  CHECK(api().cudaMemcpyAsync(host, host, 16, cu::kHostToDevice, nullptr) != 0);
  CHECK(api().cudaMemcpyAsync(a, host, 6 * kMiB, cu::kHostToDevice, nullptr) != 0);
  CHECK(api().cudaMemcpyAsync(a, host, 16, cu::kHostToDevice, nullptr) == 0);
  host[0] = 9;  // pageable: it was read at the call
  float back[4] = {};
  CHECK(api().cudaMemcpyAsync(back, a, 16, cu::kDeviceToHost, nullptr) == 0);
  CHECK(back[0] == 1);
  CHECK(back[3] == 4);
  CHECK(api().cudaFree(static_cast<char*>(a) + 512) != 0);
  CHECK(api().cudaFree(a) == 0);
  CHECK(api().cudaFree(a) != 0);
  CHECK(fake::used_bytes() == 0);
}

TEST_CASE("host code that reads device memory dies") {
  fake::reset({});
  void* p = nullptr;
  REQUIRE(api().cudaMalloc(&p, kMiB) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // without the report of the test's own handler
    const int value = *static_cast<volatile char*>(p);
    ::_exit(value == 12345 ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(api().cudaFree(p) == 0);
}

TEST_CASE("a copy into memory that was unmapped meanwhile is a fault of the device") {
  fake::reset({});
  const cu::DriverApi& driver = cu::driver();
  const std::size_t page = 2 * kMiB;
  cu::MemoryProperties properties;
  cu::MemoryHandle handle = 0;
  cu::DevicePointer at = 0;
  cu::MemoryAccess access;
  REQUIRE(driver.cuMemAddressReserve(&at, 4 * page, 0, 0, 0) == 0);
  REQUIRE(driver.cuMemCreate(&handle, page, &properties, 0) == 0);
  CHECK(driver.cuMemMap(at + 1, page, 0, handle, 0) != 0);
  CHECK(driver.cuMemMap(at + 4 * page, page, 0, handle, 0) != 0);
  REQUIRE(driver.cuMemMap(at, page, 0, handle, 0) == 0);
  CHECK(driver.cuMemMap(at, page, 0, handle, 0) != 0);
  CHECK(driver.cuMemSetAccess(at, 2 * page, &access, 1) != 0);
  auto* p = reinterpret_cast<void*>(at);
  CHECK(api().cudaMemsetAsync(p, 0, 16, nullptr) != 0);  // not accessible yet
  REQUIRE(driver.cuMemSetAccess(at, page, &access, 1) == 0);
  CHECK(driver.cuMemRelease(handle) == 0);
  CHECK(driver.cuMemRelease(handle) != 0);
  CHECK(fake::used_bytes() == page);  // the mapping keeps it
  CHECK(driver.cuMemAddressFree(at, 4 * page) != 0);
  REQUIRE(api().cudaMemsetAsync(p, 0, 16, nullptr) == 0);
  CHECK(driver.cuMemUnmap(at, page / 2) != 0);
  REQUIRE(driver.cuMemUnmap(at, page) == 0);
  CHECK(fake::used_bytes() == 0);
  CHECK(api().cudaDeviceSynchronize() == 700);
  fake::reset({});
  CHECK(driver.cuMemAddressFree(at, 4 * page) == 0);
  CHECK(fake::ranges() == 0);
}

TEST_CASE("faults on demand, by number and by function; a broken device stays broken") {
  fake::reset({});
  void* p = nullptr;
  std::size_t free = 0, total = 0;
  fake::fail_call(2, 999);
  CHECK(api().cudaMemGetInfo(&free, &total) == 0);
  CHECK(api().cudaMalloc(&p, 16) == 999);
  CHECK(fake::fault_happened());
  CHECK(api().cudaMalloc(&p, 16) == 0);
  fake::fail_call_of("cudaFree", 1, 1);
  CHECK(api().cudaMemGetInfo(&free, &total) == 0);
  CHECK(api().cudaFree(p) == 1);
  CHECK(api().cudaFree(p) == 0);
  fake::enqueue({.kernel = "wild", .run = [] { return 719; }});
  CHECK(api().cudaDeviceSynchronize() == 719);
  CHECK(api().cudaMalloc(&p, 16) == 719);
  fake::reset({});
  CHECK(api().cudaMalloc(&p, 16) == 0);
  CHECK(api().cudaFree(p) == 0);
}

TEST_CASE("the clock: streams overlap, events measure") {
  fake::reset({});
  const cu::Stream a = cu::pool_stream(0), b = cu::pool_stream(0);
  cu::Event start(0, true), end(0, true);
  start.record(a);
  for (int i = 0; i < 3; i++) {
    fake::enqueue({.kernel = "a", .stream = a.handle, .us = 100, .run = [] { return 0; }});
    fake::enqueue({.kernel = "b", .stream = b.handle, .us = 90, .run = [] { return 0; }});
  }
  end.record(a);
  cu::synchronize(0);
  CHECK(end.ms_since(start) == doctest::Approx(0.3));
  CHECK(fake::now_us() == doctest::Approx(300));
}

TEST_CASE("the lint of a step names what allocates, waits or reads the device") {
  fake::reset({});
  void* p = nullptr;
  REQUIRE(api().cudaMalloc(&p, 64) == 0);
  const std::size_t from = fake::trace().size();
  float value = 0;
  fake::enqueue({.kernel = "k", .run = [] { return 0; }});
  api().cudaMemsetAsync(p, 0, 64, nullptr);
  CHECK(fake::step_offences(from).empty());
  api().cudaMemcpyAsync(&value, p, 4, cu::kDeviceToHost, nullptr);
  api().cudaStreamSynchronize(nullptr);
  api().cudaFree(p);
  CHECK(fake::step_offences(from) ==
        std::vector<std::string>{"cudaMemcpyAsync from the device", "cudaStreamSynchronize", "cudaFree"});
}
