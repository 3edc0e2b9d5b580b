// The policies besides native once more, as plainly as possible: every search is a scan over all pieces, nothing is
// kept that can be counted. For comparison only. Addresses follow the rule of SimulatedMemory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace limpid::memory {

class Naive {
 public:
  struct Piece {
    std::uint64_t address, size, stream;
    enum State { free, used, waiting, hole } state = free;
    std::uint64_t events = 0;
    std::set<std::uint64_t> streams;
    std::uint64_t super = 0;  // of arena: address of the superblock, 0 = global
  };
  struct Area {
    std::uint64_t address, size;
    std::vector<Piece> pieces;
  };
  struct Waiting {
    std::uint64_t stream, address;
    bool reached;
  };
  static constexpr std::uint64_t kM = 1 << 20;

  explicit Naive(std::uint64_t capacity_bytes) : capacity(capacity_bytes) {}
  virtual ~Naive() = default;

  std::uint64_t capacity;
  std::optional<std::uint64_t> limit;
  bool events_pending = false;
  std::vector<Area> areas;  // in order of creation

  virtual std::uint64_t round(std::uint64_t n) const { return (n + 511) / 512 * 512; }
  std::uint64_t allocate(std::uint64_t bytes, std::uint64_t stream) {
    poll();
    seen.insert(stream);
    std::uint64_t n = round(bytes);
    std::uint64_t at = attempt(n, stream, false);
    if (!at) {
      empty_cache();
      at = attempt(n, stream, true);
    }
    return at;
  }
  void free(std::uint64_t address) {
    Piece& p = piece(address);
    p.state = Piece::waiting;
    for (std::uint64_t s : p.streams) {
      waiting_.push_back({s, address, false});
      p.events++;
    }
    p.streams.clear();
    if (p.events == 0) settle(address);
  }
  void record_stream(std::uint64_t address, std::uint64_t stream) {
    Piece& p = piece(address);
    if (p.stream != stream) p.streams.insert(stream);
  }
  void complete_events() {
    for (Waiting& w : waiting_) w.reached = true;
  }
  void empty_cache() {
    for (std::uint64_t s : waiting_streams()) {
      for (std::size_t i = 0; i < waiting_.size();) waiting_[i].stream == s ? done(i) : void(i++);
    }
    before_release();
    for (std::size_t i = 0; i < areas.size();) {
      bool whole = areas[i].pieces.size() == 1 && areas[i].pieces[0].state == Piece::free;
      whole ? void(areas.erase(areas.begin() + static_cast<std::ptrdiff_t>(i))) : void(i++);
    }
  }
  std::uint64_t reserved() const {
    std::uint64_t sum = 0;
    for (const Area& a : areas) {
      for (const Piece& p : a.pieces) sum += p.state == Piece::hole ? 0 : p.size;
    }
    return sum;
  }

 protected:
  // The address of a piece handed out, or 0. again: the cache has been given back.
  virtual std::uint64_t attempt(std::uint64_t n, std::uint64_t stream, bool again) = 0;
  virtual bool mergeable(const Area&, const Piece& a, const Piece& b) const { return a.stream == b.stream; }
  virtual void merged(Piece& into, const Piece&) { (void)into; }
  virtual void after_settle(std::uint64_t) {}
  virtual void before_release() {}

