#include <limpid/tensor/cpu/winograd.h>

#include <algorithm>

#include <limpid/tensor/cpu/conv_tail.h>
#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>

namespace limpid::cpu {
namespace {

constexpr std::int64_t P = kPanel<float>;
constexpr std::int64_t kPositions = 36;

// Narrow layers keep all transformed filters in cache: tasks are blocks of tiles, with input and product in the L2
// cache. Wide layers transform all inputs first; tasks are output panels, and a panel's transformed filter lives in one
// task only.
bool is_narrow(std::int64_t channels, std::int64_t outputs) { return channels * outputs <= 128 * 128; }

// Odd row counts of panels keep the 36 positions off the same cache sets.
std::int64_t odd(std::int64_t n) { return n | 1; }

struct Sizes {
  std::int64_t channels, outputs, tiles;
  std::int64_t in() const { return round_up(channels, P); }
  std::int64_t out() const { return round_up(outputs, P); }
  std::int64_t out_panels() const { return panels<float>(outputs); }
};

// Tiles a task of a narrow layer: about 1.5 MiB of transformed data, at least 16 tasks where there are tiles enough.
std::int64_t narrow_block(const Sizes& s, const WinogradPieces& pieces) {
  constexpr std::int64_t kBytes = 1536 * 1024;
  std::int64_t block = std::clamp<std::int64_t>(kBytes / 4 / (kPositions * (s.in() + s.out())) / 6 * 6, 24, 192);
  block = std::min(block, std::max<std::int64_t>(12, ceil_div(s.tiles, 2 * kMaxSlots)));
  block = std::max<std::int64_t>(std::min<std::int64_t>(12, block), block >> pieces.halvings);
  return ceil_div(s.tiles, ceil_div(s.tiles, block));
}
// Tiles whose transforms a wide layer holds at a time.
std::int64_t wide_block(std::int64_t tiles, std::int64_t width, std::int64_t bytes, const WinogradPieces& pieces) {
  std::int64_t block = std::min(tiles, std::max<std::int64_t>(96, bytes / 4 / (kPositions * width)));
  block = std::max<std::int64_t>(std::min<std::int64_t>(24, block), block >> pieces.halvings);
  return ceil_div(tiles, ceil_div(tiles, block));
}
constexpr std::int64_t kWideForwardBytes = 10 << 20, kWideWeightBytes = 20 << 20;
constexpr std::int64_t kTransformTiles = 8;  // tiles a task of a separate transform

// Partitions of the tiles that keep sums of their own (narrow weight gradient).
std::int64_t weight_parts(const Sizes& s, const WinogradPieces& pieces) {
  constexpr std::int64_t kBytes = 16 << 20;
  return std::clamp<std::int64_t>(std::min(kBytes / (kPositions * 4 * s.channels * s.out()), s.tiles / 24), 1,
                                  pieces.slots);
}

Sizes sizes_of(const WinogradGeo& geo, std::int64_t channels, std::int64_t outputs) {
  return {channels, outputs, geo.tiles()};
}

// Where the results of a forward pass go.
struct Output {
  float* y;                         // [pixels][total]
  std::int64_t total;
  const TailTarget<float>* tail;    // not null: there instead

