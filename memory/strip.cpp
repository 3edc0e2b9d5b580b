#include <limpid/memory/strip.h>

#include <algorithm>
#include <map>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

// Where pieces of reserved memory stand on the axis.
class Axis {
 public:
  void add(std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t at = 0;  // first fit between what is there
    for (const auto& [begin, end] : used_) {
      if (begin - at >= bytes) break;
      at = end;
    }
    used_[at] = at + bytes;
    pieces_[address] = {bytes, at};
    height_ = std::max(height_, at + bytes);
  }
  // Calls f(place, bytes) for what is removed: whole pieces, or parts of them when pages are given back.
  template <class F>
  void remove(std::uint64_t address, std::uint64_t bytes, F&& f) {
    for (auto it = first_over(address); it != pieces_.end() && it->first < address + bytes;) {
      const std::uint64_t begin = it->first, end = begin + it->second.bytes, place = it->second.place;
      const std::uint64_t from = std::max(begin, address), to = std::min(end, address + bytes);
      f(place + (from - begin), to - from);
      it = pieces_.erase(it);
      used_.erase(place);
      if (from > begin) {
        pieces_[begin] = {from - begin, place};
        used_[place] = place + (from - begin);
      }
      if (to < end) {
        it = pieces_.insert({to, {end - to, place + (to - begin)}}).first;
        used_[place + (to - begin)] = place + (end - begin);
        ++it;
      }
    }
  }
  template <class F>
  void for_each_part(std::uint64_t address, std::uint64_t bytes, F&& f) const {
    for (auto it = first_over(address); it != pieces_.end() && it->first < address + bytes; ++it) {
      const std::uint64_t from = std::max(it->first, address);
      const std::uint64_t to = std::min(it->first + it->second.bytes, address + bytes);
      f(it->second.place + (from - it->first), to - from);
    }
  }
  std::uint64_t height() const { return height_; }

 private:
  struct Piece {
    std::uint64_t bytes, place;
  };
  template <class Map>
  static auto first_over_in(Map& pieces, std::uint64_t address) {
    auto it = pieces.upper_bound(address);
    if (it != pieces.begin()) {
      auto before = std::prev(it);
      if (before->first + before->second.bytes > address) return before;
    }
    return it;
  }
  std::map<std::uint64_t, Piece>::iterator first_over(std::uint64_t a) { return first_over_in(pieces_, a); }
  std::map<std::uint64_t, Piece>::const_iterator first_over(std::uint64_t a) const { return first_over_in(pieces_, a); }
  std::map<std::uint64_t, Piece> pieces_;        // by address
  std::map<std::uint64_t, std::uint64_t> used_;  // places: begin -> end
  std::uint64_t height_ = 0;
};

class HeightFinder final : public ReplayObserver {
 public:
  Axis axis;
  void on_device(DeviceEvent event, std::uint64_t address, std::uint64_t bytes) override {
    if (event == DeviceEvent::reserve || event == DeviceEvent::map) {
      axis.add(address, bytes);
    } else {
      axis.remove(address, bytes, [](std::uint64_t, std::uint64_t) {});
    }
  }
};

class Painter final : public ReplayObserver {
 public:
  Painter(const StripOptions& o, std::uint64_t height, std::size_t operations, std::uint32_t slots)
      : width(static_cast<std::size_t>(o.width)),
        height_cells(static_cast<std::size_t>(o.height)),
        bytes_a_row((std::max<std::uint64_t>(height, 1) + height_cells - 1) / height_cells),
        operations_a_column(std::max(1.0, static_cast<double>(operations)) / static_cast<double>(width)),
        used(width * height_cells),
        reserved(width * height_cells),
        live_column(width),
        reserved_column(width),
        live_(slots) {}

  void on_device(DeviceEvent event, std::uint64_t address, std::uint64_t bytes) override {
    if (event == DeviceEvent::reserve || event == DeviceEvent::map) {
      axis_.add(address, bytes);
      axis_.for_each_part(address, bytes, [&](std::uint64_t place, std::uint64_t n) { begun_[place] = {n, time_}; });
    } else {
      axis_.remove(address, bytes, [&](std::uint64_t place, std::uint64_t n) { end_reserved(place, n); });
    }
  }
  void on_alloc(const ReplayOp& op, const Block& block) override {
    live_[op.slot] = {reinterpret_cast<std::uintptr_t>(block.ptr), block.size, time_};
  }
  void on_free(const ReplayOp& op, const Block&, bool) override { paint_block(live_[op.slot]); }
  void on_step(const ReplayOp&, const LedgerRows& rows) override {
    const std::size_t c = std::min(static_cast<std::size_t>(time_ / operations_a_column), width - 1);
    live_column[c] = std::max(live_column[c], rows.live_total);
    reserved_column[c] = std::max(reserved_column[c], rows.reserved);
    time_ += 1;
  }
  // What is there at the end lasts to the end.
  void on_end(Allocator&) override {
    for (LiveBlock& block : live_) paint_block(block);
    for (const auto& [place, begun] : begun_) paint(reserved, place, begun.bytes, begun.time, time_);
  }

