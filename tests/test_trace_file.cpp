// Trace files: both forms hold the same, a cut file is read up to the cut, damage and hostile input end in an error.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include <limpid/base/file.h>
#include <limpid/memory/trace_import.h>

#include "temp_folder.h"
#include "trace_test.h"

using namespace limpid_test;

namespace {

TraceLog random_log(unsigned seed, int steps = 2000) {
  Allocator allocator(std::make_shared<SimulatedMemory>(200 * kMiB), parse_allocator_settings("max_split_size_mb:64"));
  RandomRun run(allocator, seed);
  run.steps(steps);
  TraceLog log = capture_trace(allocator);
  run.free_all();
  return log;
}

// A chunk by hand, with a right CRC.
std::string with_chunk(char kind, const std::string& payload) {
  TraceLog log;
  std::string bytes = binary_of(log);
  const std::string info = TraceEncoder::info(log.info);
  bytes.resize(16 + info.size());  // header and info
  std::uint32_t crc = 0xffffffff;
  for (unsigned char c : payload) {
    crc ^= c;
    for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
  }
  crc = ~crc;
  bytes += kind;
  for (std::uint32_t value : {static_cast<std::uint32_t>(payload.size()), crc}) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
  }
  return bytes + payload;
}

}  // namespace

TEST_CASE("a trace survives both forms") {
  const TraceLog log = random_log(1);
  REQUIRE(log.records.size() > 2000);
  for (const std::string& bytes : {binary_of(log), jsonl_of(log)}) {
    const TraceLog back = parse_trace(bytes);
    CHECK(same_records(log, back));
    CHECK_FALSE(back.cut);
    CHECK(back.notes.empty());
    CHECK(back.info.device == "simulated");
    CHECK(back.info.policy == "native");
    CHECK(back.info.settings == "max_split_size_mb:64");
    CHECK(back.info.capacity == 200 * kMiB);
  }
  // JSONL of what was read from binary is the same text.
  CHECK(jsonl_of(parse_trace(binary_of(log))) == jsonl_of(log));
  CHECK(binary_of(log).size() < log.records.size() * 20);
}