  // The output transform of tiles [t0, t0 + count): channels [n0, n0 + n), bias and m being theirs.
  void put(const WinogradGeo& geo, const float* m, std::int64_t n0, std::int64_t n, std::int64_t t0,
           std::int64_t count, std::int64_t rows, const float* bias) const {
    const WinogradKernels& wino = winograd_kernels();
    if (tail == nullptr) return wino.output(geo, m, n, t0, count, rows, bias, y + n0, total);
    float tile[16 * kMostChannels];  // [4][4][n], as an image of its own
    for (std::int64_t t = 0; t < count; ++t) {
      const WinogradTile at(geo, t0 + t);
      WinogradGeo one = geo;
      one.n = 1, one.oh = std::min<std::int64_t>(4, geo.oh - at.y), one.ow = std::min<std::int64_t>(4, geo.ow - at.x);
      wino.output(one, m + t * P, n, 0, 1, rows, bias, tile, n);
      tail->put(at.image, at.y, at.x, one.oh, one.ow, n0, n, tile, n, one.ow * n);
    }
  }
  static constexpr std::int64_t kMostChannels = 128 * 128 / 16;  // of a narrow layer with 16 inputs
};

void forward_narrow(const WinogradGeo& geo, const FilterMap& filter, const Sizes& s, const WinogradPieces& pieces,
                    const float* x, const float* w, const float* bias, const Output& out, float* workspace) {
  const WinogradKernels& wino = winograd_kernels();
  const PanelKernels<float>& panel = panel_kernels<float>();
  const ConvKernels<float>& conv = conv_kernels<float>();
  // U [36][output panels][channels][P]; the packed taps of each panel come first in the slots' memory.
  float* u = workspace;
  float* slots = u + kPositions * s.out() * s.channels;
  const std::int64_t u_position = s.out() * s.channels;
  float* taps = slots;  // [panel][9][channels][P], dead before the slots are used
  parallel_for(s.out_panels(), [&](std::int64_t p) {
    float* packed = taps + p * 9 * s.channels * P;
    conv.pack_filter(filter, w, p, packed);
    wino.filter(s.channels, packed, u + p * s.channels * P, u_position);
  });
  const std::int64_t block = narrow_block(s, pieces), rows = odd(block),
                     slot_size = kPositions * rows * (s.in() + s.out());
  parallel_slots(
      ceil_div(s.tiles, block),
      [&](std::int64_t slot, std::int64_t task) {
        const std::int64_t t0 = task * block, count = std::min(block, s.tiles - t0);
        float* v = slots + slot * slot_size;
        float* m = v + kPositions * rows * s.in();
        wino.input(geo, x, s.channels, t0, count, v, rows);
        for (std::int64_t q = 0; q < kPositions; ++q) {
          panel.multiply_panels(count, s.out(), s.channels, v + q * rows * s.in(), rows * P, u + q * u_position,
                                s.channels * P, m + q * rows * s.out(), rows * P);
        }
        out.put(geo, m, 0, s.outputs, t0, count, rows, bias);
      },
      pieces.slots);
}

void forward_wide(const WinogradGeo& geo, const FilterMap& filter, const Sizes& s, const WinogradPieces& pieces,
                  const float* x, const float* w, const float* bias, const Output& out, float* workspace) {
  const WinogradKernels& wino = winograd_kernels();
  const PanelKernels<float>& panel = panel_kernels<float>();
  const ConvKernels<float>& conv = conv_kernels<float>();
  const std::int64_t block = wide_block(s.tiles, s.in(), kWideForwardBytes, pieces), rows = odd(block);
  float* v = workspace;
  float* slots = v + kPositions * rows * s.in();
  const std::int64_t slot_size = (kPositions + 9) * s.channels * P + kPositions * rows * P;
  for (std::int64_t t0 = 0; t0 < s.tiles; t0 += block) {
    const std::int64_t count = std::min(block, s.tiles - t0);
    parallel_chunks(count, kTransformTiles, [&](std::int64_t begin, std::int64_t end) {
      wino.input(geo, x, s.channels, t0 + begin, end - begin, v + begin * P, rows);
    });
    parallel_slots(
        s.out_panels(),
        [&](std::int64_t slot, std::int64_t p) {
          float* u = slots + slot * slot_size;
          float* taps = u + kPositions * s.channels * P;
          float* m = taps + 9 * s.channels * P;
          conv.pack_filter(filter, w, p, taps);
          wino.filter(s.channels, taps, u, s.channels * P);
          for (std::int64_t q = 0; q < kPositions; ++q) {
            panel.multiply_panels(count, P, s.channels, v + q * rows * s.in(), rows * P, u + q * s.channels * P, 0,
                                  m + q * rows * P, 0);
          }
          out.put(geo, m, p * P, std::min(P, s.outputs - p * P), t0, count, rows,
                  bias != nullptr ? bias + p * P : nullptr);
        },
        pieces.slots);
  }
}

void weight_narrow(const WinogradGeo& geo, const FilterMap& filter, const Sizes& s, const WinogradPieces& pieces,
                   const float* x, const float* dy, float* dw, float* workspace) {
  const WinogradKernels& wino = winograd_kernels();
  const PanelKernels<float>& panel = panel_kernels<float>();
  const ConvKernels<float>& conv = conv_kernels<float>();
  const std::int64_t block = narrow_block(s, pieces), rows = odd(block),
                     slot_size = kPositions * rows * (s.in() + s.out());
  const std::int64_t parts = weight_parts(s, pieces), position = s.channels * s.out(),
                     part_size = kPositions * position;
  const std::int64_t blocks = ceil_div(s.tiles, block), step = ceil_div(blocks, parts);
  float* slots = workspace + parts * part_size;
  parallel_slots(parts, [&](std::int64_t slot, std::int64_t part) {
    float* sums = workspace + part * part_size;
    float* v = slots + slot * slot_size;
    float* z = v + kPositions * rows * s.in();
    const std::int64_t begin = std::min(blocks, part * step), end = std::min(blocks, begin + step);
    if (begin == end) std::fill(sums, sums + part_size, 0.0f);
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t t0 = b * block, count = std::min(block, s.tiles - t0);
      wino.input(geo, x, s.channels, t0, count, v, rows);
      wino.gradient(geo, dy, s.outputs, t0, count, z, rows);
      for (std::int64_t q = 0; q < kPositions; ++q) {
        panel.multiply_transposed(count, s.channels, s.out(), v + q * rows * s.in(), rows * P, z + q * rows * s.out(),
                                  rows * P, sums + q * position, s.channels * P, b > begin);
      }
    }
  });
  float* taps = slots;  // [panel][9][channels][P], the slots are free again
  parallel_for(s.out_panels(), [&](std::int64_t p) {
    float* out = taps + p * 9 * s.channels * P;
    float* u = workspace + p * s.channels * P;
    for (std::int64_t part = 1; part < parts; ++part) {
      for (std::int64_t q = 0; q < kPositions; ++q) {
        float* total = u + q * position;
        const float* more = total + part * part_size;
        for (std::int64_t i = 0; i < s.channels * P; ++i) total[i] += more[i];
      }
    }
    wino.filter_gradient(s.channels, u, position, out, false);
    conv.unpack_filter(filter, out, 1, 0, p, dw);
  });
}

void weight_wide(const WinogradGeo& geo, const FilterMap& filter, const Sizes& s, const WinogradPieces& pieces,
                 const float* x, const float* dy, float* dw, float* workspace) {
  const WinogradKernels& wino = winograd_kernels();
  const PanelKernels<float>& panel = panel_kernels<float>();
  const ConvKernels<float>& conv = conv_kernels<float>();
  const std::int64_t block = wide_block(s.tiles, s.in() + s.out(), kWideWeightBytes, pieces), rows = odd(block);
  float* v = workspace;
  float* z = v + kPositions * rows * s.in();
  float* taps = z + kPositions * rows * s.out();  // [panel][9][channels][P]
  float* slots = taps + 9 * s.channels * s.out();
  const std::int64_t slot_size = kPositions * s.channels * P;
  for (std::int64_t t0 = 0; t0 < s.tiles; t0 += block) {
    const std::int64_t count = std::min(block, s.tiles - t0);
    parallel_chunks(count, kTransformTiles, [&](std::int64_t begin, std::int64_t end) {
      wino.input(geo, x, s.channels, t0 + begin, end - begin, v + begin * P, rows);
      wino.gradient(geo, dy, s.outputs, t0 + begin, end - begin, z + begin * P, rows);
    });
    parallel_slots(
        s.out_panels(),
        [&](std::int64_t slot, std::int64_t p) {
          float* u = slots + slot * slot_size;
          for (std::int64_t q = 0; q < kPositions; ++q) {
            panel.multiply_transposed(count, s.channels, P, v + q * rows * s.in(), rows * P,
                                      z + (q * s.out_panels() + p) * rows * P, 0, u + q * s.channels * P, 0, false);
          }
          float* out = taps + p * 9 * s.channels * P;
          wino.filter_gradient(s.channels, u, s.channels * P, out, t0 > 0);
          if (t0 + count == s.tiles) conv.unpack_filter(filter, out, 1, 0, p, dw);
        },
        pieces.slots);
  }
}

}  // namespace

