#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include <limpid/base/error.h>
#include <limpid/train/tensorboard.h>
#include <limpid/train/trainer.h>

#include "temp_folder.h"

using namespace limpid;
using namespace limpid::train;
using doctest::Approx;
using limpid_test::TempFolder;

namespace {

// A reader of its own: frames, then the fields of the few messages that are used.
struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version;
  int session = 0;
  std::map<std::string, float> values;
};

template <class T>
T take(std::string_view& bytes) {
  REQUIRE(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<std::uint8_t>(bytes);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

std::string_view take_bytes(std::string_view& bytes) {
  const std::uint64_t size = take_varint(bytes);
  REQUIRE(bytes.size() >= size);
  const std::string_view out = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return out;
}

Event parse_event(std::string_view bytes) {
  Event event;
  while (!bytes.empty()) {
    switch (take_varint(bytes)) {
      case 1 << 3 | 1:
        event.wall_time = take<double>(bytes);
        break;
      case 2 << 3 | 0:
        event.step = static_cast<std::int64_t>(take_varint(bytes));
        break;
      case 3 << 3 | 2:
        event.file_version = take_bytes(bytes);
        break;
      case 7 << 3 | 2: {
        std::string_view log = take_bytes(bytes);
        CHECK(take_varint(log) == (1 << 3 | 0));
        event.session = static_cast<int>(take_varint(log));
        CHECK(log.empty());
        break;
      }
      case 5 << 3 | 2: {
        std::string_view summary = take_bytes(bytes);
        while (!summary.empty()) {
          REQUIRE(take_varint(summary) == (1 << 3 | 2));
          std::string_view value = take_bytes(summary);
          REQUIRE(take_varint(value) == (1 << 3 | 2));
          const std::string tag(take_bytes(value));
          REQUIRE(take_varint(value) == (2 << 3 | 5));
          event.values[tag] = take<float>(value);
          CHECK(value.empty());
        }
        break;
      }
      default:
        FAIL("a field that nobody writes");
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  const std::string whole = text.str();
  std::string_view bytes = whole;
  std::vector<Event> events;
  while (!bytes.empty()) {
    const std::string_view length_bytes = bytes.substr(0, 8);
    const auto length = take<std::uint64_t>(bytes);
    CHECK(take<std::uint32_t>(bytes) == masked_crc32c(length_bytes));
    REQUIRE(bytes.size() >= length + 4);
    const std::string_view data = bytes.substr(0, length);
    bytes.remove_prefix(length);
    CHECK(take<std::uint32_t>(bytes) == masked_crc32c(data));
    events.push_back(parse_event(data));
  }
  return events;
}

}  // namespace

TEST_CASE("CRC-32C gives the known values") {
  // RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
  std::string up, down;
  for (int i = 0; i < 32; i++) up.push_back(static_cast<char>(i)), down.push_back(static_cast<char>(31 - i));
  CHECK(crc32c(up) == 0x46dd794eu);
  CHECK(crc32c(down) == 0x113fdb5cu);
  CHECK(crc32c("") == 0);
  CHECK(masked_crc32c("") == 0xa282ead8u);
  CHECK(masked_crc32c("123456789") == ((0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u));
}

TEST_CASE("an event file reads back") {
  TempFolder folder;
  const std::string path = folder / "events.out.tfevents.00000300.limpid";
  {
    EventFile file(path, 300);
    file.write(300, {{"a", 0.5}, {"b/c", -1e10}, {"nan", std::nan("")}});
    file.write((std::int64_t{1} << 40) + 300, {});
  }
  const std::vector<Event> events = read_events(path);
  REQUIRE(events.size() == 4);
  CHECK(events[0].file_version == "brain.Event:2");
  CHECK(events[1].session == 1);
  CHECK(events[1].step == 300);
  CHECK(events[2].step == 300);
  CHECK(events[2].wall_time > 1.6e9);
  CHECK(events[2].values.size() == 3);
  CHECK(events[2].values.at("a") == 0.5f);
  CHECK(events[2].values.at("b/c") == -1e10f);
  CHECK(std::isnan(events[2].values.at("nan")));
  CHECK(events[3].step == (std::int64_t{1} << 40) + 300);
  CHECK(events[3].values.empty());
  EventFile again(path, 0);
  CHECK(read_events(path).size() == 1);
  CHECK_THROWS_AS(EventFile(folder / "none/events", 0), IoError);
}

TEST_CASE("a run has its scalars in event files, a resumed one in a file of its own") {
  TempFolder folder;
  TrainSettings s;
  s.data = "synthetic";
  s.input = {3, 8, 8};
  s.classes = 4;
  s.limit = 80;
  s.val_fraction = 0.2;
  s.model = "seed";
  s.epochs = 1;
  s.batch = 16;
  s.workers = 0;
  s.threads = 1;
  s.monitor_every = 2;
  s.out = folder / "run";
  s.tensorboard = true;
  s.optimizer = "lars";
  s.weight_decay = 1e-3;
  struct Recorder : TrainObserver {
    void on_step(const StepRecord& r) override { steps.push_back(r); }
    void on_epoch(const EpochRecord& r) override { epoch = r; }
    std::vector<StepRecord> steps;
    EpochRecord epoch;
  } recorder;
  auto parts = [&] {
    TrainParts p = make_parts(s, {});
    p.test = nullptr;
    return p;
  };
  Trainer(s, parts(), Start::fresh, &recorder).run();
  const std::vector<Event> events = read_events(s.out + "/events.out.tfevents.00000000.limpid");
  std::size_t steps = 0, monitors = 0, epochs = 0;
  for (const Event& e : events) {
    if (e.values.contains("train/loss")) {
      const StepRecord& r = recorder.steps.at(steps++);
      CHECK(e.step == r.step);
      CHECK(e.values.at("train/loss") == static_cast<float>(r.loss));
      CHECK(e.values.at("train/accuracy") == static_cast<float>(r.accuracy));
      CHECK(e.values.at("train/lr") == static_cast<float>(r.lr));
      CHECK(r.trust_ratios.size() == 4);
      for (const auto& [name, ratio] : r.trust_ratios) CHECK(e.values.at("trust_ratio/" + name) == static_cast<float>(ratio));
    } else if (e.values.contains("memory/allocated_bytes")) {
      monitors++;
      CHECK(e.values.at("memory/reserved_bytes") >= e.values.at("memory/allocated_bytes"));
      CHECK(e.values.contains("monitor/samples_per_second"));
    } else if (e.values.contains("validation/loss")) {
      epochs++;
      CHECK(e.step == 3);
      CHECK(e.values.at("validation/accuracy") == static_cast<float>(recorder.epoch.validation->accuracy));
    }
  }
  CHECK(steps == 4);
  CHECK(monitors == 2);
  CHECK(epochs == 1);

  s.epochs = 2;
  Trainer(s, parts(), Start::resume).run();
  const std::vector<Event> more = read_events(s.out + "/events.out.tfevents.00000004.limpid");
  REQUIRE(more.size() > 2);
  CHECK(more[1].session == 1);
  CHECK(more[1].step == 4);
  CHECK(more[2].step == 4);
  CHECK(read_monitor(s.out + "/monitor.jsonl").size() == 4);

  s.epochs = 1;
  s.tensorboard = false;
  Trainer(s, parts(), Start::overwrite).run();
  CHECK(!std::ifstream(s.out + "/events.out.tfevents.00000000.limpid").good());
  CHECK(!std::ifstream(s.out + "/events.out.tfevents.00000004.limpid").good());
  s.tensorboard = true;
  s.out = "";
  CHECK_THROWS_AS(check(s), ArgumentError);
}
