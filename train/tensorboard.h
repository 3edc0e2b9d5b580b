// Event files that TensorBoard reads, written by hand: TFRecord frames with masked CRC-32C around Event messages of
// tensorflow/core/util/event.proto. Scalars only. A resumed run begins a file of its own, whose first event tells
// TensorBoard to forget what earlier files have from that step on. Not here: reading them back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <limpid/train/monitor.h>
#include <limpid/train/run_folder.h>

namespace limpid::train {

struct StepRecord;
struct EpochRecord;

// CRC-32C (Castagnoli, RFC 3720 appendix B.4), and as TFRecord stores it: rotated right by 15 bits, plus 0xa282ead8.
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

using Scalars = std::vector<std::pair<std::string, double>>;

class EventFile {
 public:
  // Begins the file anew. `first_step` > 0: of a resumed run. IoError when it cannot be written.
  EventFile(const std::string& path, std::int64_t first_step);

  void write(std::int64_t step, const Scalars& scalars);
  // The scalars of a run: train/loss, train/accuracy, train/lr, trust_ratio/PARAMETER; monitor/..., memory/...;
  // validation/...
  void write(const StepRecord& record);
  void write(const MonitorRecord& record);
  void write(const EpochRecord& record);

 private:
  void write_record(const std::string& event);
  LineFile file_;
};

}  // namespace limpid::train