std::int64_t winograd_forward_elements(const WinogradGeo& geo, std::int64_t channels, std::int64_t outputs,
                                       const WinogradPieces& pieces) {
  const Sizes s = sizes_of(geo, channels, outputs);
  if (is_narrow(channels, outputs)) {
    const std::int64_t block = narrow_block(s, pieces), slots = std::min(pieces.slots, ceil_div(s.tiles, block));
    const std::int64_t scratch = slots * kPositions * odd(block) * (s.in() + s.out());
    return kPositions * s.out() * channels + std::max(scratch, 9 * channels * s.out());
  }
  const std::int64_t rows = odd(wide_block(s.tiles, s.in(), kWideForwardBytes, pieces));
  return kPositions * rows * s.in() +
         std::min(pieces.slots, s.out_panels()) * ((kPositions + 9) * channels * P + kPositions * rows * P);
}

void winograd_forward(const WinogradGeo& geo, const FilterMap& filter, const float* x, const float* w,
                      const float* bias, float* y, float* workspace, const WinogradPieces& pieces,
                      const TailTarget<float>* tail) {
  const Sizes s = sizes_of(geo, filter.cn, filter.n);
  const auto run = is_narrow(s.channels, s.outputs) ? forward_narrow : forward_wide;
  run(geo, filter, s, pieces, x, w, bias, {y, s.outputs, tail}, workspace);
}

