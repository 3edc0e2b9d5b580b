#include <limpid/memory/books.h>

namespace limpid::memory {

void Books::reset_peaks() {
  for (Counter& counter : metrics) counter.reset_peak();
  oversize_allocations.peak = oversize_allocations.current;
  oversize_segments.peak = oversize_segments.current;
  peak_live = peak_reserved = rows;
  peak_live_scope = peak_reserved_scope = current_scope();
}

Stats Books::stats() const {
  Stats out;
  for (std::size_t m = 0; m < metrics.size(); m++) {
    const Counter& c = metrics[m];
    for (std::size_t p = 0; p < 2; p++) {
      // What was freed is what was added and is not there any more.
      out.metrics[m][p + 1] = {c.current[p], c.peak[p], c.increased[p], c.increased[p] - c.current[p]};
    }
    std::int64_t current = c.current[0] + c.current[1], increased = c.increased[0] + c.increased[1];
    out.metrics[m][Stats::all] = {current, c.peak_all, increased, increased - current};
  }
  out.oversize_allocations = oversize_allocations;
  out.oversize_segments = oversize_segments;
  out.num_alloc_retries = retries;
  out.num_ooms = ooms;
  out.num_sync_all_streams = syncs;
  out.num_device_alloc = device_allocs;
  out.num_device_free = device_frees;
  out.max_split_size = static_cast<std::int64_t>(oversize);  // -1 = no limit, as in PyTorch
  return out;
}

}  // namespace limpid::memory