  std::size_t width, height_cells;
  std::uint64_t bytes_a_row;
  double operations_a_column;
  std::vector<double> used, reserved;  // byte-operations of each cell
  std::vector<std::uint64_t> live_column, reserved_column;

 private:
  struct LiveBlock {
    std::uint64_t address = 0, bytes = 0;
    double since = 0;
  };
  struct Begun {
    std::uint64_t bytes;
    double time;
  };
  void paint_block(LiveBlock& block) {
    axis_.for_each_part(block.address, block.bytes,
                        [&](std::uint64_t place, std::uint64_t n) { paint(used, place, n, block.since, time_); });
    block.bytes = 0;
  }
  // Places are removed as they came or in parts; what is left of a part stays begun.
  void end_reserved(std::uint64_t place, std::uint64_t bytes) {
    auto it = begun_.upper_bound(place);
    if (it == begun_.begin()) return;
    --it;
    const std::uint64_t begin = it->first, end = begin + it->second.bytes;
    const double since = it->second.time;
    begun_.erase(it);
    paint(reserved, place, bytes, since, time_);
    if (place > begin) begun_[begin] = {place - begin, since};
    if (place + bytes < end) begun_[place + bytes] = {end - place - bytes, since};
  }
  void paint(std::vector<double>& grid, std::uint64_t place, std::uint64_t bytes, double from, double to) {
    if (to <= from) return;
    const double column_end = operations_a_column * static_cast<double>(width);
    for (std::uint64_t row = place / bytes_a_row; row < height_cells && row * bytes_a_row < place + bytes; row++) {
      const std::uint64_t low = std::max(place, row * bytes_a_row);
      const std::uint64_t high = std::min(place + bytes, (row + 1) * bytes_a_row);
      const double share = static_cast<double>(high - low);
      for (auto c = static_cast<std::size_t>(from / operations_a_column); c < width; c++) {
        const double begin = std::max(from, static_cast<double>(c) * operations_a_column);
        const double end = std::min({to, static_cast<double>(c + 1) * operations_a_column, column_end});
        if (end <= begin) break;
        grid[static_cast<std::size_t>(row) * width + c] += share * (end - begin);
      }
    }
  }

  Axis axis_;
  double time_ = 0;
  std::vector<LiveBlock> live_;           // by slot
  std::map<std::uint64_t, Begun> begun_;  // reserved places
};

}  // namespace

Strip draw_strip(const ReplayScript& script, const ReplayOptions& options, const StripOptions& strip) {
  LIMPID_CHECK(strip.width >= 8 && strip.width <= 4096 && strip.height >= 2 && strip.height <= 1024, ArgumentError,
               "[strip] width must be in [8, 4096] and height in [2, 1024], got ", strip.width, " x ", strip.height);
  ReplayOptions run = options;
  run.layouts = false;
  HeightFinder finder;
  Strip out;
  out.result = replay(script, run, &finder);
  Painter painter(strip, finder.axis.height(), out.result.operations, script.slots);
  replay(script, run, &painter);
  out.bytes_a_row = painter.bytes_a_row;
  out.operations_a_column = painter.operations_a_column;
  out.live = painter.live_column;
  out.reserved = painter.reserved_column;
  static constexpr const char* kUnicode[] = {"·", "░", "▒", "▓", "█"};
  static constexpr const char* kAscii[] = {".", "-", "+", "#", "@"};
  const double cell = static_cast<double>(out.bytes_a_row) * out.operations_a_column;
  for (std::size_t row = painter.height_cells; row-- > 0;) {
    std::string line;
    for (std::size_t c = 0; c < painter.width; c++) {
      const double reserved = painter.reserved[row * painter.width + c], used = painter.used[row * painter.width + c];
      if (reserved < cell / 4) {
        line += " ";
        continue;
      }
      const double share = std::min(used / reserved, 1.0);
      const int level = share < 0.02 ? 0 : 1 + static_cast<int>(3.999 * share);
      line += (strip.unicode ? kUnicode : kAscii)[level];
    }
    out.rows.push_back(line);
  }
  return out;
}

}  // namespace limpid::memory
