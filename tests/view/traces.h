// Made-up traces for the tests of the view: what the allocator would record, without the training.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <limpid/memory/trace_log.h>

namespace limpid_test {

// Writes records one by one; ids count from 1.
class TraceBuilder {
 public:
  limpid::memory::TraceLog log;
  limpid::Scope scope;

  limpid::NameId name(std::string_view text) { return names_.add(text); }
  std::uint64_t alloc(std::uint64_t bytes, limpid::memory::Role role, std::string_view text = {},
                      std::uint64_t stream = 0) {
    add(limpid::memory::TraceKind::alloc, ++last_id_, bytes, role, name(text), stream);
    return last_id_;
  }
  void free(std::uint64_t id) { add(limpid::memory::TraceKind::free, id, 1, limpid::memory::Role::other, 0, 0); }
  void role(std::uint64_t id, limpid::memory::Role role) { add(limpid::memory::TraceKind::role, id, 1, role, 0, 0); }
  void rename(std::uint64_t id, std::string_view text) {
    add(limpid::memory::TraceKind::name, id, 1, limpid::memory::Role::other, name(text), 0);
  }
  void use(std::uint64_t id, std::uint64_t stream) {
    add(limpid::memory::TraceKind::record_stream, id, 1, limpid::memory::Role::other, 0, stream);
  }
  void failed(std::uint64_t bytes, std::string_view text) {
    add(limpid::memory::TraceKind::oom, 0, bytes, limpid::memory::Role::activation, name(text), 0);
  }

 private:
  void add(limpid::memory::TraceKind kind, std::uint64_t id, std::uint64_t bytes, limpid::memory::Role role,
           limpid::NameId text, std::uint64_t stream) {
    limpid::memory::TraceRecord r{};
    r.id = id;
    r.bytes = bytes;
    r.stream = stream;
    r.name = text;
    r.op = scope.op;
    r.module = scope.module;
    r.step = scope.step;
    r.micro_batch = scope.micro_batch;
    r.kind = kind;
    r.role = role;
    r.phase = scope.phase;
    log.records.push_back(r);
  }
  limpid::memory::NameTable names_{log.names};
  std::uint64_t last_id_ = 0;
};

// `events` operations: `layers` layers, batch sizes that change, saved tensors, workspaces, gradients, Adam.
inline limpid::memory::TraceLog training_loop(std::uint64_t events, int layers = 48) {
  using limpid::Phase;
  using limpid::memory::Role;
  TraceBuilder b;
  std::mt19937_64 random(7);
  auto layer = [](int i) { return "stage" + std::to_string(i / 8) + ".block" + std::to_string(i % 8) + ".conv"; };
  auto channels = [](int i) { return std::uint64_t{16} << (i / 16); };
  auto weight_bytes = [&](int i) { return 4 * 9 * channels(i) * channels(i); };
  auto sample_bytes = [&](int i) { return 4 * channels(i) * (1024u >> (2 * (i / 16))); };
  for (int i = 0; i < layers; i++) b.alloc(weight_bytes(i), Role::param, layer(i) + ".weight");
  for (std::uint32_t step = 0; b.log.records.size() < events; step++) {
    b.scope.step = step;
    const std::uint64_t batch = 16 + random() % 113;
    std::vector<std::uint64_t> saved, gradients;
    b.scope.phase = Phase::data;
    const std::uint64_t input = b.alloc(batch * 3 * 32 * 32 * 4, Role::io, "images");
    b.scope.phase = Phase::forward;
    for (int i = 0; i < layers; i++) {
      b.scope.module = b.name(layer(i));
      for (const char* op : {"conv2d", "batch_norm"}) {
        b.scope.op = b.name(op);
        const std::uint64_t out = b.alloc(batch * sample_bytes(i), Role::activation);
        if (op[0] == 'c') b.free(b.alloc(batch * 4096 + random() % 100000, Role::workspace));
        b.role(out, Role::saved);
        saved.push_back(out);
      }
    }
    b.scope.phase = Phase::backward;
    std::uint64_t upstream = 0;
    for (int i = layers; i-- > 0;) {
      b.scope.module = b.name(layer(i));
      b.scope.op = b.name("conv2d");
      const std::uint64_t next = b.alloc(batch * sample_bytes(i), Role::temp);
      if (upstream) b.free(upstream);
      upstream = next;
      for (int k = 0; k < 2; k++) {
        b.free(saved.back());
        saved.pop_back();
      }
      gradients.push_back(b.alloc(weight_bytes(i), Role::temp));
      b.role(gradients.back(), Role::grad);
    }
    b.free(upstream);
    b.free(input);
    b.scope.phase = Phase::optimizer;
    b.scope.module = 0;
    b.scope.op = b.name("adam");
    for (int i = 0; step == 0 && i < layers; i++) {
      for (const char* moment : {".m", ".v"}) b.alloc(weight_bytes(i), Role::optimizer, layer(i) + moment);
    }
    for (std::uint64_t g : gradients) b.free(g);
  }
  b.log.records.resize(events);
  return std::move(b.log);
}

}  // namespace limpid_test