TEST_CASE("extreme values survive") {
  TraceLog log;
  log.names = {"", "a \"quoted\"\\\n name", "\xc3\xa9", std::string(4096, 'x')};
  log.info.preexisting = 3;
  log.info.not_recorded = 12345;
  for (std::uint64_t id : {std::uint64_t{1}, UINT64_MAX, std::uint64_t{0}, std::uint64_t{1} << 63, UINT64_MAX - 1}) {
    TraceRecord r{};
    r.id = id;
    r.bytes = std::uint64_t{1} << 60;
    r.stream = UINT64_MAX;
    r.name = 3;
    r.op = 1;
    r.module = 2;
    r.step = UINT32_MAX;
    r.micro_batch = UINT32_MAX;
    r.kind = TraceKind::alloc;
    r.role = Role::other;
    r.phase = Phase::data;
    log.records.push_back(r);
    log.records.push_back({});
    log.records.back().kind = TraceKind::empty_cache;
  }
  for (const std::string& bytes : {binary_of(log), jsonl_of(log)}) {
    const TraceLog back = parse_trace(bytes);
    CHECK(same_records(log, back));
    CHECK(back.info.preexisting == 3);
    CHECK(back.info.not_recorded == 12345);
  }
  // JSON is UTF-8: bytes that are not become U+FFFD; the binary form keeps them.
  log.names[2] = "\xff\xfe";
  CHECK(parse_trace(binary_of(log)).name(parse_trace(binary_of(log)).records[0].module) == "\xff\xfe");
  const TraceLog back = parse_trace(jsonl_of(log));
  CHECK(back.name(back.records[0].module) == "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("a recording has the whole past, or what is live") {
  TempFolder folder;
  Allocator allocator(std::make_shared<SimulatedMemory>(4096 * kMiB));
  allocator.trace().set_capacity(4096);
  RandomRun run(allocator, 3);
  run.steps(500);
  {
    TraceRecording recording(allocator, folder / "whole.bin");
    run.steps(10000);
    recording.close();
    recording.close();  // once is enough
    CHECK(recording.writer().records() == parse_trace(text_of(folder / "whole.bin")).records.size());
  }
  const TraceLog whole = read_trace(folder / "whole.bin");
  CHECK_FALSE(whole.cut);
  CHECK(whole.info.preexisting == 0);
  CHECK(whole.records.size() == allocator.trace().total());
  std::uint64_t live = 0;
  for (const TraceRecord& r : whole.records) {
    if (r.kind == TraceKind::alloc) live += r.bytes;
    if (r.kind == TraceKind::free) live -= r.bytes;
  }
  CHECK(live == allocator.ledger().live_total);
  {
    TraceRecording recording(allocator, folder / "late.bin");
    run.steps(100);
    run.free_all();
  }
  const TraceLog late = read_trace(folder / "late.bin");
  CHECK(late.info.preexisting > 0);
  live = 0;
  for (std::size_t i = 0; i < late.info.preexisting; i++) {
    CHECK(late.records[i].kind == TraceKind::alloc);
    CHECK((i == 0 || late.records[i - 1].id < late.records[i].id));
  }
  for (const TraceRecord& r : late.records) {
    if (r.kind == TraceKind::alloc) live += r.bytes;
    if (r.kind == TraceKind::free) live -= r.bytes;
  }
  CHECK(live == 0);
}

TEST_CASE("a file that is still open is readable up to the last flush") {
  TempFolder folder;
  Allocator allocator(std::make_shared<SimulatedMemory>(64 * kMiB));
  TraceRecording recording(allocator, folder / "t.bin");
  for (int i = 0; i < 100; i++) allocator.free(allocator.allocate(1000, Role::temp, intern("x")));
  recording.flush();
  const TraceLog log = read_trace(folder / "t.bin");
  CHECK(log.cut);
  CHECK(log.records.size() == 201);
  REQUIRE(log.notes.size() == 1);
  CHECK(contains(log.notes[0], "did not close the file"));
}

TEST_CASE("at its limit a trace ends, and counts the rest") {
  TempFolder folder;
  Allocator allocator(std::make_shared<SimulatedMemory>(64 * kMiB));
  allocator.trace().set_capacity(64);
  TraceRecording recording(allocator, folder / "t.bin", 4000);
  for (int i = 0; i < 5000; i++) allocator.free(allocator.allocate(1000, Role::temp, intern("x")));
  recording.close();
  CHECK(std::filesystem::file_size(folder / "t.bin") < 4200);
  const TraceLog log = read_trace(folder / "t.bin");
  CHECK_FALSE(log.cut);
  CHECK(log.info.not_recorded > 5000);
  CHECK(log.records.size() + log.info.not_recorded == 10001);
}

TEST_CASE("a full disk ends the trace, not the program") {
  CHECK_THROWS_AS(TraceWriter("/nonexistent-folder/t.bin", {}, UINT64_MAX), IoError);
  if (!std::filesystem::exists("/dev/full")) return;
  Allocator allocator(std::make_shared<SimulatedMemory>(64 * kMiB));
  TraceRecording recording(allocator, "/dev/full");
  allocator.free(allocator.allocate(1000, Role::temp));
  CHECK(contains(message_of<IoError>([&] { recording.close(); }), "/dev/full"));
  CHECK(recording.writer().not_recorded() == 3);
}

TEST_CASE("a file cut anywhere is read up to there") {
  const TraceLog log = random_log(2, 300);
  const std::string bytes = binary_of(log), text = jsonl_of(log);
  for (std::size_t n = 16; n < bytes.size(); n += 3) {
    const TraceLog part = parse_trace_binary(std::string_view(bytes).substr(0, n));
    CHECK(part.cut);
    CHECK_FALSE(part.notes.empty());
    CHECK(part.records.size() <= log.records.size());
  }
  const std::size_t first_line = text.find('\n') + 1;
  for (std::size_t n = first_line; n + 1 < text.size(); n += 37) {
    const TraceLog part = parse_trace_jsonl(std::string_view(text).substr(0, n));
    CHECK(part.cut);
    CHECK(part.records.size() <= log.records.size());
    bool same = true;
    for (std::size_t i = 0; i < part.records.size(); i++) same = same && part.records[i].id == log.records[i].id;
    CHECK(same);
  }
  CHECK_THROWS_AS(parse_trace_binary(std::string_view(bytes).substr(0, 15)), DataError);
  CHECK_THROWS_AS(parse_trace_jsonl(std::string_view(text).substr(0, 20)), DataError);
}

TEST_CASE("a damaged byte is found") {
  const std::string bytes = binary_of(random_log(4, 200));
  for (std::size_t at = 0; at < bytes.size(); at++) {
    std::string broken = bytes;
    broken[at] = static_cast<char>(broken[at] ^ 0x10);
    bool noticed = false;
    try {
      noticed = parse_trace_binary(broken).cut;
    } catch (const DataError&) {
      noticed = true;
    }
    CAPTURE(at);
    CHECK(noticed);
  }
}

TEST_CASE("binary files that break the rules are refused with a reason") {
  auto error = [](char kind, const std::string& payload) {
    return message_of<DataError>([&] { parse_trace_binary(with_chunk(kind, payload)); });
  };
  CHECK(error('R', std::string("\0", 1)) == "");  // no records, then no end: cut
  CHECK(contains(error('Q', ""), "unknown chunk kind"));
  CHECK(contains(error('R', "\x05"), "claims 5 records"));
  CHECK(contains(error('R', std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10)), "claims"));
  CHECK(contains(error('R', std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10)), "64 bits"));
  CHECK(contains(error('R', std::string("\x01\x0f\x00\x00", 4)), "unknown kind 15"));
  CHECK(contains(error('R', std::string("\x01\x00\x40", 3)), "unknown flags"));
  CHECK(contains(error('R', std::string("\x01\x00\x00", 3)), "a size of 0 bytes"));
  CHECK(contains(error('R', std::string("\x01\x80\x00\x05", 4)), "name 5 is not defined"));
  CHECK(contains(error('R', std::string("\x01\x20\x10\x01\x63", 5)), "unknown role 99"));
  CHECK(contains(error('R', std::string("\x01\x0b\x00zz", 5)), "2 bytes after the last record"));
  CHECK(contains(error('R', std::string("\x02\x20\x00\x01\x20\x00", 6)), "ends inside a record"));
  CHECK(contains(error('N', std::string("\x01\x02z", 3)), "a name of 2 bytes"));
  CHECK(contains(error('N', std::string("\x00\x01z", 3)), "ids start at 1"));
  CHECK(contains(error('N', std::string("\x01\x01z\x01\x01y", 6)), "defined twice"));
  CHECK(contains(error('N', std::string("\x01\xff\xff\xff\xff\x0f", 6)), "at most 4096"));
  CHECK(contains(error('E', "{\"records\": 3}"), "the end counts 3 records"));
  CHECK(contains(error('E', "[1]"), "not a JSON object"));
  CHECK(contains(error('I', "{\"capacity\": -1}"), "capacity"));
  CHECK(contains(error('I', "{\"policy\": 7}"), "policy is not a text"));
  CHECK(contains(error('I', std::string(100000, '[')), "more than 65536"));
  CHECK(contains(error('I', std::string(60000, '[')), "not a JSON object"));
  // A length that the file does not have is a cut, and nothing is allocated for it.
  std::string huge = with_chunk('R', "");
  huge[huge.size() - 6] = '\x7f';
  CHECK(parse_trace_binary(huge).cut);
}

