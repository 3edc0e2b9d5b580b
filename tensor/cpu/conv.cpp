#include <limpid/tensor/cpu/conv.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include <limpid/tensor/cpu/conv_kernels.h>
#include <limpid/tensor/cpu/math_kernels.h>
#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/cpu/thin_conv.h>
#include <limpid/tensor/cpu/winograd.h>

namespace limpid::cpu {
namespace {

std::atomic<ConvAlgorithm> algorithm_setting{ConvAlgorithm::automatic};

constexpr std::int64_t kLine = 64;
// Packed operands of a task: half of the L2 cache (1 MiB).
constexpr std::int64_t kPackBytes = 440 * 1024;

std::int64_t panel_of(std::size_t element_size) { return kLine / static_cast<std::int64_t>(element_size); }

bool is_depthwise(const ConvDesc& d) { return d.groups > 1 && d.groups == d.c && d.k == d.c; }

// ---- a product with a patch matrix: Y[pixels][n] = patches[pixels][depth] * F[depth][n]
struct Blocks {
  std::int64_t depth = 0;  // columns of patches packed at a time
  std::int64_t rows = 0;   // patches a task
  std::int64_t cols = 0;   // output channels a task
  std::int64_t row_blocks = 0, col_blocks = 0;
  std::int64_t tasks() const { return row_blocks * col_blocks; }
};

Blocks choose_blocks(std::int64_t pixels, std::int64_t depth, std::int64_t n, std::size_t element_size) {
  const std::int64_t P = panel_of(element_size), size = static_cast<std::int64_t>(element_size);
  Blocks b;
  b.depth = depth <= 48 * P ? depth : round_up(ceil_div(depth, ceil_div(depth, 32 * P)), P);
  b.rows = std::clamp<std::int64_t>(kPackBytes / (std::max<std::int64_t>(b.depth, 1) * size) / 6 * 6, 48, 192);
  b.row_blocks = std::max<std::int64_t>(1, ceil_div(pixels, b.rows));
  b.col_blocks = 1;
  b.cols = round_up(std::max<std::int64_t>(n, 1), P);
  while (b.row_blocks * b.col_blocks < 2 * kMaxSlots && b.cols >= 4 * P && pixels * depth * n > 100000) {
    b.col_blocks *= 2;
    b.cols = round_up(ceil_div(n, b.col_blocks), P);
  }
  b.col_blocks = ceil_div(std::max<std::int64_t>(n, 1), b.cols);
  if (b.row_blocks * b.col_blocks < 2 * kMaxSlots && pixels * depth * n > 100000) {
    b.row_blocks = std::min(ceil_div(pixels, 12), ceil_div(2 * kMaxSlots, b.col_blocks));
  }
  b.row_blocks = std::max<std::int64_t>(1, b.row_blocks);
  b.rows = std::max<std::int64_t>(1, ceil_div(pixels, b.row_blocks));
  b.row_blocks = std::max<std::int64_t>(1, ceil_div(pixels, b.rows));
  return b;
}

// The blocks of `n` output channels in pieces of a plan; 0: as large as it suits.
Blocks blocks_of(std::int64_t pixels, std::int64_t depth, std::int64_t n, std::size_t element_size,
                 const ConvPieces& pieces) {
  Blocks b = choose_blocks(pixels, depth, n, element_size);
  if (pieces.rows > 0 && pieces.rows < b.rows) {
    b.rows = pieces.rows;
    b.row_blocks = std::max<std::int64_t>(1, ceil_div(pixels, b.rows));
  }
  return b;
}

// Elements of scratch a slot: packed patches, and a tile of the result where the output pixels are not evenly spaced.
std::int64_t slot_elements(const Blocks& b, std::int64_t P, bool scattered) {
  return b.rows * round_up(b.depth, P) + (scattered ? b.rows * b.cols : 0);
}

// Where the rows of Y go: pixel (n, i, j) of the grid is pixel (i * step_h + off_h, j * step_w + off_w) of the image.
struct OutputMap {
  std::int64_t h = 0, w = 0, channels = 0, step_h = 1, step_w = 1, off_h = 0, off_w = 0;
  bool dense() const { return step_h == 1 && step_w == 1; }
};

template <class T>
void patch_product(const PatchMap& map, std::int64_t images, const T* x, const T* filter, std::int64_t n, const T* bias,
                   const OutputMap& out, T* y, T* scratch, const ConvPieces& pieces) {
  constexpr std::int64_t P = kPanel<T>;
  const PanelKernels<T>& panel = panel_kernels<T>();
  const ConvKernels<T>& conv = conv_kernels<T>();
  const std::int64_t pixels = images * map.gh * map.gw, depth = map.depth();
  if (pixels == 0) return;
  const Blocks blocks = blocks_of(pixels, depth, n, sizeof(T), pieces);
  const std::int64_t slot_size = slot_elements(blocks, P, !out.dense());
  parallel_slots(
      blocks.tasks(),
      [&](std::int64_t slot, std::int64_t task) {
        const std::int64_t p0 = task / blocks.col_blocks * blocks.rows, count = std::min(blocks.rows, pixels - p0);
        const std::int64_t n0 = task % blocks.col_blocks * blocks.cols, cols = std::min(blocks.cols, n - n0);
        T* packed = scratch + slot * slot_size;
        T* tile = packed + blocks.rows * round_up(blocks.depth, P);
        T* c = out.dense() ? y + p0 * out.channels + n0 : tile;
        const std::int64_t c_row = out.dense() ? out.channels : blocks.cols;
        Init init = bias != nullptr ? Init::bias : Init::zero;
        for (std::int64_t k0 = 0; k0 < depth; k0 += blocks.depth) {
          const std::int64_t kn = std::min(blocks.depth, depth - k0);
          conv.pack_patches(map, x, p0, count, k0, kn, packed);
          panel.multiply(count, cols, kn, packed, count * P, filter + n0 * depth + k0 * P, depth * P, c, c_row, init,
                         bias != nullptr ? bias + n0 : nullptr);
          init = Init::load;
        }
        if (out.dense()) return;
        for (std::int64_t p = p0; p < p0 + count; ++p) {
          const std::int64_t j = p % map.gw, i = p / map.gw % map.gh, image = p / (map.gw * map.gh);
          T* dst = y +
                   ((image * out.h + i * out.step_h + out.off_h) * out.w + j * out.step_w + out.off_w) * out.channels +
                   n0;
          const T* src = tile + (p - p0) * blocks.cols;
          if (depth == 0) {
            std::fill(dst, dst + cols, T(0));
          } else {
            std::copy(src, src + cols, dst);
          }
        }
      },
      pieces.slots);
}

// Panels of the output channels [n0, n0 + n); n0 is a multiple of P.
template <class T>
void pack_filters(const FilterMap& map, const T* w, std::int64_t n0, std::int64_t n, T* dst) {
  const ConvKernels<T>& conv = conv_kernels<T>();
  const std::int64_t first = n0 / kPanel<T>, count = panels<T>(n), size = map.depth() * kPanel<T>;
  if (count * size <= 16384) {
    for (std::int64_t p = 0; p < count; ++p) conv.pack_filter(map, w, first + p, dst + p * size);
  } else {
    parallel_for(count, [&](std::int64_t p) { conv.pack_filter(map, w, first + p, dst + p * size); });
  }
}

// A convolution as a product, some output channels at a time: their packed filters, then what the slots need.
template <class T>
void filter_product(const PatchMap& map, std::int64_t images, const T* x, const FilterMap& filter, const T* w,
                    const T* bias, const OutputMap& out, T* y, T* workspace, const ConvPieces& pieces) {
  const std::int64_t step = round_up(std::min(pieces.cols, filter.n), kPanel<T>);
  for (std::int64_t n0 = 0; n0 < filter.n; n0 += step) {
    const std::int64_t n = std::min(step, filter.n - n0);
    pack_filters(filter, w, n0, n, workspace);
    patch_product(map, images, x, workspace, n, bias != nullptr ? bias + n0 : nullptr, out, y + n0,
                  workspace + step * map.depth(), pieces);
  }
}

// Bytes beyond which filter_product() does not go; `n` output channels.
std::int64_t product_elements(std::int64_t pixels, std::int64_t depth, std::int64_t n, std::size_t element_size,
                              bool scattered, const ConvPieces& pieces) {
  const std::int64_t P = panel_of(element_size), step = round_up(std::min(pieces.cols, n), P);
  std::int64_t scratch = 0;  // of whole passes, and of the last one, which may be cut otherwise
  for (std::int64_t cols : {std::min(step, n), n % step}) {
    if (cols == 0) continue;
    const Blocks b = blocks_of(pixels, depth, cols, element_size, pieces);
    scratch = std::max(scratch, std::min(pieces.slots, b.tasks()) * slot_elements(b, P, scattered));
  }
  return step * depth + scratch;
}

PatchMap forward_map(const ConvDesc& d) {
  PatchMap m;
  m.gh = d.oh(), m.gw = d.ow(), m.ih = d.h, m.iw = d.w, m.ct = d.c, m.cn = d.c / d.groups;
  m.sy = d.stride_h, m.sx = d.stride_w, m.ty0 = -d.pad_h, m.tx0 = -d.pad_w, m.dty = d.dil_h, m.dtx = d.dil_w;
  m.nr = d.r, m.ns = d.s;
  return m;
}
FilterMap forward_filter(const ConvDesc& d) {
  const std::int64_t cg = d.c / d.groups;
  return {d.r, d.s, cg, d.k / d.groups, d.s, 1, d.r * d.s, cg * d.r * d.s};
}

// ---- input gradient: the input pixels of one stride phase (pixel % stride) see the same taps, so each phase is a
// convolution of dy with stride 1. The taps of one axis in a phase form a progression: last, last - step, ...
struct PhaseAxis {
  std::int64_t count = 0, last = 0, step = 1;  // taps, in the order of growing dy position
  std::int64_t first_pos = 0, pos_step = 1;    // position in dy of the first of them, for grid index 0
  std::int64_t grid = 0;                       // pixels of the phase
};
PhaseAxis phase_axis(std::int64_t phase, std::int64_t size, std::int64_t taps, std::int64_t stride, std::int64_t pad,
                     std::int64_t dil) {
  PhaseAxis a;
  a.grid = size > phase ? (size - phase + stride - 1) / stride : 0;
  a.step = stride / std::gcd(dil, stride);
  a.pos_step = dil * a.step / stride;
  for (std::int64_t t = 0; t < taps; ++t) {
    if ((phase + pad - t * dil) % stride == 0) {
      ++a.count;
      a.last = t;
    }
  }
  a.first_pos = a.count > 0 ? (phase + pad - a.last * dil) / stride : 0;
  return a;
}
struct Phase {
  PatchMap map;
  FilterMap filter;
  std::int64_t filter_offset = 0;  // in w, of the first tap
};
Phase make_phase(const ConvDesc& d, std::int64_t ph, std::int64_t pw) {
  const PhaseAxis y = phase_axis(ph, d.h, d.r, d.stride_h, d.pad_h, d.dil_h);
  const PhaseAxis x = phase_axis(pw, d.w, d.s, d.stride_w, d.pad_w, d.dil_w);
  const std::int64_t cg = d.c / d.groups, kg = d.k / d.groups;
  Phase p;
  p.map.gh = y.grid, p.map.gw = x.grid, p.map.ih = d.oh(), p.map.iw = d.ow(), p.map.ct = d.k, p.map.cn = kg;
  p.map.ty0 = y.first_pos, p.map.tx0 = x.first_pos, p.map.dty = y.pos_step, p.map.dtx = x.pos_step;
  p.map.nr = y.count, p.map.ns = x.count;
  p.filter = {y.count, x.count, kg, cg, -y.step * d.s, -x.step, cg * d.r * d.s, d.r * d.s};
  p.filter_offset = y.last * d.s + x.last;
  return p;
}

// ---- weight gradient: D[depth][k] = patches^T * dy, cut into pixel partitions (each with sums of its own, added in
// order) and ranges of depth.
constexpr std::int64_t kLeastRows = 12;  // patches of a task

struct WeightBlocks {
  std::int64_t parts = 1, part_pixels = 0;
  std::int64_t depth = 0, depth_blocks = 1;
  std::int64_t rows = 0;
  std::int64_t sums = 0, scratch = 0;  // elements: of one partition, of one slot
};
// pieces: 0 = as large as it suits. `n`: output channels of a pass; the cut of pixels and depth follows from `all` of
// them, so that it is the same for every pass.
WeightBlocks choose_weight_blocks(std::int64_t pixels, std::int64_t depth, std::int64_t n, std::size_t element_size,
                                  const ConvPieces& pieces, std::int64_t all) {
  const std::int64_t P = panel_of(element_size), size = static_cast<std::int64_t>(element_size);
  constexpr std::int64_t kSumBytes = 16 << 20;  // all partitions together, unless one alone is larger
  WeightBlocks b;
  const std::int64_t cols = round_up(n, P), all_cols = round_up(all, P);
  b.sums = depth * cols;
  b.depth_blocks = ceil_div(depth, 48 * P);
  b.parts = std::clamp<std::int64_t>(std::min(kSumBytes / (depth * all_cols * size), pixels / 256), 1, kMaxSlots);
  if (pieces.parts > 0) b.parts = std::min(b.parts, pieces.parts);
  while (b.parts * b.depth_blocks < kMaxSlots && depth / b.depth_blocks >= 8 * P) b.depth_blocks *= 2;
  b.depth = round_up(ceil_div(depth, b.depth_blocks), P);
  b.depth_blocks = ceil_div(depth, b.depth);
  b.part_pixels = std::max<std::int64_t>(1, ceil_div(pixels, b.parts));
  b.rows = std::clamp<std::int64_t>(640 * 1024 / size / (b.depth + all_cols) / 4 * 4, 48, 192);
  b.rows = std::min(b.rows, b.part_pixels);
  if (pieces.rows > 0) b.rows = std::min(b.rows, pieces.rows);
  b.scratch = b.rows * (b.depth + cols);
  return b;
}

// ---- depthwise
DepthwiseDesc depthwise_desc(const ConvDesc& d) {
  return {d.c, d.h, d.w, d.oh(), d.ow(), d.r, d.s, d.stride_h, d.stride_w, d.pad_h, d.pad_w, d.dil_h, d.dil_w};
}
// Image rows summed by one partition of the depthwise weight gradient.
std::int64_t depthwise_parts(const ConvDesc& d) { return std::clamp<std::int64_t>(d.n * d.oh() / 16, 1, kMaxSlots); }
std::int64_t depthwise_parts(const ConvDesc& d, const ConvPieces& pieces) {
  return std::min(depthwise_parts(d), pieces.parts);
}

template <class T>
void transpose_taps(const ConvDesc& d, const T* w, T* taps) {  // [c][r*s] -> [r*s][c]
  const std::int64_t rs = d.r * d.s;
  for (std::int64_t c = 0; c < d.c; ++c) {
    for (std::int64_t t = 0; t < rs; ++t) taps[t * d.c + c] = w[c * rs + t];
  }
}

std::int64_t depthwise_elements(ConvPass pass, const ConvDesc& d, const ConvPieces& pieces) {
  return d.r * d.s * d.c * (pass == ConvPass::backward_weight ? depthwise_parts(d, pieces) : 1);
}

// ---- Winograd
constexpr const char* kWinograd = "winograd";

bool use_winograd(const ConvDesc& d, std::size_t element_size) {
  if (algorithm_setting.load(std::memory_order_relaxed) == ConvAlgorithm::direct || element_size != sizeof(float))
    return false;
  if (d.r != 3 || d.s != 3 || d.groups != 1 || d.c < 16 || d.k < 16) return false;
  if (d.stride_h != 1 || d.stride_w != 1 || d.dil_h != 1 || d.dil_w != 1 || d.pad_h > 2 || d.pad_w > 2) return false;
  // Tiles that stick out of a small image waste what the algorithm saves.
  const auto fits = [](std::int64_t n, std::int64_t h, std::int64_t w) {
    return n > 0 && h > 0 && w > 0 && round_up(h, 4) * round_up(w, 4) <= 2 * h * w;
  };
  return fits(d.n, d.oh(), d.ow()) && fits(d.n, d.h, d.w);
}
bool is_winograd(const ConvPlan& plan) { return std::strcmp(plan.algorithm, kWinograd) == 0; }

// ---- few input channels (thin_conv.h): the gradient of the input is seldom asked for, and goes the direct way
constexpr const char* kThin = "thin";
bool use_thin(ConvPass pass, const ConvDesc& d) { return pass != ConvPass::backward_input && is_thin(d); }
bool is_thin_plan(const ConvPlan& plan) { return std::strcmp(plan.algorithm, kThin) == 0; }

std::int64_t thin_elements(ConvPass pass, const ConvDesc& d, std::int64_t P, const ConvPieces& pieces) {
  return pass == ConvPass::forward ? thin_forward_elements(d, nullptr, P, pieces.slots)
                                   : thin_weight_elements(d, P, pieces.parts);
}

WinogradGeo winograd_geo(const ConvDesc& d) { return {d.n, d.h, d.w, d.oh(), d.ow(), d.pad_h, d.pad_w}; }
// The input gradient is the convolution of dy, padded to full size, with the filter turned around.
WinogradGeo winograd_input_geo(const ConvDesc& d) { return {d.n, d.oh(), d.ow(), d.h, d.w, 2 - d.pad_h, 2 - d.pad_w}; }

WinogradPieces winograd_pieces(const ConvPieces& p) { return {static_cast<int>(p.halvings), p.slots}; }

std::int64_t winograd_elements(ConvPass pass, const ConvDesc& d, const ConvPieces& pieces) {
  const WinogradPieces p = winograd_pieces(pieces);
  if (pass == ConvPass::forward) return winograd_forward_elements(winograd_geo(d), d.c, d.k, p);
  if (pass == ConvPass::backward_input) return winograd_forward_elements(winograd_input_geo(d), d.k, d.c, p);
  return winograd_weight_elements(winograd_geo(d), d.c, d.k, p);
}

std::int64_t direct_elements(ConvPass pass, const ConvDesc& d, std::size_t element_size, const ConvPieces& pieces) {
  const std::int64_t kg = d.k / d.groups, cg = d.c / d.groups;
  if (kg == 0 || cg == 0) return 0;
  if (pass == ConvPass::forward) {
    return product_elements(d.n * d.oh() * d.ow(), d.r * d.s * cg, kg, element_size, false, pieces);
  }
  if (pass == ConvPass::backward_input) {
    const bool scattered = d.stride_h > 1 || d.stride_w > 1;
    std::int64_t largest = 0;
    for (std::int64_t ph = 0; ph < d.stride_h; ++ph) {
      for (std::int64_t pw = 0; pw < d.stride_w; ++pw) {
        const Phase p = make_phase(d, ph, pw);
        largest = std::max(
            largest, product_elements(d.n * p.map.gh * p.map.gw, p.map.depth(), cg, element_size, scattered, pieces));
      }
    }
    return largest;
  }
  const WeightBlocks b =
      choose_weight_blocks(d.n * d.oh() * d.ow(), d.r * d.s * cg, std::min(pieces.cols, kg), element_size, pieces, kg);
  return b.parts * b.sums + std::min(pieces.slots, b.parts * b.depth_blocks) * b.scratch;
}

// Tries ever smaller pieces until they fit; false when the smallest do not. `elements` counts, `shrink` makes the next.
template <class Elements, class Shrink>
bool fit(ConvPlan& plan, std::size_t element_size, std::size_t cap, const Elements& elements, const Shrink& shrink) {
  for (;;) {
    plan.workspace_bytes =
        static_cast<std::size_t>(round_up(elements(plan.pieces) * static_cast<std::int64_t>(element_size), kLine));
    if (plan.workspace_bytes <= cap) return true;
    if (!shrink(plan.pieces)) return false;
  }
}
bool halve(std::int64_t& value, std::int64_t least) {
  if (value <= least) return false;
  value = std::max(least, ceil_div(value, 2));
  return true;
}

}  // namespace

void set_conv_algorithm(ConvAlgorithm algorithm) { algorithm_setting.store(algorithm, std::memory_order_relaxed); }
ConvAlgorithm conv_algorithm() { return algorithm_setting.load(std::memory_order_relaxed); }

ConvPlan plan_conv2d(ConvPass pass, const ConvDesc& d, std::size_t element_size, std::size_t cap) {
  const std::int64_t P = panel_of(element_size);
  ConvPlan plan;
  if (is_depthwise(d)) {
    plan.algorithm = "depthwise";
    plan.pieces = {.parts = kMaxSlots};
    fit(
        plan, element_size, cap, [&](const ConvPieces& p) { return depthwise_elements(pass, d, p); },
        [&](ConvPieces& p) { return pass == ConvPass::backward_weight && halve(p.parts, 1); });
    return plan;
  }
  if (use_winograd(d, element_size)) {
    plan.algorithm = kWinograd;
    plan.pieces = {.slots = kMaxSlots};
    const bool fits = fit(
        plan, element_size, cap, [&](const ConvPieces& p) { return winograd_elements(pass, d, p); },
        [&](ConvPieces& p) {
          if (p.halvings < WinogradPieces::kMaxHalvings) return ++p.halvings > 0;
          return halve(p.slots, 1);
        });
    if (fits) return plan;
  }
  if (use_thin(pass, d)) {
    plan.algorithm = kThin;
    plan.pieces = {.slots = kMaxSlots, .parts = kMaxSlots};
    const bool fits = fit(
        plan, element_size, cap, [&](const ConvPieces& p) { return thin_elements(pass, d, P, p); },
        [&](ConvPieces& p) { return pass == ConvPass::forward && halve(p.slots, 1); });
    if (fits) return plan;
  }
  // Smaller tasks first, then fewer of them at a time, then fewer output channels; fewer partial sums come last,
  // because they alone change the numbers.
  plan.algorithm = "direct";
  const std::int64_t cols = pass == ConvPass::backward_input ? d.c : d.k;
  plan.pieces = {.slots = kMaxSlots, .rows = 192, .cols = round_up(cols / d.groups, P), .parts = kMaxSlots};
  fit(
      plan, element_size, cap, [&](const ConvPieces& p) { return direct_elements(pass, d, element_size, p); },
      [&](ConvPieces& p) {
        if (halve(p.rows, kLeastRows) || halve(p.slots, 1)) return true;
        if (p.cols > P) {
          p.cols = round_up(ceil_div(p.cols, 2), P);
          return true;
        }
        return pass == ConvPass::backward_weight && halve(p.parts, 1);
      });
  return plan;
}

TaskList conv2d_forward_tasks(const ConvDesc& d, const ConvPlan& plan, std::size_t element_size) {
  TaskList out;
  const std::int64_t kg = d.k / d.groups, pixels = d.n * d.oh() * d.ow(), depth = d.r * d.s * (d.c / d.groups);
  out.useful = static_cast<double>(pixels * depth * d.k);
  if (is_depthwise(d)) {
    out.tasks.assign(static_cast<std::size_t>(d.n * d.oh()), static_cast<double>(d.ow() * depth * d.k));
  } else if (is_winograd(plan)) {
    out.tasks = winograd_forward_tasks(winograd_geo(d), d.c, d.k, winograd_pieces(plan.pieces));
  } else if (is_thin_plan(plan)) {
    out.tasks = thin_forward_tasks(d, panel_of(element_size));
  } else {
    const std::int64_t P = panel_of(element_size), step = round_up(std::min(plan.pieces.cols, kg), P);
    for (std::int64_t pass = 0; pass < d.groups * ceil_div(kg, step); ++pass) {
      const std::int64_t n = std::min(step, kg - pass % ceil_div(kg, step) * step);
      const Blocks b = blocks_of(pixels, depth, n, element_size, plan.pieces);
      for (std::int64_t task = 0; task < b.tasks(); ++task) {
        const std::int64_t rows = std::min(b.rows, pixels - task / b.col_blocks * b.rows);
        const std::int64_t cols = std::min(b.cols, n - task % b.col_blocks * b.cols);
        out.tasks.push_back(static_cast<double>(rows * round_up(cols, P) * depth));
      }
    }
  }
  return out;
}

template <class T>
void conv2d_forward(const ConvDesc& d, const ConvPlan& plan, const T* x, const T* w, const T* bias, T* y,
                    void* workspace) {
  T* scratch = static_cast<T*>(workspace);
  if (is_depthwise(d)) {
    const DepthwiseDesc dd = depthwise_desc(d);
    const ConvKernels<T>& conv = conv_kernels<T>();
    transpose_taps(d, w, scratch);
    parallel_for(d.n * dd.oh, [&](std::int64_t row) {
      conv.depthwise_forward_row(dd, x + row / dd.oh * d.h * d.w * d.c, scratch, bias, row % dd.oh,
                                 y + row * dd.ow * d.c);
    });
    return;
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    if (is_winograd(plan))
      return winograd_forward(winograd_geo(d), forward_filter(d), x, w, bias, y, scratch, winograd_pieces(plan.pieces));
  }
  if (is_thin_plan(plan)) return thin_forward<T>(d, plan.pieces.slots, x, w, bias, y, nullptr, scratch);
  const PatchMap map = forward_map(d);
  const FilterMap filter = forward_filter(d);
  const std::int64_t kg = d.k / d.groups, cg = d.c / d.groups;
  OutputMap out;
  out.h = map.gh, out.w = map.gw, out.channels = d.k;
  for (std::int64_t g = 0; g < d.groups; ++g) {
    filter_product(map, d.n, x + g * cg, filter, w + g * kg * map.depth(), bias != nullptr ? bias + g * kg : nullptr,
                   out, y + g * kg, scratch, plan.pieces);
  }
}

void conv2d_winograd_tail(const ConvDesc& d, const ConvPlan& plan, const float* x, const float* w, const float* bias,
                          const TailTarget<float>& tail, void* workspace) {
  winograd_forward(winograd_geo(d), forward_filter(d), x, w, bias, nullptr, static_cast<float*>(workspace),
                   winograd_pieces(plan.pieces), &tail);
}

template <class T>
void conv2d_backward_input(const ConvDesc& d, const ConvPlan& plan, const T* dy, const T* w, T* dx, void* workspace) {
  T* scratch = static_cast<T*>(workspace);
  if (is_depthwise(d)) {
    const DepthwiseDesc dd = depthwise_desc(d);
    const ConvKernels<T>& conv = conv_kernels<T>();
    transpose_taps(d, w, scratch);
    parallel_for(d.n * d.h, [&](std::int64_t row) {
      conv.depthwise_input_row(dd, dy + row / d.h * dd.oh * dd.ow * d.c, scratch, row % d.h, dx + row * d.w * d.c);
    });
    return;
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    if (is_winograd(plan)) {
      const Phase p = make_phase(d, 0, 0);
      return winograd_forward(winograd_input_geo(d), p.filter, dy, w + p.filter_offset, nullptr, dx, scratch,
                              winograd_pieces(plan.pieces));
    }
  }
  const std::int64_t kg = d.k / d.groups, cg = d.c / d.groups;
  OutputMap out;
  out.h = d.h, out.w = d.w, out.channels = d.c, out.step_h = d.stride_h, out.step_w = d.stride_w;
  for (std::int64_t g = 0; g < d.groups; ++g) {
    for (out.off_h = 0; out.off_h < d.stride_h; ++out.off_h) {
      for (out.off_w = 0; out.off_w < d.stride_w; ++out.off_w) {
        const Phase p = make_phase(d, out.off_h, out.off_w);
        if (p.map.gh == 0 || p.map.gw == 0) continue;
        filter_product<T>(p.map, d.n, dy + g * kg, p.filter, w + g * kg * cg * d.r * d.s + p.filter_offset, nullptr,
                          out, dx + g * cg, scratch, plan.pieces);
      }
    }
  }
}

template <class T>
void conv2d_backward_weight(const ConvDesc& d, const ConvPlan& plan, const T* x, const T* dy, T* dw, void* workspace) {
  constexpr std::int64_t P = kPanel<T>;
  T* scratch = static_cast<T*>(workspace);
  const ConvKernels<T>& conv = conv_kernels<T>();
  if (is_depthwise(d)) {
    const DepthwiseDesc dd = depthwise_desc(d);
    const std::int64_t parts = depthwise_parts(d, plan.pieces), rows = d.n * dd.oh, step = ceil_div(rows, parts),
                       rs = d.r * d.s;
    parallel_for(parts, [&](std::int64_t q) {
      T* taps = scratch + q * rs * d.c;
      std::fill(taps, taps + rs * d.c, T(0));
      for (std::int64_t row = q * step; row < std::min(rows, (q + 1) * step); ++row) {
        conv.depthwise_weight_row(dd, x + row / dd.oh * d.h * d.w * d.c, dy + row * dd.ow * d.c, row % dd.oh, taps);
      }
    });
    for (std::int64_t c = 0; c < d.c; ++c) {
      for (std::int64_t t = 0; t < rs; ++t) {
        T sum = T(0);
        for (std::int64_t q = 0; q < parts; ++q) sum += scratch[(q * rs + t) * d.c + c];
        dw[c * rs + t] = sum;
      }
    }
    return;
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    if (is_winograd(plan)) {
      return winograd_backward_weight(winograd_geo(d), forward_filter(d), x, dy, dw, scratch,
                                      winograd_pieces(plan.pieces));
    }
  }
  if (is_thin_plan(plan)) {
    const TailGradient<T> dz{.plain = true, .oh = d.oh(), .ow = d.ow(), .channels = d.k, .dy = dy};
    return thin_backward_weight<T>(d, plan.pieces.parts, x, dz, dw, nullptr, scratch);
  }
  const PanelKernels<T>& panel = panel_kernels<T>();
  const PatchMap map = forward_map(d);
  const FilterMap filter = forward_filter(d);
  const std::int64_t kg = d.k / d.groups, cg = d.c / d.groups, depth = map.depth(), pixels = d.n * map.gh * map.gw;
  const std::int64_t step = std::min(plan.pieces.cols, kg);  // output channels of a pass
  const WeightBlocks b = choose_weight_blocks(pixels, depth, step, sizeof(T), plan.pieces, kg);
  T* slots = scratch + b.parts * b.sums;
  for (std::int64_t pass = 0; pass < d.groups * ceil_div(kg, step); ++pass) {
    const std::int64_t g = pass / ceil_div(kg, step), n0 = pass % ceil_div(kg, step) * step;
    const std::int64_t n = std::min(step, kg - n0);
    const auto task = [&](std::int64_t slot, std::int64_t at) {
      const std::int64_t q = at / b.depth_blocks, k0 = at % b.depth_blocks * b.depth;
      const std::int64_t kn = std::min(b.depth, depth - k0), end = std::min(pixels, (q + 1) * b.part_pixels);
      T* a = slots + slot * b.scratch;
      T* z = a + b.rows * b.depth;
      T* sums = scratch + q * b.sums + k0 * P;
      bool first = true;
      for (std::int64_t p = q * b.part_pixels; p < end || first; p += b.rows) {
        const std::int64_t count = std::clamp<std::int64_t>(end - p, 0, b.rows);
        if (count > 0) {
          conv.pack_patches(map, x + g * cg, p, count, k0, kn, a);
          panel.pack(count, n, dy + p * d.k + g * kg + n0, d.k, 1, z, count * P);
        }
        panel.multiply_transposed(count, kn, n, a, count * P, z, count * P, sums, depth * P, !first);
        first = false;
      }
    };
    parallel_slots(b.parts * b.depth_blocks, task, plan.pieces.slots);
    T* out = dw + g * kg * depth;
    parallel_for(panels<T>(n), [&](std::int64_t p) {
      conv.unpack_filter(filter, scratch + p * depth * P, b.parts, b.sums, n0 / P + p, out);
    });
  }
}

template <class T>
void conv2d_backward_bias(const ConvDesc& d, const T* dy, T* db, void* workspace) {
  column_sum(d.n * d.oh() * d.ow(), d.k, dy, db, workspace);
}

#define LIMPID_INSTANTIATE(T)                                                                                 \
  template void conv2d_forward<T>(const ConvDesc&, const ConvPlan&, const T*, const T*, const T*, T*, void*); \
  template void conv2d_backward_input<T>(const ConvDesc&, const ConvPlan&, const T*, const T*, T*, void*);    \
  template void conv2d_backward_weight<T>(const ConvDesc&, const ConvPlan&, const T*, const T*, T*, void*);   \
  template void conv2d_backward_bias<T>(const ConvDesc&, const T*, T*, void*);
LIMPID_INSTANTIATE(float)
LIMPID_INSTANTIATE(double)
#undef LIMPID_INSTANTIATE

}  // namespace limpid::cpu
