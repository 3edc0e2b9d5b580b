// Page-locked host memory for the allocator engine: a GPU's copy engine reads and writes it by itself, so that copies
// need not wait. Its streams are those of all GPUs: a block that a copy uses is reused when that copy is done.
#pragma once

#include <atomic>
#include <string>

#include <limpid/cuda/runtime.h>
#include <limpid/memory/device.h>

namespace limpid::cu {

class PinnedMemory final : public memory::MemoryDevice {
 public:
  explicit PinnedMemory(std::uint64_t capacity = 0);

  // The StreamId of a GPU's stream for the blocks of this memory; 0 is the host, which owns them all.
  static memory::StreamId stream_id(Stream stream);

  const std::string& name() const override { return name_; }
  memory::MemoryInfo mem_info() const override;
  void set_capacity(std::uint64_t bytes) override;
  bool is_page_locked() const override { return true; }
  void* reserve(std::size_t bytes) override;
  void release(void* segment, std::size_t bytes) override;
  memory::EventId event_record(memory::StreamId stream) override;
  bool event_query(memory::EventId event) override;
  void event_wait(memory::EventId event) override;
  void event_release(memory::EventId event) noexcept override;

 private:
  std::string name_ = "cpu (pinned)";
  std::atomic<std::uint64_t> capacity_;
  std::atomic<std::uint64_t> used_{0};
};

}  // namespace limpid::cu