TEST_CASE("JSONL that breaks the rules is refused with its line") {
  const std::string head = "{\"format\":\"limpid-trace/1\"}\n";
  auto error = [&](const std::string& rest) {
    return message_of<DataError>([&] { parse_trace_jsonl(head + rest + "\n{\"e\":\"end\",\"records\":1}\n"); });
  };
  CHECK(error("{\"e\":\"alloc\",\"id\":1,\"bytes\":5}") == "");
  CHECK(contains(error("{\"e\":\"alloc\",\"id\":1}"), "line 2: a size of 0 bytes"));
  CHECK(contains(error("{\"e\":\"burn\"}"), "unknown event 'burn'"));
  CHECK(contains(error("{\"e\":\"alloc\",\"id\":-1,\"bytes\":5}"), "id is not a whole number"));
  CHECK(contains(error("{\"e\":\"alloc\",\"id\":1,\"bytes\":1e3}"), "bytes is not a whole number"));
  CHECK(contains(error("{\"e\":\"alloc\",\"id\":1,\"bytes\":5,\"role\":\"king\"}"), "unknown role 'king'"));
  CHECK(contains(error("{\"e\":\"alloc\",\"id\":1,\"bytes\":5,\"phase\":\"x\"}"), "unknown phase"));
  CHECK(contains(error("{\"e\":\"alloc\",\"id\":1,\"bytes\":5,\"step\":4294967296}"), "more than 32 bits"));
  CHECK(contains(error("{\"e\":\"alloc\",\"id\":1,\"bytes\":5,\"name\":[]}"), "name is not a text"));
  CHECK(contains(error("not json"), "line 2"));
  CHECK(contains(error(std::string(60000, '[')), "not a JSON object"));
  CHECK(contains(error(std::string(70000, ' ') + "{}"), "more than 65536"));
  CHECK(contains(error(""), "the end counts 1 records, there are 0"));
  CHECK_THROWS_AS(parse_trace_jsonl(""), DataError);
  CHECK_THROWS_AS(parse_trace_jsonl("{\"format\":\"limpid-trace/2\"}\n"), DataError);
}

