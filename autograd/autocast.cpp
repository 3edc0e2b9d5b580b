#include <limpid/autograd/autocast.h>

#include <algorithm>

#include <limpid/autograd/autocast_call.h>
#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/meta.h>

namespace limpid {
namespace {

// A copy of a parameter, with the version that was copied. The parameter is kept, so that its address stays its own.
struct Copy {
  Tensor parameter, low;
  std::uint32_t version;
};
// In order of their first use, so that they are freed in one order too. A parameter that is used under both f16 and bf16
// has two.
using Cache = std::vector<Copy>;
thread_local Cache* cache = nullptr;  // there while it holds something
thread_local int depth = 0;

bool is_eligible(const Tensor& x) { return x.defined() && is_floating(x.dtype()) && x.dtype() != DType::float64; }

bool is_cacheable(const Tensor& x, DType dtype) {
  return x.dtype() == DType::float32 && dtype != DType::float32 && x.requires_grad() && x.is_leaf() &&
         x.nbytes() == x.storage()->bytes();
}

// Whether `copy` still is what a cast of its parameter would give now. Without the second half, a first use under NoGrad
// would take the gradient from all later ones.
bool is_current(const Copy& copy) {
  if (copy.version != copy.parameter.version()) return false;
  const AutogradMeta* meta = find_meta(copy.low);
  return !grad_enabled() || (meta && meta->grad_fn && !meta->grad_fn->released());
}

Tensor cached_cast(const Tensor& parameter, DType dtype, bool& reused) {
  if (!cache) cache = new Cache;
  auto at = std::find_if(cache->begin(), cache->end(), [&](const Copy& copy) {
    return copy.parameter.is_same(parameter) && copy.low.dtype() == dtype;
  });
  reused = at != cache->end() && is_current(*at);
  if (reused) return at->low;
  Tensor low = limpid::cast(parameter, dtype);
  if (!parameter.name().empty()) low.set_name(concat(parameter.name(), " (", dtype, ")"));
  if (at == cache->end()) at = cache->emplace(at);
  *at = {parameter, low, parameter.version()};
  return low;
}

NameId op_id(AutocastOp op) {
  static const std::vector<NameId>* ids = new std::vector<NameId>{
#define V(name, rule) intern(#name),
      LIMPID_AUTOCAST_TABLE(V)
#undef V
  };
  return (*ids)[static_cast<std::size_t>(op)];
}

}  // namespace

const std::vector<AutocastEntry>& autocast_table() {
  static const auto* table = new std::vector<AutocastEntry>{
#define V(name, rule) {#name, AutocastRule::rule},
      LIMPID_AUTOCAST_TABLE(V)
#undef V
  };
  return *table;
}

std::string_view to_string(AutocastRule rule) {
  constexpr std::string_view kNames[] = {"lower", "fp32", "widest", "as_is"};
  return kNames[static_cast<int>(rule)];
}

// ---- scopes

Autocast::Autocast(const AutocastOptions& options) : former_(detail::autocast_options) {
  LIMPID_CHECK(options.dtype == DType::float16 || options.dtype == DType::bfloat16, DTypeError,
               "[autocast] the lower precision is f16 or bf16, got ", options.dtype);
  detail::autocast_options = options;
  depth++;
}

Autocast::~Autocast() {
  detail::autocast_options = former_;
  if (--depth == 0) clear_autocast_cache();
}

std::uint64_t autocast_cache_bytes() {
  std::uint64_t bytes = 0;
  if (cache)
    for (const Copy& copy : *cache) bytes += copy.low.nbytes();
  return bytes;
}

void clear_autocast_cache() { delete std::exchange(cache, nullptr); }

// ---- one operation

AutocastCall::AutocastCall(AutocastOp op, std::span<const Tensor* const> arguments)
    : options_(detail::autocast_options),
      rule_(autocast_table()[static_cast<std::size_t>(op)].rule),
      arguments_(arguments),
      scope_(op_id(op)),
      watcher_(std::exchange(detail::watcher, nullptr)) {
  if (rule_ == AutocastRule::lower) target_ = options_.dtype;
  if (rule_ == AutocastRule::widest) {
    target_ = options_.dtype;
    for (const Tensor* x : arguments) {
      if (x && is_eligible(*x)) target_ = promote(target_, x->dtype());  // f16 with bf16 gives f32
    }
  }
}

Tensor AutocastCall::cast(const Tensor& x) {
  if (rule_ == AutocastRule::as_is || !is_eligible(x) || x.dtype() == target_) return x;
  bool reused = false;
  Tensor low = options_.cache && is_cacheable(x, target_) ? cached_cast(x, target_, reused) : limpid::cast(x, target_);
  if (watcher_) watcher_->on_cast(x, low, reused);
  return low;
}

Tensor AutocastCall::done(Tensor result) {
  if (watcher_) watcher_->on_result(result, arguments_, rule_ == AutocastRule::as_is ? result.dtype() : target_);
  return result;
}

}  // namespace limpid
