// The list of policies, and how one is chosen for the pool of CPU tensors.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/simulated_memory.h>

using namespace limpid;
using namespace limpid::memory;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

template <class E, class F>
std::string message_of(F&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("policies by name") {
  REQUIRE(policies().size() >= 2);
  CHECK(std::string(policies()[0].name) == "native");
  for (const PolicyEntry& entry : policies()) {
    Allocator allocator(std::make_shared<SimulatedMemory>(64 * kMiB), {}, policy_named(entry.name));
    CHECK(std::string(allocator.policy_name()) == entry.name);
    CHECK(std::string(entry.summary).size() > 10);
  }
  CHECK(message_of<ArgumentError>([] { policy_named("natve"); }).find("unknown policy 'natve'; known are native, ") !=
        std::string::npos);
  CHECK(parse_policy_list("nosplit,native") == std::vector<std::string>{"nosplit", "native"});
  CHECK(parse_policy_list("all").size() == policies().size());
  for (const char* bad : {"", "native,", ",native", "native;nosplit"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_policy_list(bad), ArgumentError);
  }
}

TEST_CASE("the policy of the CPU pool is chosen before its first use") {
  set_host_policy(policy_named("nosplit"));
  CHECK(std::string(host_allocator().policy_name()) == "nosplit");
  Block* block = host_allocator().allocate(100, Role::temp);
  CHECK(block->size == 2 * kMiB);
  host_allocator().free(block);
  CHECK(message_of<ArgumentError>([] { set_host_policy(policy_named("native")); }) ==
        "[allocator] the pool of CPU tensors exists: choose its policy before the first tensor is made");
}
