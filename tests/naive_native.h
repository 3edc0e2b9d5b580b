// The native policy once more, as plainly as possible: every search is a scan, nothing is kept that can be counted. For
// comparison only. It has its own simulated device with the address rule of SimulatedMemory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include <limpid/memory/settings.h>

namespace limpid::memory {

class NaiveNative {
 public:
  struct Piece {
    std::uint64_t address, size;
    enum { free, used, waiting } state;
    std::set<std::uint64_t> streams;  // record_stream
    std::uint64_t events, since;      // pending events; clock when it became free
  };
  struct Area {
    std::uint64_t address, size, stream;
    bool small;
    std::vector<Piece> pieces;  // in address order
  };
  struct Waiting {
    std::uint64_t stream, address;
    bool reached;
  };

  NaiveNative(std::uint64_t capacity, const AllocatorSettings& settings) : capacity_(capacity), s_(settings) {}

  bool events_pending = false;
  std::int64_t retries = 0, mallocs = 0, frees = 0;
  std::optional<std::uint64_t> limit;

  // The address, 0 when out of memory.
  std::uint64_t allocate(std::uint64_t bytes, std::uint64_t stream) {
    poll();
    std::uint64_t n = round(bytes);
    bool small = n <= 1 << 20;
    std::uint64_t segment = small ? 2 << 20 : n < 10 << 20 ? s_.large_segment_size : (n + (2 << 20) - 1) >> 21 << 21;
    std::uint64_t clock_tick = limit && s_.garbage_collection_threshold > 0 ? 1 : 0;
    clock_[small] += clock_tick;
    Piece* found = best_fit(small, stream, n);
    if (found) {
      bool big = found->size >= s_.max_split_size;
      bool too_big = n < s_.max_split_size ? big : found->size >= n + s_.max_non_split_rounding;
      if (too_big) found = nullptr;
    }
    if (!found) {
      if (clock_tick) collect();
      if (!reserve(small, stream, segment) && !(give_oversize(small, stream, n) && reserve(small, stream, segment))) {
        empty_cache();
        retries++;
        if (!reserve(small, stream, segment)) return 0;
      }
      found = &areas_.back().pieces.front();
    }
    Area& area = area_of(found->address);
    std::size_t i = static_cast<std::size_t>(found - area.pieces.data());
    std::uint64_t rest = found->size - n;
    if (small ? rest >= 512 : rest > 1 << 20 && n < s_.max_split_size) {
      found->size = n;
      area.pieces.insert(area.pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                         Piece{found->address + n, rest, Piece::free, {}, 0, clock_[small]});
    }
    area.pieces[i].state = Piece::used;
    return area.pieces[i].address;
  }

  void free(std::uint64_t address) {
    Piece& piece = piece_of(address);
    piece.state = Piece::waiting;
    for (std::uint64_t stream : piece.streams) {
      waiting_.push_back({stream, address, false});
      piece.events++;
    }
    piece.streams.clear();
    if (piece.events == 0) settle(address);
  }

  void record_stream(std::uint64_t address, std::uint64_t stream) {
    if (area_of(address).stream != stream) piece_of(address).streams.insert(stream);
  }

  void empty_cache() {
    for (std::uint64_t stream : waiting_streams()) {
      for (std::size_t i = 0; i < waiting_.size();) {
        if (waiting_[i].stream == stream) {
          done(i);
        } else {
          i++;
        }
      }
    }
    for (std::size_t i = 0; i < areas_.size();) {
      if (areas_[i].pieces.size() == 1 && areas_[i].pieces[0].state == Piece::free) {
        give_back(i);
      } else {
        i++;
      }
    }
  }

  void complete_events() {
    for (Waiting& w : waiting_) w.reached = true;
  }

  template <class F>
  std::uint64_t sum(F&& what) const {
    std::uint64_t total = 0;
    for (const Area& area : areas_) {
      for (const Piece& piece : area.pieces) total += what(area, piece);
    }
    return total;
  }
  std::uint64_t reserved() const {
    return sum([](const Area&, const Piece& p) { return p.size; });
  }
  std::uint64_t allocated() const {
    return sum([](const Area&, const Piece& p) { return p.state == Piece::used ? p.size : 0; });
  }
  std::uint64_t active() const {
    return sum([](const Area&, const Piece& p) { return p.state != Piece::free ? p.size : 0; });
  }
  std::uint64_t inactive_split() const {
    return sum(
        [](const Area& a, const Piece& p) { return p.state == Piece::free && a.pieces.size() > 1 ? p.size : 0; });
  }

  std::uint64_t round(std::uint64_t bytes) const {
    std::uint64_t mib = 1 << 20, k = 0;
    while (k < 15 && bytes >= mib << (k + 1)) k++;
    std::uint64_t divisions = s_.roundup_power2_divisions[k];
    if (divisions > 1 && bytes > 512 * divisions) {
      std::uint64_t power = 1;
      while (power * 2 <= bytes) power *= 2;
      std::uint64_t n = power;
      while (n < bytes) n += power / divisions;
      return n;
    }
    return std::max<std::uint64_t>(1, (bytes + 511) / 512) * 512;
  }

