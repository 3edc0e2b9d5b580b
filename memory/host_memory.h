// Real memory for CPU tensors: anonymous mappings aligned to 2 MiB, with huge pages asked for or declined. An optional
// capacity lets a laptop play a small GPU. Host work is synchronous, so events are complete at once. Memory of other
// programs is not counted: without a capacity, total is the machine's memory and free is what this device has not handed
// out of it.
#pragma once

#include <atomic>

#include <limpid/memory/device.h>

namespace limpid::memory {

class HostMemory final : public MemoryDevice {
 public:
  explicit HostMemory(std::string name = "cpu", std::uint64_t capacity = 0);

  const std::string& name() const override { return name_; }
  MemoryInfo mem_info() const override;
  void set_capacity(std::uint64_t bytes) override;
  // Whether memory that is reserved or mapped from now on asks for huge pages (transparent huge pages of Linux) or
  // declines them. Asking is a wish: a kernel without them serves pages of 4 KiB.
  void set_huge_pages(bool on) { huge_pages_.store(on, std::memory_order_relaxed); }
  bool huge_pages() const { return huge_pages_.load(std::memory_order_relaxed); }
  void* reserve(std::size_t bytes) override;
  void release(void* segment, std::size_t bytes) override;
  EventId event_record(StreamId) override { return 0; }
  bool event_query(EventId) override { return true; }
  void event_wait(EventId) override {}
  void event_release(EventId) noexcept override {}

  bool has_virtual_ranges() const override { return true; }
  void* range_reserve(std::size_t bytes) override;
  void range_release(void* range, std::size_t bytes) override;
  bool map(void* at, std::size_t bytes) override;
  void unmap(void* at, std::size_t bytes) override;

 private:
  std::uint64_t limit() const;
  bool fits(std::uint64_t bytes) const;
  void advise(void* at, std::size_t bytes) const;
  std::string name_;
  std::atomic<std::uint64_t> capacity_{0};
  std::atomic<std::uint64_t> used_{0};
  std::atomic<bool> huge_pages_{true};
};

}  // namespace limpid::memory
