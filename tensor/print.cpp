// Tensors as text, in NumPy's style: nested brackets, one width for all numbers, an ellipsis beyond 1000 elements.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include <limpid/tensor/raw.h>

namespace limpid {
namespace {

constexpr std::int64_t kSummaryAbove = 1000;  // elements; more are abbreviated
constexpr std::int64_t kEdgeItems = 3;        // shown at each end of an abbreviated dim
constexpr std::size_t kLineWidth = 80;

// How all floating elements are written: decided once, from the finite ones.
struct FloatStyle {
  bool scientific = false;
  int digits = 0;  // after the point
};

std::string format_float(double value, const FloatStyle& style) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  if (style.scientific) {
    std::snprintf(text, sizeof text, style.digits == 0 ? "%#.*e" : "%.*e", style.digits, value);
  } else {
    std::snprintf(text, sizeof text, style.digits == 0 ? "%#.*f" : "%.*f", style.digits, value);
  }
  return text;  // "1." for whole floats, as NumPy writes them
}

// The fewest digits, up to `precision`, that show every value as `precision` digits would.
FloatStyle choose_style(const std::vector<double>& values, int precision) {
  FloatStyle style;
  double largest = 0, smallest = HUGE_VAL;
  for (double v : values) {
    if (!std::isfinite(v) || v == 0) continue;
    largest = std::max(largest, std::fabs(v));
    smallest = std::min(smallest, std::fabs(v));
  }
  if (largest > 0) style.scientific = largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e3 * 1e5;
  for (double v : values) {
    if (!std::isfinite(v)) continue;
    char text[400];
    std::snprintf(text, sizeof text, style.scientific ? "%.*e" : "%.*f", precision, v);
    std::string digits = text;
    std::size_t point = digits.find('.');
    if (point == std::string::npos) continue;
    std::size_t end = style.scientific ? digits.find('e') : digits.size();
    while (end > point + 1 && digits[end - 1] == '0') end--;
    style.digits = std::max(style.digits, static_cast<int>(end - point - 1));
  }
  return style;
}

// The positions of a dim that are printed; -1 stands for the ellipsis.
std::vector<std::int64_t> shown(std::int64_t extent, bool summarize) {
  std::vector<std::int64_t> out;
  bool cut = summarize && extent > 2 * kEdgeItems;
  for (std::int64_t i = 0; i < (cut ? kEdgeItems : extent); i++) out.push_back(i);
  if (!cut) return out;
  out.push_back(-1);
  for (std::int64_t i = extent - kEdgeItems; i < extent; i++) out.push_back(i);
  return out;
}

class Printer {
 public:
  Printer(const Tensor& x, int precision)
      : x_(x), summarize_(x.numel() > kSummaryAbove) {
    visit_shown(0, 0, [&](std::int64_t offset) { offsets_.push_back(offset); });
    visit_dtype(x.dtype(), [&]<class T>() {
      const T* data = x.data<T>();
      if constexpr (std::is_same_v<T, bool>) {
        for (std::int64_t at : offsets_) cells_.push_back(data[at] ? "true" : "false");
      } else if constexpr (std::is_integral_v<T>) {
        for (std::int64_t at : offsets_) cells_.push_back(std::to_string(data[at]));
      } else {
        std::vector<double> values;
        for (std::int64_t at : offsets_) values.push_back(static_cast<double>(data[at]));
        FloatStyle style = choose_style(values, precision);
        for (double v : values) cells_.push_back(format_float(v, style));
      }
    });
    for (const std::string& cell : cells_) width_ = std::max(width_, cell.size());
  }

  std::string text() {
    if (x_.dim() == 0) return cells_[0];
    print(0);
    return std::move(out_);
  }

 private:
  template <class F>
  void visit_shown(int d, std::int64_t offset, F&& f) {
    if (d == x_.dim()) return f(offset);
    for (std::int64_t i : shown(x_.shape()[d], summarize_)) {
      if (i >= 0) visit_shown(d + 1, offset + i * x_.strides()[d], f);
    }
  }

  void print(int d) {
    out_ += '[';
    bool last_dim = d + 1 == x_.dim();
    std::string indent(static_cast<std::size_t>(d) + 1, ' ');
    std::size_t line = indent.size();
    bool first = true;
    for (std::int64_t i : shown(x_.shape()[d], summarize_)) {
      std::size_t length = last_dim ? (i < 0 ? 3 : width_) : 0;
      if (!first) {
        out_ += ',';
        if (!last_dim) {
          // One empty line more between matrices, as NumPy has.
          out_ += std::string(static_cast<std::size_t>(x_.dim() - d - 1), '\n') + indent;
        } else if (line + length + 2 > kLineWidth) {
          out_ += '\n' + indent;
          line = indent.size();
        } else {
          out_ += ' ';
          line++;
        }
      }
      first = false;
      if (i < 0) {
        out_ += "...";
      } else if (last_dim) {
        const std::string& cell = cells_[next_++];
        out_ += std::string(width_ - cell.size(), ' ') + cell;
      } else {
        print(d + 1);
      }
      line += length + 1;
    }
    out_ += ']';
  }

  const Tensor& x_;
  bool summarize_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::string> cells_;
  std::size_t width_ = 0, next_ = 0;
  std::string out_;
};

}  // namespace

std::string format_tensor(const Tensor& tensor, int precision) {
  if (!tensor.defined()) return "undefined";
  LIMPID_CHECK(precision >= 0 && precision <= 17, ArgumentError, "[format_tensor] precision must be 0..17, got ",
               precision);
  if (tensor.numel() == 0) return "[]" + (tensor.dim() > 1 ? " " + to_string(tensor.shape()) : std::string());
  return Printer(tensor, precision).text();
}

}  // namespace limpid
