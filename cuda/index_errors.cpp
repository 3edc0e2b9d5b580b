#include <limpid/cuda/index_errors.h>

#include <mutex>
#include <vector>

#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>

namespace limpid::cu {
namespace {

struct Slot {
  Stream stream;
  IndexErrorRecord* record = nullptr;
  bool is_used = false;  // since the last report
};
struct Slots {
  std::mutex mutex;
  std::vector<Slot> all;
};
Slots& slots() {
  static auto* const made = new Slots;
  return *made;
}

void clear(const Slot& slot) {
  static const IndexErrorRecord kEmpty;
  LIMPID_CUDA(cudaMemcpyAsync(slot.record, &kEmpty, sizeof kEmpty, kHostToDevice, slot.stream.handle));
}

IndexErrorRecord read_and_clear(Slot& slot) {
  DeviceGuard guard(slot.stream.device);
  IndexErrorRecord record;
  LIMPID_CUDA(cudaMemcpyAsync(&record, slot.record, sizeof record, kDeviceToHost, slot.stream.handle));
  LIMPID_CUDA(cudaStreamSynchronize(slot.stream.handle));
  if (record.found != 0) clear(slot);
  slot.is_used = false;
  return record;
}

void raise_if_found(const IndexErrorRecord& record) {
  if (record.found == 0) return;
  Shape place = Shape::filled(record.rank, 0);
  std::uint64_t rest = record.position;
  for (int d = record.rank - 1; d >= 0; d--) {
    const auto extent = static_cast<std::uint64_t>(record.shape[d]);
    place[d] = static_cast<std::int64_t>(rest % extent);
    rest /= extent;
  }
  LIMPID_THROW(IndexError, "[", name_of(record.op), "] index ", record.value, " at position ", place,
               " is outside [0, ", record.bound, ")");
}

}  // namespace

IndexErrorRecord* index_error_record(Stream stream) {
  std::lock_guard lock(slots().mutex);
  for (Slot& slot : slots().all) {
    if (slot.stream != stream) continue;
    slot.is_used = true;
    return slot.record;
  }
  DeviceGuard guard(stream.device);
  Slot slot{stream, nullptr, true};
  // Not from the allocator: it is no tensor's, and it outlives every pool.
  LIMPID_CUDA(cudaMalloc(reinterpret_cast<void**>(&slot.record), sizeof(IndexErrorRecord)));
  slots().all.push_back(slot);
  clear(slot);
  return slot.record;
}

void report_index_errors(Stream stream) {
  IndexErrorRecord record;
  {
    std::lock_guard lock(slots().mutex);
    for (Slot& slot : slots().all) {
      if (slot.is_used && slot.stream == stream) record = read_and_clear(slot);
    }
  }
  raise_if_found(record);
}

void report_index_errors(int device) {
  IndexErrorRecord first;
  {
    std::lock_guard lock(slots().mutex);
    for (Slot& slot : slots().all) {
      if (!slot.is_used || slot.stream.device != device) continue;
      const IndexErrorRecord record = read_and_clear(slot);
      if (first.found == 0) first = record;
    }
  }
  raise_if_found(first);
}

}  // namespace limpid::cu
