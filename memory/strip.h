// The address x time map of a replay as text: a row is a range of addresses, a column a stretch of operations, a cell
// tells how much of its reserved bytes were in use. For terminals; the picture with colours is another tool's.
#pragma once

#include <string>
#include <vector>

#include <limpid/memory/replay.h>

namespace limpid::memory {

struct StripOptions {
  int width = 96;       // columns of the map
  int height = 24;      // rows
  bool unicode = true;  // " ·░▒▓█"; else " .-+#@"
};

struct Strip {
  std::vector<std::string> rows;  // highest addresses first
  std::uint64_t bytes_a_row = 0;
  double operations_a_column = 0;
  std::vector<std::uint64_t> live, reserved;  // highest in each column
  ReplayResult result;
};

// Segments stand at the lowest free place of the axis when they come, so the axis is about peak reserved long.
Strip draw_strip(const ReplayScript& script, const ReplayOptions& options, const StripOptions& strip = {});

}  // namespace limpid::memory
