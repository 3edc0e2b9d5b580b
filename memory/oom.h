// The error of a request that could not be served, with what one needs to see why: the true request, where memory is,
// and who holds most of it. The allocator is unchanged by the failure, except that its cache was given back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/base/scope.h>
#include <limpid/memory/role.h>

namespace limpid::memory {

// Live blocks of one role that share a name; without a name, the layer or else the operation that allocated them.
struct Holder {
  Role role = Role::other;
  std::string name;
  std::uint64_t bytes = 0;  // requested
  std::uint64_t count = 0;
};

struct OutOfMemoryInfo {
  std::string device;
  std::uint64_t requested = 0;  // what the caller asked for
  std::uint64_t rounded = 0;    // after the policy's rounding
  std::uint64_t live = 0;       // allocated blocks, rounding and slack included
  std::uint64_t reserved = 0;
  std::uint64_t cached = 0;       // free inside reserved
  std::uint64_t pending = 0;      // freed, waiting for another stream
  std::uint64_t device_free = 0;  // not reserved by anybody
  std::uint64_t capacity = 0;
  std::optional<std::uint64_t> limit;  // of the memory fraction
  std::uint64_t largest_free = 0;      // largest free block inside reserved
  Role role = Role::other;
  std::string name;
  Scope scope;                  // of the request
  std::vector<Holder> holders;  // largest first, at most 8
};

class OutOfMemoryError : public Error {
 public:
  explicit OutOfMemoryError(OutOfMemoryInfo info);
  const OutOfMemoryInfo& info() const noexcept { return info_; }
  std::uint64_t requested() const noexcept { return info_.requested; }

 private:
  OutOfMemoryInfo info_;
};

std::string to_string(const OutOfMemoryInfo& info);

}  // namespace limpid::memory