std::vector<double> winograd_forward_tasks(const WinogradGeo& geo, std::int64_t channels, std::int64_t outputs,
                                           const WinogradPieces& pieces) {
  const Sizes s = sizes_of(geo, channels, outputs);
  const bool narrow = is_narrow(channels, outputs);
  const std::int64_t block = narrow ? narrow_block(s, pieces) : wide_block(s.tiles, s.in(), kWideForwardBytes, pieces);
  std::vector<double> tasks;
  for (std::int64_t t0 = 0; t0 < s.tiles; t0 += block) {
    const std::int64_t count = std::min(block, s.tiles - t0), parts = narrow ? 1 : s.out_panels();
    const std::int64_t outs = narrow ? s.out() : P;
    tasks.insert(tasks.end(), static_cast<std::size_t>(parts), static_cast<double>(count * 16 * 9 * channels * outs));
  }
  return tasks;
}

std::int64_t winograd_weight_elements(const WinogradGeo& geo, std::int64_t channels, std::int64_t outputs,
                                      const WinogradPieces& pieces) {
  const Sizes s = sizes_of(geo, channels, outputs);
  if (is_narrow(channels, outputs)) {
    const std::int64_t parts = weight_parts(s, pieces);
    const std::int64_t scratch = parts * kPositions * odd(narrow_block(s, pieces)) * (s.in() + s.out());
    return parts * kPositions * channels * s.out() + std::max(scratch, 9 * channels * s.out());
  }
  const std::int64_t rows = odd(wide_block(s.tiles, s.in() + s.out(), kWideWeightBytes, pieces));
  return kPositions * rows * (s.in() + s.out()) + 9 * channels * s.out() +
         std::min(pieces.slots, s.out_panels()) * kPositions * channels * P;
}

void winograd_backward_weight(const WinogradGeo& geo, const FilterMap& filter, const float* x, const float* dy,
                              float* dw, float* workspace, const WinogradPieces& pieces) {
  const Sizes s = sizes_of(geo, filter.cn, filter.n);
  const auto run = is_narrow(s.channels, s.outputs) ? weight_narrow : weight_wide;
  run(geo, filter, s, pieces, x, dy, dw, workspace);
}

}  // namespace limpid::cpu
