#include <limpid/train/amp.h>

#include <limpid/base/error.h>

namespace limpid::train {

AutocastOptions autocast_for(const std::string& precision) {
  if (precision == "bf16") return {.dtype = DType::bfloat16};
  if (precision == "fp16") return {.dtype = DType::float16};
  LIMPID_CHECK(precision == "fp32", ArgumentError, "[amp] expected fp32, bf16 or fp16, got ", precision);
  return {.enabled = false};
}

bool needs_scaler(const std::string& precision) { return autocast_for(precision).dtype == DType::float16; }

}  // namespace limpid::train
