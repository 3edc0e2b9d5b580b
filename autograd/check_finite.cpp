#include <limpid/autograd/check_finite.h>

#include <cmath>

#include <limpid/tensor/raw.h>

namespace limpid {

void check_finite(const Tensor& x, const char* what, int index) {
  if (!x.defined() || !is_floating(x.dtype()) || raw::all_finite(x)) return;
  std::vector<double> values = x.to_vector<double>();
  std::size_t first = 0;
  std::size_t count = 0;
  for (std::size_t i = values.size(); i-- > 0;) {
    if (std::isfinite(values[i])) continue;
    first = i;
    count++;
  }
  const Scope& scope = current_scope();
  std::string layer = scope.module ? ", layer " + name_of(scope.module) : std::string();
  throw NonFiniteError(concat("[check_finite] ", name_of(scope.op), layer, ", ", to_string(scope.phase), ", step ", scope.step,
                              ": ", what, " ", index, " ", x, " has ", count, " non-finite of ", values.size(),
                              " elements, the first at ", first, " is ", values[first]),
                       scope);
}

}  // namespace limpid