  Area& area(std::uint64_t address) {
    return *std::find_if(areas.begin(), areas.end(),
                         [&](const Area& a) { return address >= a.address && address < a.address + a.size; });
  }
  Piece& piece(std::uint64_t address) {
    for (Piece& p : area(address).pieces) {
      if (p.address == address) return p;
    }
    throw address;
  }
  bool reserve(std::uint64_t bytes, std::uint64_t stream) {
    if (limit && reserved() + bytes > *limit) return false;
    if (reserved() + bytes > capacity) return false;
    areas.push_back({next_, bytes, {Piece{next_, bytes, stream, Piece::free, 0, {}, 0}}});
    next_ += bytes + 2 * kM;
    return true;
  }
  template <class F>
  Piece* best(std::uint64_t n, F&& allowed) {
    Piece* found = nullptr;
    for (Area& a : areas) {
      for (Piece& p : a.pieces) {
        if (p.state == Piece::free && p.size >= n && allowed(p) && (!found || p.size < found->size)) found = &p;
      }
    }
    return found;
  }
  template <class F>
  Piece* first(std::uint64_t n, F&& allowed) {
    for (Area& a : areas) {
      for (Piece& p : a.pieces) {
        if (p.state == Piece::free && p.size >= n && allowed(p)) return &p;
      }
    }
    return nullptr;
  }
  // Cuts [address, address + n) off the front and marks it as used.
  std::uint64_t hand_out(std::uint64_t address, std::uint64_t n, bool split) {
    if (split) cut(address, n);
    piece(address).state = Piece::used;
    return address;
  }
  void cut(std::uint64_t address, std::uint64_t n) {
    Area& a = area(address);
    for (std::size_t i = 0; i < a.pieces.size(); i++) {
      Piece& p = a.pieces[i];
      if (p.address != address || p.size == n) continue;
      Piece rest = p;
      rest.address += n;
      rest.size -= n;
      p.size = n;
      a.pieces.insert(a.pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest);
      return;
    }
  }
  // Joins free neighbours as long as there are any that may be joined.
  void merge_all(Area& a) {
    for (std::size_t i = 0; i + 1 < a.pieces.size();) {
      Piece &x = a.pieces[i], &y = a.pieces[i + 1];
      if (x.state != Piece::free || y.state != Piece::free || !mergeable(a, x, y)) {
        i++;
        continue;
      }
      merged(x, y);
      x.size += y.size;
      a.pieces.erase(a.pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      i = 0;
    }
  }
  void settle(std::uint64_t address) {
    piece(address).state = Piece::free;
    merge_all(area(address));
    after_settle(address);
  }

  std::set<std::uint64_t> seen;

 private:
  std::set<std::uint64_t> waiting_streams() const {
    std::set<std::uint64_t> streams;
    for (const Waiting& w : waiting_) streams.insert(w.stream);
    return streams;
  }
  void poll() {
    for (std::uint64_t s : waiting_streams()) {
      for (std::size_t i = 0; i < waiting_.size();) {
        if (waiting_[i].stream != s) {
          i++;
          continue;
        }
        if (!waiting_[i].reached && events_pending) break;
        done(i);
      }
    }
  }
  void done(std::size_t i) {
    std::uint64_t address = waiting_[i].address;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (--piece(address).events == 0) settle(address);
  }

  std::vector<Waiting> waiting_;
  std::uint64_t next_ = 0x700000000000;
};

class NaiveNosplit final : public Naive {
 public:
  using Naive::Naive;

 protected:
  std::uint64_t attempt(std::uint64_t n, std::uint64_t stream, bool again) override {
    bool small = n <= kM;
    Piece* p =
        again ? nullptr : best(n, [&](const Piece& q) { return q.stream == stream && (q.size <= 2 * kM) == small; });
    if (!p) {
      std::uint64_t bytes = small ? 2 * kM : n < 10 * kM ? 20 * kM : (n + 2 * kM - 1) / (2 * kM) * (2 * kM);
      if (!reserve(bytes, stream)) return 0;
      p = &areas.back().pieces[0];
    }
    return hand_out(p->address, n, false);
  }
};

class NaiveBfc final : public Naive {
 public:
  using Naive::Naive;

 protected:
  std::uint64_t attempt(std::uint64_t n, std::uint64_t stream, bool) override {
    Piece* p = best(n, [&](const Piece& q) { return q.stream == stream; });
    if (!p) {
      std::uint64_t room = capacity - reserved();
      if (limit) room = std::min(room, *limit - std::min(*limit, reserved()));
      room = room / (2 * kM) * (2 * kM);
      if ((n + 2 * kM - 1) / (2 * kM) * (2 * kM) > room) return 0;
      if (stream >= regions_.size()) regions_.resize(stream + 1, 2 * kM);
      bool grown = regions_[stream] < n;
      while (regions_[stream] < n) regions_[stream] *= 2;
      if (!reserve(std::min(regions_[stream], room), stream)) return 0;
      if (!grown && regions_[stream] < std::uint64_t{1} << 42) regions_[stream] *= 2;
      p = &areas.back().pieces[0];
    }
    return hand_out(p->address, n, p->size >= 2 * n || p->size - n >= 128 * kM);
  }

 private:
  std::vector<std::uint64_t> regions_;
};

class NaiveBuddy final : public Naive {
 public:
  using Naive::Naive;
  std::uint64_t round(std::uint64_t n) const override {
    std::uint64_t r = 512;
    while (r < n) r *= 2;
    return r;
  }

