#include <limpid/tensor/device.h>

#include <limpid/base/error.h>

namespace limpid {

std::string to_string(Device device) {
  switch (device.type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return "cuda:" + std::to_string(device.index);
    case DeviceType::dry:
      return device == kDryCuda ? "dry:cuda" : "dry:cpu";
  }
  return "?";
}

Device parse_device(const std::string& text) {
  if (text == "cpu") return kCpu;
  if (text == "cuda") return {DeviceType::cuda, 0};
  if (text == "dry:cpu") return kDryCpu;
  if (text == "dry:cuda") return kDryCuda;
  if (text.size() == 6 && text.rfind("cuda:", 0) == 0 && text[5] >= '0' && text[5] <= '9') {
    return {DeviceType::cuda, static_cast<std::int8_t>(text[5] - '0')};
  }
  LIMPID_THROW(ArgumentError, "device must be cpu, cuda[:index], dry:cpu or dry:cuda, got '", text, "'");
}

}  // namespace limpid
