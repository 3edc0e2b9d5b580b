// The memory of one GPU for the allocator engine: segments by cudaMalloc, virtual ranges by the driver's calls for
// virtual memory, events of CUDA. A StreamId is a cudaStream_t of the device.
#pragma once

#include <atomic>
#include <vector>

#include <limpid/cuda/api.h>
#include <limpid/memory/device.h>

namespace limpid::cu {

class CudaMemory final : public memory::MemoryDevice {
 public:
  // DeviceError when there is no such device.
  explicit CudaMemory(int device, std::uint64_t capacity = 0);
  ~CudaMemory() override;  // all that was reserved has been released

  const std::string& name() const override { return name_; }  // "cuda:0"
  // What the device has; with a capacity, what is left of that, as far as the device has it.
  memory::MemoryInfo mem_info() const override;
  void set_capacity(std::uint64_t bytes) override;
  std::vector<memory::DeviceProcess> processes() const override;

  void* reserve(std::size_t bytes) override;
  void release(void* segment, std::size_t bytes) override;

  memory::EventId event_record(memory::StreamId stream) override;
  bool event_query(memory::EventId event) override;
  void event_wait(memory::EventId event) override;
  void event_release(memory::EventId event) noexcept override;

  bool has_virtual_ranges() const override { return page_size_ > 0; }
  std::size_t page_size() const override { return page_size_; }
  void* range_reserve(std::size_t bytes) override;
  void range_release(void* range, std::size_t bytes) override;
  bool map(void* at, std::size_t bytes) override;
  void unmap(void* at, std::size_t bytes) override;

  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }  // bytes handed out

 private:
  bool fits(std::uint64_t bytes) const;
  bool map_page(DevicePointer at);
  void unmap_again(void* at, std::size_t bytes) noexcept;

  int device_;
  std::string name_;
  std::size_t page_size_ = 0;  // 0: the device has no virtual memory
  std::atomic<std::uint64_t> capacity_;
  std::atomic<std::uint64_t> used_{0};
  std::vector<EventHandle> idle_events_;
  std::size_t events_made_ = 0;
};

}  // namespace limpid::cu
