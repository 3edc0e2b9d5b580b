// The native policy, except that one request fails as if the device were full.
#pragma once

#include <memory>

#include <limpid/memory/allocator.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/policy.h>

namespace limpid_test {

struct FailurePlan {
  std::int64_t requests = 0;   // so far
  std::int64_t fail_at = -1;   // number of the request that fails, from 0
};

class FailingPolicy final : public limpid::memory::Policy {
 public:
  FailingPolicy(std::unique_ptr<limpid::memory::Policy> real, std::shared_ptr<FailurePlan> plan)
      : real_(std::move(real)), plan_(std::move(plan)) {}
  const char* name() const override { return "failing"; }
  std::size_t round(std::size_t bytes) const override { return real_->round(bytes); }
  limpid::memory::PoolKind pool_for(std::size_t rounded) const override { return real_->pool_for(rounded); }
  std::size_t growth_unit(limpid::memory::PoolKind pool) const override { return real_->growth_unit(pool); }
  limpid::memory::Block* allocate(std::size_t bytes, limpid::memory::StreamId stream) override {
    return plan_->requests++ == plan_->fail_at ? nullptr : real_->allocate(bytes, stream);
  }
  void free(limpid::memory::Block* block) noexcept override { real_->free(block); }
  void record_stream(limpid::memory::Block* b, limpid::memory::StreamId s) override { real_->record_stream(b, s); }
  void release_cached() override { real_->release_cached(); }
  void release_to(std::uint64_t keep) override { real_->release_to(keep); }
  void set_limit(std::optional<std::uint64_t> bytes) override { real_->set_limit(bytes); }
  void for_each_segment(const std::function<void(const limpid::memory::Segment&)>& v) const override {
    real_->for_each_segment(v);
  }
  void check() const override { real_->check(); }

 private:
  std::unique_ptr<limpid::memory::Policy> real_;
  std::shared_ptr<FailurePlan> plan_;
};

inline limpid::memory::PolicyFactory failing(std::shared_ptr<FailurePlan> plan) {
  return [plan](const limpid::memory::PolicyContext& context) {
    return std::make_unique<FailingPolicy>(limpid::memory::make_native_policy(context), plan);
  };
}

}  // namespace limpid_test
