#include <limpid/memory/verdict.h>

#include <algorithm>
#include <map>
#include <set>

#include <limpid/base/error.h>
#include <limpid/base/format.h>

namespace limpid::memory {
namespace {

constexpr std::size_t kMaxHolders = 8;

NameId label_of(const Block& b) { return b.name ? b.name : b.module ? b.module : b.op; }
bool is_mapped(const Block& b) { return b.state != BlockState::unmapped; }

// The longest runs of blocks without a live one.
struct Runs {
  std::uint64_t free_bytes = 0, free_blocks = 0, largest_free = 0;
  std::uint64_t with_pending = 0;  // run of free and pending blocks that the request's pool and stream could use
  std::uint64_t other_stream = 0, other_pool = 0;
  StreamId that_stream = 0;
};

// A live block or a hole of the tiling that a window slides over.
struct Window {
  std::uint64_t weight = 0, unmapped = 0, bytes = 0;
  std::size_t live = 0;
};

class Judge {
 public:
  Judge(OutOfMemoryInfo& info, std::span<const std::unique_ptr<Policy>> pools, std::size_t own, const LedgerRows& rows,
        StreamId stream)
      : info_(info), pools_(pools), policy_(*pools[own]), rows_(rows), stream_(stream),
        pool_(policy_.pool_for(info.rounded)) {
    // What the device can still give us, in units in which a range grows.
    room_ = info_.device_free;
    if (info_.limit) room_ = std::min(room_, *info_.limit - std::min(*info_.limit, info_.reserved));
    const std::uint64_t handed_out = info_.capacity - std::min(info_.capacity, info_.device_free);
    info_.held_by_others = handed_out - std::min(handed_out, info_.reserved);
  }