 private:
  Area& area_of(std::uint64_t address) {
    return *std::find_if(areas_.begin(), areas_.end(),
                         [&](const Area& a) { return address >= a.address && address < a.address + a.size; });
  }
  Piece& piece_of(std::uint64_t address) {
    Area& area = area_of(address);
    return *std::find_if(area.pieces.begin(), area.pieces.end(), [&](const Piece& p) { return p.address == address; });
  }

  Piece* best_fit(bool small, std::uint64_t stream, std::uint64_t n) {
    Piece* best = nullptr;
    for (Area& area : areas_) {  // in order of creation; pieces in address order
      if (area.small != small || area.stream != stream) continue;
      for (Piece& piece : area.pieces) {
        if (piece.state == Piece::free && piece.size >= n && (!best || piece.size < best->size)) best = &piece;
      }
    }
    return best;
  }

  bool reserve(bool small, std::uint64_t stream, std::uint64_t bytes) {
    if (limit && reserved() + bytes > *limit) return false;
    mallocs++;
    if (reserved() + bytes > capacity_) return false;
    areas_.push_back({next_, bytes, stream, small, {Piece{next_, bytes, Piece::free, {}, 0, clock_[small]}}});
    next_ += bytes + (2 << 20);
    return true;
  }
  void give_back(std::size_t i) {
    frees++;
    areas_.erase(areas_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  bool whole_free(const Area& area) const { return area.pieces.size() == 1 && area.pieces[0].state == Piece::free; }

  bool give_oversize(bool small, std::uint64_t stream, std::uint64_t n) {
    if (s_.max_split_size == AllocatorSettings::kNoSplitLimit) return false;
    std::uint64_t wanted = std::max<std::uint64_t>(n, s_.max_split_size);
    if (Piece* piece = best_fit(small, stream, wanted)) {
      give_back(static_cast<std::size_t>(&area_of(piece->address) - areas_.data()));
      return true;
    }
    std::uint64_t given = 0;
    while (given < wanted) {
      std::optional<std::size_t> largest;
      for (std::size_t i = 0; i < areas_.size(); i++) {
        const Area& area = areas_[i];
        if (area.small != small || area.stream != stream || !whole_free(area) || area.size < s_.max_split_size)
          continue;
        if (!largest || area.size >= areas_[*largest].size) largest = i;
      }
      if (!largest) return false;
      given += areas_[*largest].size;
      give_back(*largest);
    }
    return true;
  }

  void collect() {
    auto threshold = static_cast<std::uint64_t>(s_.garbage_collection_threshold * static_cast<double>(*limit));
    if (reserved() <= threshold) return;
    std::uint64_t target = reserved() - threshold, given = 0;
    for (bool progress = true; given < target && progress;) {
      progress = false;
      double ages = 0, count = 0;
      for (const Area& area : areas_) {
        if (area.small || !whole_free(area)) continue;
        ages += static_cast<double>(clock_[0] - area.pieces[0].since);
        count++;
      }
      for (std::size_t i = 0; i < areas_.size() && count > 0;) {
        const Area& area = areas_[i];
        bool old =
            !area.small && whole_free(area) && static_cast<double>(clock_[0] - area.pieces[0].since) >= ages / count;
        if (!old) {
          i++;
          continue;
        }
        given += area.size;
        progress = true;
        give_back(i);
      }
    }
  }

  std::set<std::uint64_t> waiting_streams() const {
    std::set<std::uint64_t> streams;
    for (const Waiting& w : waiting_) streams.insert(w.stream);
    return streams;
  }
  void poll() {
    for (std::uint64_t stream : waiting_streams()) {
      for (std::size_t i = 0; i < waiting_.size();) {
        if (waiting_[i].stream != stream) {
          i++;
          continue;
        }
        if (!waiting_[i].reached && events_pending) break;  // those behind it wait with it
        done(i);
      }
    }
  }
  void done(std::size_t i) {
    std::uint64_t address = waiting_[i].address;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (--piece_of(address).events == 0) settle(address);
  }
  void settle(std::uint64_t address) {
    Area& area = area_of(address);
    std::size_t i = 0;
    while (area.pieces[i].address != address) i++;
    area.pieces[i].state = Piece::free;
    area.pieces[i].since = clock_[area.small];
    auto join = [&](std::size_t left) {
      area.pieces[left].size += area.pieces[left + 1].size;
      area.pieces[left].since = clock_[area.small];
      area.pieces.erase(area.pieces.begin() + static_cast<std::ptrdiff_t>(left) + 1);
    };
    if (i + 1 < area.pieces.size() && area.pieces[i + 1].state == Piece::free) join(i);
    if (i > 0 && area.pieces[i - 1].state == Piece::free) join(i - 1);
  }

  std::uint64_t capacity_;
  AllocatorSettings s_;
  std::vector<Area> areas_;
  std::vector<Waiting> waiting_;
  std::uint64_t next_ = 0x700000000000;
  std::uint64_t clock_[2] = {0, 0};
};

}  // namespace limpid::memory
