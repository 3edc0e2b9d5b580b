#include <limpid/train/tensorboard.h>

#include <array>
#include <bit>
#include <chrono>
#include <concepts>

#include <limpid/train/trainer.h>

namespace limpid::train {
namespace {

// Protocol Buffers: a field is (number << 3 | wire type) and its value.
enum WireType : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <std::unsigned_integral T>
std::string little_endian(T value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof value; i++) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return out;
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

std::string key(std::uint64_t number, WireType type) { return varint(number << 3 | type); }

std::string bytes_field(std::uint64_t number, const std::string& bytes) {
  return key(number, kBytes) + varint(bytes.size()) + bytes;
}

// Event: wall_time = 1 (double), step = 2 (int64), then one of file_version = 3, summary = 5, session_log = 7.
std::string event(std::int64_t step, const std::string& what) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return key(1, kFixed64) + little_endian(std::bit_cast<std::uint64_t>(now)) + key(2, kVarint) +
         varint(static_cast<std::uint64_t>(step)) + what;
}

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; i++) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; bit++) crc = (crc & 1) ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    table[i] = crc;
  }
  return table;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = ~std::uint32_t{0};
  for (char c : bytes) crc = kTable[(crc ^ static_cast<std::uint8_t>(c)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

EventFile::EventFile(const std::string& path, std::int64_t first_step) : file_(path, 0) {
  write_record(event(0, bytes_field(3, "brain.Event:2")));
  // SessionLog: status = 1, START = 1.
  if (first_step > 0) write_record(event(first_step, bytes_field(7, key(1, kVarint) + varint(1))));
}

// TFRecord: length, its CRC, the data, its CRC.
void EventFile::write_record(const std::string& data) {
  const std::string length = little_endian(std::uint64_t{data.size()});
  file_.write(length + little_endian(masked_crc32c(length)) + data + little_endian(masked_crc32c(data)));
}

// Summary: value = 1; Summary.Value: tag = 1, simple_value = 2 (float).
void EventFile::write(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes_field(1, bytes_field(1, tag) + key(2, kFixed32) +
                                  little_endian(std::bit_cast<std::uint32_t>(static_cast<float>(value))));
  }
  write_record(event(step, bytes_field(5, summary)));
}

void EventFile::write(const StepRecord& r) {
  Scalars scalars = {{"train/loss", r.loss}, {"train/accuracy", r.accuracy}, {"train/lr", r.lr}};
  for (const auto& [name, ratio] : r.trust_ratios) scalars.emplace_back("trust_ratio/" + name, ratio);
  write(r.step, scalars);
}

void EventFile::write(const MonitorRecord& r) {
  write(r.step, {{"monitor/samples_per_second", r.samples_per_second()},
                 {"monitor/data_wait_share", r.seconds > 0 ? r.data_wait / r.seconds : 0},
                 {"monitor/busy", r.busy()},
                 {"monitor/scale", r.scale},
                 {"memory/allocated_bytes", static_cast<double>(r.memory.allocated)},
                 {"memory/reserved_bytes", static_cast<double>(r.memory.reserved)},
                 {"memory/peak_allocated_bytes", static_cast<double>(r.memory.peak_allocated)}});
}

void EventFile::write(const EpochRecord& r) {
  Scalars scalars = {{"epoch/train_loss", r.train_loss}, {"epoch/train_accuracy", r.train_accuracy}};
  if (r.validation) {
    scalars.emplace_back("validation/loss", r.validation->loss);
    scalars.emplace_back("validation/accuracy", r.validation->accuracy);
  }
  write(r.step - 1, scalars);
}

}  // namespace limpid::train