  void run() {
    std::map<std::pair<Role, NameId>, Holder> holders;
    for_each_segment([&](const Segment& segment, bool own) {
      look_at(segment, own);
      for (const Block* b = segment.first; b != segment.end; b = b->next) {
        if (b->state != BlockState::allocated) continue;
        Holder& holder = holders[{b->role, label_of(*b)}];
        holder.bytes += b->requested;
        holder.count++;
      }
      if (own) find_pins(segment);
    });
    find_pins_of_whole_segments();
    for (auto& [key, holder] : holders) {
      holder.role = key.first;
      holder.name = name_of(key.second);
      info_.holders.push_back(holder);
    }
    std::stable_sort(info_.holders.begin(), info_.holders.end(),
                     [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
    if (info_.holders.size() > kMaxHolders) info_.holders.resize(kMaxHolders);
    info_.largest_free = runs_.largest_free;
    decide();
  }

 private:
  void for_each_segment(const std::function<void(const Segment&, bool own)>& visit) const {
    for (const auto& policy : pools_)
      policy->for_each_segment([&](const Segment& s) { visit(s, policy.get() == &policy_); });
  }

  void look_at(const Segment& segment, bool own) {
    std::uint64_t free_run = 0, run = 0;
    bool pending = false;
    for (const Block* b = segment.first; b != segment.end; b = b->next) {
      if (b->state == BlockState::free) {
        runs_.free_bytes += b->size;
        runs_.free_blocks++;
        runs_.largest_free = std::max<std::uint64_t>(runs_.largest_free, b->size);
      }
      free_run = b->state == BlockState::free ? free_run + b->size : 0;
      pending = (pending && b->state == BlockState::free) || b->state == BlockState::pending;
      run = b->state == BlockState::free || b->state == BlockState::pending ? run + b->size : 0;
      if (run == 0) pending = false;
      const bool own_pool = own && b->pool == pool_, own_stream = b->stream == stream_;
      if (pending && own_pool && own_stream) runs_.with_pending = std::max(runs_.with_pending, run);
      if (own_pool && !own_stream && free_run > runs_.other_stream) {
        runs_.other_stream = free_run;
        runs_.that_stream = b->stream;
      }
      if (!own_pool) runs_.other_pool = std::max(runs_.other_pool, free_run);
    }
  }

  // Windows of neighbouring tiles: the fewest live blocks, then the fewest bytes, with place for the request between
  // their neighbours. Unmapped tiles count as far as the device can map them.
  void find_pins(const Segment& segment) {
    const Block* first = segment.first;
    if (!first || first->pool != pool_ || first->stream != stream_) return;
    if (segment.expandable) {  // the whole range, once
      while (first->prev) first = first->prev;
      if (!ranges_.insert(first).second) return;
    }
    const std::uint64_t unit = policy_.growth_unit(pool_);
    const std::uint64_t mappable = segment.expandable ? room_ / unit * unit : 0;
    Window w;
    const Block* left = first;
    for (const Block* right = first; right; right = right->next) {
      add(w, *right, +1);
      for (;;) {  // drop what is not needed on the left
        Window less = w;
        add(less, *left, -1);
        if (left == right || less.weight + std::min(less.unmapped, mappable) < info_.rounded) break;
        w = less;
        left = left->next;
      }
      if (w.weight + std::min(w.unmapped, mappable) < info_.rounded) continue;
      std::uint64_t inner = 0;  // all of it must be mapped
      for (const Block* b = left->next; left != right && b != right; b = b->next) {
        if (!is_mapped(*b)) inner += b->size;
      }
      if (inner > mappable || w.live == 0) continue;
      if (found_ && (w.live > best_.live || (w.live == best_.live && w.bytes >= best_.bytes))) continue;
      found_ = true;
      best_ = w;
      info_.pins = {};
      info_.pins.bytes = w.bytes;
      info_.pins.hole = w.weight + std::min(w.unmapped, mappable);
      for (const Block* b = left;; b = b->next) {
        if (b->state == BlockState::allocated) info_.pins.blocks.push_back(pin(*b));
        if (b == right) break;
      }
    }
  }

  static void add(Window& w, const Block& b, int sign) {
    auto change = [sign](std::uint64_t& value, std::uint64_t by) { sign > 0 ? value += by : value -= by; };
    change(is_mapped(b) ? w.weight : w.unmapped, b.size);
    if (b.state != BlockState::allocated) return;
    sign > 0 ? w.live++ : w.live--;
    change(w.bytes, b.requested);
  }

  // The fewest live blocks whose whole segments, given back, make room on the device: when they are fewer than inside
  // one segment, or no segment is large enough.
  // most[n] = the most bytes of segments that hold n live blocks together; exact.
  void find_pins_of_whole_segments() {
    const std::uint64_t needed = std::max<std::uint64_t>(info_.device_asked, info_.rounded);
    if (needed <= room_) return;
    struct Whole {
      const Segment* segment;
      std::size_t live;
    };
    std::vector<Whole> wholes;
    std::size_t all = 0;
    for_each_segment([&](const Segment& segment, bool) {
      if (segment.expandable) return;
      std::size_t live = 0;
      for (const Block* b = segment.first; b != segment.end; b = b->next) live += b->state == BlockState::allocated;
      if (live == 0) return;
      wholes.push_back({&segment, live});
      all += live;
    });
    constexpr std::size_t kMostWork = std::size_t{1} << 24;
    if (wholes.size() * (all + 1) > kMostWork) return;
    std::vector<std::uint64_t> most(all + 1, 0);
    std::vector<std::vector<bool>> taken(wholes.size(), std::vector<bool>(all + 1, false));
    for (std::size_t i = 0; i < wholes.size(); i++) {
      for (std::size_t n = all; n >= wholes[i].live; n--) {
        const std::size_t rest = n - wholes[i].live;
        if (rest > 0 && most[rest] == 0) continue;
        const std::uint64_t with = most[rest] + wholes[i].segment->size;
        if (with <= most[n]) continue;
        most[n] = with;
        taken[i][n] = true;
      }
    }
    std::size_t n = 1;
    while (n <= all && room_ + most[n] < needed) n++;
    if (n > all || (found_ && best_.live <= n)) return;
    info_.pins = {};
    info_.pins.whole_segments = true;
    info_.pins.hole = room_ + most[n];
    for (std::size_t i = wholes.size(); i-- > 0 && n > 0;) {
      if (!taken[i][n]) continue;
      n -= wholes[i].live;
      for (const Block* b = wholes[i].segment->first; b != wholes[i].segment->end; b = b->next) {
        if (b->state != BlockState::allocated) continue;
        info_.pins.blocks.push_back(pin(*b));
        info_.pins.bytes += b->requested;
      }
    }
  }

  static Pin pin(const Block& b) { return {b.id, b.role, name_of(label_of(b)), b.requested}; }

  void decide() {
    auto bytes = [](std::uint64_t n) { return format_bytes(n); };
    const std::uint64_t live = rows_.live_total, r = info_.requested, rounded = info_.rounded;
    const std::uint64_t own = info_.capacity - std::min(info_.capacity, info_.held_by_others);
    const std::uint64_t reach = info_.limit ? std::min(own, *info_.limit) : own;
    auto say = [&](OomCause cause, std::string reason) {
      info_.cause = cause;
      info_.reason = std::move(reason);
    };
    const std::string sum = concat(bytes(live), " live and ", bytes(r), " more");
    if (info_.device_asked > 0 && room_ >= info_.device_asked) {  // it said no all the same
      return say(OomCause::external, concat("the device reports ", bytes(room_), " free, but did not give ",
                                            bytes(info_.device_asked), ": the system or another program stands in between"));
    }
    if (live + r > info_.capacity) {
      return say(OomCause::capacity, concat(sum, " exceed the device's ", bytes(info_.capacity), " by ",
                                            bytes(live + r - info_.capacity)));
    }
    if (live + r > own) {
      return say(OomCause::external,
                 concat(sum, " would fit ", bytes(info_.capacity), ", but others hold ", bytes(info_.held_by_others)));
    }
    if (live + r > reach) {
      return say(OomCause::limit, concat(sum, " fit the device, but exceed the limit of ", bytes(*info_.limit)));
    }
    if (runs_.with_pending >= rounded) {
      return say(OomCause::pending, concat("a place of ", bytes(runs_.with_pending),
                                           " is freed, but waits for work on another stream"));
    }
    if (runs_.other_stream >= rounded) {
      return say(OomCause::other_stream, concat("a free place of ", bytes(runs_.other_stream), " belongs to stream ",
                                                runs_.that_stream, ", the request to stream ", stream_));
    }
    if (runs_.other_pool >= rounded) {
      return say(OomCause::other_pool,
                 concat("a free place of ", bytes(runs_.other_pool), " lies in another pool (",
                        pools_.size() > 1 ? "of other roles or " : "", "of ",
                        pool_ == PoolKind::large ? "small" : "large", " requests) than this request's"));
    }
    if (room_ >= r && info_.device_asked > room_) {
      return say(OomCause::granularity, concat("the device has room for ", bytes(room_), ", but is asked for ",
                                               bytes(info_.device_asked), " at once"));
    }
    if (live + rows_.rounding + rounded > reach) {
      return say(OomCause::granularity,
                 concat(sum, " would fit ", bytes(reach), ", but rounding adds ",
                        bytes(rows_.rounding + rounded - r)));
    }
    say(OomCause::fragmentation, concat(bytes(runs_.free_bytes + room_), " are free: ", bytes(runs_.free_bytes), " in ",
                                        format_count(static_cast<std::int64_t>(runs_.free_blocks)),
                                        runs_.free_blocks == 1 ? " place" : " places", " of the cache, the largest ",
                                        bytes(runs_.largest_free), ", and ", bytes(room_), " on the device"));
  }

  OutOfMemoryInfo& info_;
  const std::span<const std::unique_ptr<Policy>> pools_;
  const Policy& policy_;
  const LedgerRows& rows_;
  const StreamId stream_;
  const PoolKind pool_;
  std::uint64_t room_ = 0;
  Runs runs_;
  std::set<const Block*> ranges_;
  bool found_ = false;
  Window best_;
};

}  // namespace

void judge(OutOfMemoryInfo& info, std::span<const std::unique_ptr<Policy>> pools, std::size_t pool,
           const LedgerRows& rows, StreamId stream) {
  Judge(info, pools, pool, rows, stream).run();
}

void look_back(OutOfMemoryInfo& info, NameId name, const Trace& trace) {
  const Scope& now = info.scope;
  trace.visit([&](const TraceRecord& r) {
    if (r.kind != TraceKind::alloc || r.step >= now.step || r.op != now.op || r.module != now.module ||
        r.phase != now.phase || r.role != info.role || r.name != name) {
      return;
    }
    info.earlier_request = std::max(info.earlier_request.value_or(0), r.bytes);
  });
}

}  // namespace limpid::memory