 protected:
  std::uint64_t attempt(std::uint64_t n, std::uint64_t stream, bool) override {
    Piece* p = best(n, [&](const Piece& q) { return q.stream == stream; });
    if (!p) {
      std::uint64_t least = std::max(n, 2 * kM), bytes = std::max(32 * kM, least);
      while (!reserve(bytes, stream)) {
        bytes /= 2;
        if (bytes < least) return 0;
      }
      p = &areas.back().pieces[0];
    }
    std::uint64_t at = p->address;
    while (piece(at).size > n) cut(at, piece(at).size / 2);
    return hand_out(at, n, false);
  }
  bool mergeable(const Area& a, const Piece& x, const Piece& y) const override {
    return x.size == y.size && (x.address - a.address) / x.size % 2 == 0;
  }
};

class NaiveRmmPool final : public Naive {
 public:
  using Naive::Naive;

 protected:
  std::uint64_t attempt(std::uint64_t n, std::uint64_t stream, bool again) override {
    Piece* p = best(n, [&](const Piece& q) { return q.stream == stream; });
    for (std::uint64_t s : seen) {
      if (!p && !again && s != stream) p = best(n, [&](const Piece& q) { return q.stream == s; });
    }
    if (p && p->stream != stream) {
      p->stream = stream;
      std::uint64_t inside = p->address;
      Area& a = area(inside);
      merge_all(a);
      for (Piece& q : a.pieces) {
        if (q.address <= inside && inside < q.address + q.size) p = &q;
      }
    }
    if (!p && !again) {
      for (Area& a : areas) {
        for (Piece& q : a.pieces) {
          if (q.state == Piece::free) q.stream = stream;
        }
        merge_all(a);
      }
      p = best(n, [](const Piece&) { return true; });
    }
    if (!p) {
      std::uint64_t least = (n + 2 * kM - 1) / (2 * kM) * (2 * kM), bytes = std::max(least, reserved());
      if (limit) bytes = std::max(least, (*limit - std::min(*limit, reserved())) / 2 / (2 * kM) * (2 * kM));
      while (!reserve(bytes, stream)) {
        if (bytes == least) return 0;
        bytes = std::max(least, bytes / 2 / (2 * kM) * (2 * kM));
      }
      p = &areas.back().pieces[0];
    }
    return hand_out(p->address, n, true);
  }
  void before_release() override {
    for (Area& a : areas) {
      bool all = std::all_of(a.pieces.begin(), a.pieces.end(), [](const Piece& p) { return p.state == Piece::free; });
      for (Piece& p : a.pieces) {
        if (all) p.stream = a.pieces[0].stream;
      }
      merge_all(a);
    }
  }
};

class NaiveArena final : public Naive {
 public:
  using Naive::Naive;
  std::uint64_t round(std::uint64_t n) const override {
    std::uint64_t power = 2048;  // 512, 1024, 1536, 2048, then four steps a doubling
    if (n <= power) return (n + 511) / 512 * 512;
    while (power * 2 < n) power *= 2;
    return (n + power / 4 - 1) / (power / 4) * (power / 4);
  }

 protected:
  std::uint64_t attempt(std::uint64_t n, std::uint64_t stream, bool) override {
    if (n > kM) {
      std::uint64_t at = global(n);
      if (at) piece(at).stream = stream;
      return at ? hand_out(at, n, false) : 0;
    }
    Piece* p = first(n, [&](const Piece& q) { return q.super && q.stream == stream; });
    if (!p) {
      std::uint64_t at = global(kM);
      if (!at) return 0;
      p = &piece(at);
      p->super = at;
      p->stream = stream;
    }
    return hand_out(p->address, n, true);
  }
  bool mergeable(const Area&, const Piece& a, const Piece& b) const override { return a.super == b.super; }
  void after_settle(std::uint64_t address) override {
    Area& a = area(address);
    for (Piece& p : a.pieces) {
      if (p.state == Piece::free && p.super && p.size == kM) p.super = 0;
    }
    merge_all(a);
  }

 private:
  std::uint64_t global(std::uint64_t n) {
    auto is_global = [](const Piece& q) { return q.super == 0; };
    Piece* p = first(n, is_global);
    if (!p) {
      std::uint64_t least = (n + 2 * kM - 1) / (2 * kM) * (2 * kM);
      if (!reserve(std::max(least, 32 * kM), 0) && !(least < 32 * kM && reserve(least, 0))) return 0;
      p = first(n, is_global);
    }
    std::uint64_t at = p->address;
    cut(at, n);
    return at;
  }
};

// stitch, and async when every pool and stream takes part.
class NaivePaged final : public Naive {
 public:
  NaivePaged(std::uint64_t capacity_bytes, bool is_async) : Naive(capacity_bytes), async_(is_async) {}
  std::uint64_t round(std::uint64_t n) const override {
    n = (n + 511) / 512 * 512;
    return n <= kM ? n : (n + 2 * kM - 1) / (2 * kM) * (2 * kM);
  }

