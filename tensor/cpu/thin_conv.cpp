#include <limpid/tensor/cpu/thin_conv.h>

#include <algorithm>

#include <limpid/tensor/cpu/conv_kernels.h>
#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>

namespace limpid::cpu {
namespace {

constexpr std::int64_t kStrip = 48;        // pixels of a row at a time: their results, or gradients, stay in the L1 cache
constexpr std::int64_t kTaskPixels = 1024;
constexpr std::int64_t kWeightRows = 8;    // rows of the result whose input rows are padded at a time
constexpr std::int64_t kMostRow = 1 << 16;  // elements of an input row: offsets stay small

// The input rows behind some rows of the result, with zeros around them.
struct Rows {
  explicit Rows(const ConvDesc& d)
      : desc(d), padded(d.pad_h > 0 || d.pad_w > 0), row((padded ? d.w + 2 * d.pad_w : d.w) * d.c) {
    std::int32_t* out = offsets;
    for (std::int64_t i = 0; i < d.r; ++i) {
      for (std::int64_t j = 0; j < d.s; ++j) {
        for (std::int64_t c = 0; c < d.c; ++c) *out++ = static_cast<std::int32_t>(i * d.dil_h * row + j * d.dil_w * d.c + c);
      }
    }
  }
  std::int64_t depth() const { return desc.r * desc.s * desc.c; }
  std::int64_t step() const { return desc.stride_w * desc.c; }  // from pixel to pixel of the result
  std::int64_t elements(std::int64_t rows) const { return padded ? input_rows(rows) * row : 0; }

  // The first patch of row y0 of the result; that of the next row is next() elements behind it.
  template <class T>
  const T* find(const T* image, std::int64_t y0, std::int64_t rows, T* buffer) const {
    if (!padded) return image + y0 * next();
    const std::int64_t left = desc.pad_w * desc.c, width = desc.w * desc.c, first = y0 * desc.stride_h - desc.pad_h;
    T* to = buffer;
    for (std::int64_t y = first; y < first + input_rows(rows); ++y, to += row) {
      if (y < 0 || y >= desc.h) {
        std::fill(to, to + row, T(0));
        continue;
      }
      std::fill(to, to + left, T(0));
      std::copy(image + y * width, image + (y + 1) * width, to + left);
      std::fill(to + left + width, to + row, T(0));
    }
    return buffer;
  }
  std::int64_t next() const { return desc.stride_h * row; }

  const ConvDesc& desc;
  bool padded;
  std::int64_t row;  // elements
  std::int32_t offsets[kThinDepth];

