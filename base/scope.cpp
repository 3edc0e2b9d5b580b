#include <limpid/base/scope.h>

namespace limpid {

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::none: return "none";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::optimizer: return "optimizer";
    case Phase::eval: return "eval";
    case Phase::data: return "data";
  }
  return "?";
}

}  // namespace limpid