TEST_CASE("a file's format is told by its content") {
  TempFolder folder;
  const TraceLog log = random_log(5, 50);
  write_trace(folder / "a.bin", log);
  write_trace(folder / "a.jsonl", log);
  CHECK(format_of(text_of(folder / "a.bin")) == TraceFormat::binary);
  CHECK(format_of(text_of(folder / "a.jsonl")) == TraceFormat::jsonl);
  CHECK(same_records(read_trace(folder / "a.bin"), read_trace(folder / "a.jsonl")));
  CHECK_THROWS_AS(format_of(""), DataError);
  CHECK_THROWS_AS(format_of("hello\nworld"), DataError);
  std::ofstream(folder / "bad.bin") << "limpid-trace/9";
  CHECK(contains(message_of<DataError>([&] { read_trace(folder / "bad.bin"); }), "bad.bin: [trace]"));
  CHECK_THROWS_AS(read_trace(folder / "absent.bin"), IoError);
  CHECK_THROWS_AS(read_trace(folder / "a.bin", 10), IoError);
}

TEST_CASE("settings as text read back the same") {
  for (const char* text :
       {"", "max_split_size_mb:64", "large_segment_size_mb:32", "max_non_split_rounding_mb:40",
        "garbage_collection_threshold:0.6,per_process_memory_fraction:0.5", "roundup_power2_divisions:4",
        "roundup_power2_divisions:[2:4,8:1,>:16]", "large_segment_size_mb:32,max_split_size_mb:100"}) {
    CAPTURE(text);
    const AllocatorSettings settings = parse_allocator_settings(text);
    const AllocatorSettings back = parse_allocator_settings(to_string(settings));
    CHECK(back.max_split_size == settings.max_split_size);
    CHECK(back.max_non_split_rounding == settings.max_non_split_rounding);
    CHECK(back.large_segment_size == settings.large_segment_size);
    CHECK(back.garbage_collection_threshold == settings.garbage_collection_threshold);
    CHECK(back.per_process_memory_fraction == settings.per_process_memory_fraction);
    CHECK(back.roundup_power2_divisions == settings.roundup_power2_divisions);
  }
  CHECK(to_string(AllocatorSettings()) == "");
}