 private:
  std::int64_t input_rows(std::int64_t rows) const { return (rows - 1) * desc.stride_h + (desc.r - 1) * desc.dil_h + 1; }
};

// Rows of the result a task: even, so that pooling windows stay whole; never of two images.
std::int64_t rows_of_task(const ConvDesc& d) {
  std::int64_t rows = std::clamp<std::int64_t>(kTaskPixels / d.ow(), 2, std::max<std::int64_t>(2, d.oh()));
  while (rows > 2 && d.n * ceil_div(d.oh(), rows) < 2 * kMaxSlots) rows = ceil_div(rows, 2);
  return round_up(rows, 2);
}

FilterMap filter_map(const ConvDesc& d) { return {d.r, d.s, d.c, d.k, d.s, 1, d.r * d.s, d.c * d.r * d.s}; }

std::int64_t tile_elements(const ConvDesc& d) { return 2 * kStrip * d.k; }

std::int64_t parts_of(const ConvDesc& d, std::int64_t most) {
  return std::clamp<std::int64_t>(std::min(d.n * d.oh(), d.n * d.oh() * d.ow() / 512), 1, most);
}

}  // namespace

bool is_thin(const ConvDesc& d) {
  const std::int64_t depth = d.r * d.s * d.c;
  return d.groups == 1 && d.c >= 1 && d.c <= kThinChannels && d.k >= 1 && depth <= kThinDepth && d.pad_h <= 16 &&
         d.pad_w <= 16 && d.dil_h <= 16 && d.dil_w <= 16 && d.ow() >= 1 && (d.w + 2 * d.pad_w) * d.c <= kMostRow;
}

std::int64_t thin_forward_elements(const ConvDesc& d, const ConvTail* tail, std::int64_t panel, std::int64_t slots) {
  const Rows rows(d);
  const std::int64_t count = rows_of_task(d), tasks = d.n * ceil_div(d.oh(), count);
  const std::int64_t lines = tail != nullptr && *tail == ConvTail::relu_mean ? d.n * d.oh() * d.k : 0;
  return round_up(d.k, panel) * rows.depth() + lines +
         std::min(slots, tasks) * (rows.elements(count) + (tail != nullptr ? tile_elements(d) : 0));
}

std::vector<double> thin_forward_tasks(const ConvDesc& d, std::int64_t panel) {
  const std::int64_t rows = rows_of_task(d), depth = d.r * d.s * d.c;
  std::vector<double> tasks;
  for (std::int64_t image = 0; image < d.n; ++image) {
    for (std::int64_t y = 0; y < d.oh(); y += rows) {
      tasks.push_back(static_cast<double>(std::min(rows, d.oh() - y) * d.ow() * depth * round_up(d.k, panel)));
    }
  }
  return tasks;
}

template <class T>
void thin_forward(const ConvDesc& d, std::int64_t slots, const T* x, const T* w, const T* bias, T* y,
                  const TailTarget<T>* tail, T* scratch) {
  constexpr std::int64_t P = kPanel<T>;
  const PanelKernels<T>& panel = panel_kernels<T>();
  const Rows in(d);
  const std::int64_t depth = in.depth(), oh = d.oh(), ow = d.ow(), rows = rows_of_task(d), blocks = ceil_div(oh, rows);
  const bool mean = tail != nullptr && tail->tail == ConvTail::relu_mean;
  T* filters = scratch;
  for (std::int64_t p = 0; p < panels<T>(d.k); ++p)
    conv_kernels<T>().pack_filter(filter_map(d), w, p, filters + p * depth * P);
  T* lines = filters + round_up(d.k, P) * depth;  // the mean's sums of rows
  T* memory = lines + (mean ? d.n * oh * d.k : 0);
  const std::int64_t slot_size = in.elements(rows) + (tail != nullptr ? tile_elements(d) : 0);
  const auto multiply = [&](std::int64_t pixels, const T* at, T* c) {
    panel.multiply_gathered(pixels, d.k, depth, at, in.offsets, in.step(), filters, depth * P, c, d.k, bias);
  };
  parallel_slots(
      d.n * blocks,
      [&](std::int64_t slot, std::int64_t task) {
        const std::int64_t image = task / blocks, y0 = task % blocks * rows, count = std::min(rows, oh - y0);
        T* tile = memory + slot * slot_size;
        const T* first = in.find(x + image * d.h * d.w * d.c, y0, count, tile + (tail != nullptr ? tile_elements(d) : 0));
        if (tail == nullptr) {
          for (std::int64_t i = 0; i < count; ++i) multiply(ow, first + i * in.next(), y + (image * oh + y0 + i) * ow * d.k);
          return;
        }
        const std::int64_t unit = tail->tail == ConvTail::relu_max_pool ? 2 : 1;
        for (std::int64_t i = 0; i + unit <= count; i += unit) {
          T* line = lines + (image * oh + y0 + i) * d.k;
          if (mean) std::fill(line, line + d.k, T(0));
          for (std::int64_t x0 = 0; x0 < ow; x0 += kStrip) {
            const std::int64_t cols = std::min(kStrip, ow - x0);
            for (std::int64_t j = 0; j < unit; ++j)
              multiply(cols, first + (i + j) * in.next() + x0 * in.step(), tile + j * kStrip * d.k);
            if (mean) {
              tail->add_line(image, y0 + i, x0, cols, 0, d.k, tile, d.k, line);
            } else {
              tail->put(image, y0 + i, x0, unit, cols, 0, d.k, tile, d.k, kStrip * d.k);
            }
          }
        }
      },
      slots);
  if (mean) parallel_for(d.n, [&](std::int64_t image) { tail->finish_mean(image, lines + image * oh * d.k); });
}

std::int64_t thin_weight_elements(const ConvDesc& d, std::int64_t panel, std::int64_t parts) {
  const Rows rows(d);
  const std::int64_t cols = round_up(d.k, panel);
  return parts_of(d, parts) * ((rows.depth() + 1) * cols + rows.elements(kWeightRows) + kStrip * cols);
}

template <class T>
void thin_backward_weight(const ConvDesc& d, std::int64_t most_parts, const T* x, const TailGradient<T>& dz, T* dw, T* db,
                          T* scratch) {
  constexpr std::int64_t P = kPanel<T>;
  const PanelKernels<T>& panel = panel_kernels<T>();
  const TailKernels<T>& kernels = tail_kernels<T>();
  const Rows in(d);
  const std::int64_t depth = in.depth(), oh = d.oh(), ow = d.ow(), cols = round_up(d.k, P), total = d.n * oh;
  const std::int64_t parts = parts_of(d, most_parts), share = ceil_div(total, parts);
  // Sums of a part: [panel][depth + 1][P], the last row for the bias.
  const std::int64_t panel_size = (depth + 1) * P, part_size = (depth + 1) * cols;
  const std::int64_t own = in.elements(kWeightRows) + kStrip * cols;
  parallel_for(parts, [&](std::int64_t part) {
    T* sums = scratch + part * part_size;
    T* z = scratch + parts * part_size + part * own;  // [panel][kStrip][P]; columns beyond k stay 0
    T* buffer = z + kStrip * cols;
    std::fill(sums, sums + part_size, T(0));
    std::fill(z, z + kStrip * cols, T(0));
    const std::int64_t end = std::min(total, (part + 1) * share);
    for (std::int64_t row = part * share; row < end;) {
      const std::int64_t image = row / oh, y0 = row % oh, count = std::min({kWeightRows, oh - y0, end - row});
      const T* first = in.find(x + image * d.h * d.w * d.c, y0, count, buffer);
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t x0 = 0; x0 < ow; x0 += kStrip) {
          const std::int64_t pixels = std::min(kStrip, ow - x0);
          for (std::int64_t n0 = 0; n0 < d.k; n0 += P)
            dz.get(image, y0 + i, x0, pixels, n0, std::min(P, d.k - n0), z + n0 * kStrip, P);
          panel.add_gathered_transposed(pixels, depth, d.k, first + i * in.next() + x0 * in.step(), in.offsets, in.step(),
                                        z, kStrip * P, sums, panel_size);
          if (db == nullptr) continue;
          for (std::int64_t p = 0; p < cols / P; ++p)
            kernels.add_pixels(pixels, P, z + p * kStrip * P, P, sums + p * panel_size + depth * P);
        }
      }
      row += count;
    }
  });
  for (std::int64_t p = 0; p < cols / P; ++p) {
    T* sums = scratch + p * panel_size;
    conv_kernels<T>().unpack_filter(filter_map(d), sums, parts, part_size, p, dw);
    for (std::int64_t c = 0; db != nullptr && c < std::min(P, d.k - p * P); ++c) {
      T sum = T(0);
      for (std::int64_t part = 0; part < parts; ++part) sum += sums[part * part_size + depth * P + c];
      db[p * P + c] = sum;
    }
  }
}

#define LIMPID_INSTANTIATE(T)                                                                                     \
  template void thin_forward<T>(const ConvDesc&, std::int64_t, const T*, const T*, const T*, T*,                    \
                                const TailTarget<T>*, T*);                                                          \
  template void thin_backward_weight<T>(const ConvDesc&, std::int64_t, const T*, const TailGradient<T>&, T*, T*, T*);
LIMPID_INSTANTIATE(float)
LIMPID_INSTANTIATE(double)
#undef LIMPID_INSTANTIATE

}  // namespace limpid::cpu
