// The verdict on a request that could not be served: why, and which live blocks stand in the way. It is read off the
// segments as they are after the last resort: the cache given back, pending blocks waited for (if the policy waits).
//
// With live = requested bytes of live blocks, r = requested, R = r rounded, reach = min(capacity - others, limit):
//   external, too, when the device refused although it reports enough free (a limit of the system, another program).
//   live + r > reach: the bytes do not exist. capacity when live + r > capacity; external when they fit the capacity,
//     but not beside what others hold; limit otherwise.
//   else a place of R bytes is looked for, and the first that exists says why it could not be used:
//     pending       a run of free and pending blocks
//     other_stream  a run of free blocks in the same pool, of another stream
//     other_pool    a run of free blocks in another pool: of the other size, or of other roles
//     granularity   the device has r bytes left, but is asked in larger units; or live + R exceeds reach by rounding
//     fragmentation none of these
#pragma once

#include <memory>
#include <span>

#include <limpid/memory/books.h>
#include <limpid/memory/oom.h>
#include <limpid/memory/policy.h>

namespace limpid::memory {

// Fills cause, reason, largest_free, holders, pins and held_by_others; the other fields are read.
// `pools`: the policies of the allocator, one a pool of roles; `pool`: that of the request.
void judge(OutOfMemoryInfo& info, std::span<const std::unique_ptr<Policy>> pools, std::size_t pool,
           const LedgerRows& rows, StreamId stream);

// Fills earlier_request from the trace: the largest request of the same site in an earlier step.
void look_back(OutOfMemoryInfo& info, NameId name, const Trace& trace);

}  // namespace limpid::memory