 protected:
  std::uint64_t attempt(std::uint64_t n, std::uint64_t stream, bool again) override {
    bool small = n <= kM;
    if (!again) {
      Piece* p = best(n, [&](const Piece& q) { return q.stream == stream && is_small(q) == small; });
      if (p) return hand_out(p->address, n, true);
    }
    if (small && !async_) {
      return reserve(2 * kM, stream) ? hand_out(areas.back().address, n, true) : 0;
    }
    std::uint64_t bytes = (n + 2 * kM - 1) / (2 * kM) * (2 * kM);
    if (!again) move_pages(small, stream, bytes);
    if (limit && reserved() + bytes > *limit) return 0;
    if (reserved() + bytes > capacity) {
      next_range_ += bytes + 2 * kM;  // the addresses had been reserved before the device said no
      return 0;
    }
    areas.push_back({next_range_, bytes, {Piece{next_range_, bytes, stream, Piece::free, 0, {}, small ? 1U : 0U}}});
    next_range_ += bytes + 2 * kM;
    return hand_out(areas.back().address, n, true);
  }
  void before_release() override {
    for (Area& a : areas) {
      for (Piece& p : a.pieces) {
        bool pages = p.address < kSegments && p.state == Piece::free && p.size % (2 * kM) == 0;
        if (pages) p.state = Piece::hole;
      }
    }
    drop_empty();
  }

 private:
  static constexpr std::uint64_t kSegments = 0x700000000000;  // ranges lie below
  // `super` marks the small pool of async.
  static bool is_small(const Piece& p) { return p.address >= kSegments || p.super != 0; }

  void move_pages(bool small, std::uint64_t stream, std::uint64_t bytes) {
    std::vector<std::uint64_t> order;  // addresses of free pieces, in the order in which they give pages
    auto gather = [&](bool pool, std::uint64_t s) {
      std::vector<Piece> found;
      for (const Area& a : areas) {
        for (const Piece& p : a.pieces) {
          bool fits = p.address < kSegments && p.state == Piece::free && p.size >= 2 * kM;
          if (fits && is_small(p) == pool && p.stream == s) found.push_back(p);
        }
      }
      std::stable_sort(found.begin(), found.end(), [](const Piece& a, const Piece& b) { return a.size < b.size; });
      for (auto it = found.rbegin(); it != found.rend(); ++it) order.push_back(it->address);
    };
    gather(small, stream);
    for (bool pool : {true, false}) {
      for (std::uint64_t s : seen) {
        if (async_ && !(pool == small && s == stream) && (s == stream || !events_pending)) gather(pool, s);
      }
    }
    for (std::uint64_t address : order) {
      std::uint64_t n = std::min(bytes, piece(address).size);
      if (n == 0) break;
      cut(address, n);
      piece(address).state = Piece::hole;
      bytes -= n;
    }
    drop_empty();
  }
  void drop_empty() {
    for (std::size_t i = 0; i < areas.size();) {
      const auto& pieces = areas[i].pieces;
      bool all = std::all_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.state == Piece::hole; });
      all ? void(areas.erase(areas.begin() + static_cast<std::ptrdiff_t>(i))) : void(i++);
    }
  }

  bool async_;
  std::uint64_t next_range_ = 0x600000000000;
};

// Null where there is no reference.
inline std::unique_ptr<Naive> make_naive(const std::string& policy, std::uint64_t capacity) {
  if (policy == "nosplit") return std::make_unique<NaiveNosplit>(capacity);
  if (policy == "bfc") return std::make_unique<NaiveBfc>(capacity);
  if (policy == "buddy") return std::make_unique<NaiveBuddy>(capacity);
  if (policy == "rmm_pool") return std::make_unique<NaiveRmmPool>(capacity);
  if (policy == "arena") return std::make_unique<NaiveArena>(capacity);
  if (policy == "stitch" || policy == "async") return std::make_unique<NaivePaged>(capacity, policy == "async");
  return nullptr;
}

}  // namespace limpid::memory
