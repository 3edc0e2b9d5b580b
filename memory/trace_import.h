// Traces that others made: PyTorch's memory snapshots, RMM's allocation logs, MiniMalloc's buffer lists; and any trace
// file by its content. Readers are strict where a file contradicts itself and say in TraceLog::notes what they had to
// leave out. Memory is linear in the size of the input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <limpid/memory/trace_log.h>

namespace limpid::memory {

// A pickle of torch.cuda.memory._snapshot(), or the older bare list of segments (then all blocks are live from the
// start). `device`: its ordinal; -1 = the one with most events. Sizes are the requests. Blocks that are live in the
// final state, or freed in the trace, without having been allocated in it come first (TraceInfo::preexisting).
// A free that is not complete at once waited for another stream: it gets a record_stream with stream kOtherStream.
TraceLog parse_torch_snapshot(std::string_view bytes, int device = -1);
inline constexpr StreamId kOtherStream = UINT64_MAX;

// "Thread,Time,Action,Pointer,Size,Stream"; actions allocate, allocate failure, free or deallocate. In file order.
TraceLog parse_rmm_csv(std::string_view text);

// "id,lower,upper,size" (further columns are ignored): a buffer of so many bytes lives in [lower, upper). At one time
// frees come before allocations.
TraceLog parse_minimalloc_csv(std::string_view text);

enum class TraceFormat : std::uint8_t { binary, jsonl, pytorch, rmm, minimalloc };
const char* to_string(TraceFormat format);
// By content; DataError when it is none of them.
TraceFormat format_of(std::string_view bytes);
TraceLog parse_trace(std::string_view bytes);
// The file, of any of the formats. IoError, DataError with the path.
TraceLog read_trace(const std::string& path, std::uint64_t max_bytes = std::uint64_t{4} << 30);

}  // namespace limpid::memory
