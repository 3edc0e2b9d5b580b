// Traces of others, in and out: PyTorch snapshots (as data, never as code), RMM logs, MiniMalloc lists.
#include <doctest/doctest.h>

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include <limpid/base/file.h>
#include <limpid/memory/pickle_reader.h>
#include <limpid/memory/trace_export.h>
#include <limpid/memory/trace_import.h>

#include "temp_folder.h"
#include "trace_test.h"

using namespace limpid_test;
using namespace std::string_literals;

namespace {

std::string golden(const std::string& name) {
  const auto bytes = read_file(std::string(LIMPID_TEST_DATA) + "/snapshots/" + name);
  return {bytes.begin(), bytes.end()};
}

using Printer = std::function<void(const ByteSink&)>;
std::string text_of(const Printer& print) {
  std::string out;
  print([&out](std::string_view bytes) { out += bytes; });
  return out;
}

// A live run with streams, and its trace.
TraceLog random_log(unsigned seed, int steps, std::uint64_t capacity = 4096 * kMiB) {
  Allocator allocator(std::make_shared<SimulatedMemory>(capacity));
  allocator.trace().set_capacity(1 << 16);
  RandomRun run(allocator, seed);
  run.steps(steps);
  TraceLog log = capture_trace(allocator);
  run.free_all();
  return log;
}

struct Event {
  TraceKind kind;
  std::uint64_t id, bytes;
  StreamId stream;
  bool operator==(const Event&) const = default;
};

// Allocations, frees and failures, with ids in order of allocation.
std::vector<Event> events_of(const TraceLog& log) {
  std::vector<Event> out;
  std::unordered_map<std::uint64_t, Event> live;
  std::uint64_t next = 0;
  for (const TraceRecord& r : log.records) {
    if (r.kind == TraceKind::alloc) {
      out.push_back({r.kind, next++, r.bytes, r.stream});
      live[r.id] = out.back();
    } else if (r.kind == TraceKind::free) {
      Event e = live.at(r.id);
      e.kind = TraceKind::free;
      out.push_back(e);
      live.erase(r.id);
    }
  }
  return out;
}

std::string pickle_error(const std::string& bytes) {
  return message_of<DataError>([&] { PickleDocument{bytes}; });
}

const std::string kProto = "\x80\x02";

struct Python {
  int code;
  std::string out;
};
// Nothing when there is no python3.
std::optional<Python> python(const std::string& arguments) {
  if (std::system("python3 -c '' >/dev/null 2>&1") != 0) return std::nullopt;
  std::FILE* pipe = ::popen(("python3 " + arguments + " 2>&1").c_str(), "r");
  if (!pipe) return std::nullopt;
  Python result{0, ""};
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) result.out.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

}  // namespace

TEST_CASE("pickles of plain data, protocols 2 to 5") {
  for (const char* protocol : {"2", "3", "4", "5"}) {
    CAPTURE(protocol);
    const std::string bytes = golden(std::string("snapshot_p") + protocol + ".pickle");
    const PickleDocument document(bytes);
    const PickleValue settings = *document.root().find("allocator_settings");
    CHECK(settings.find("big")->integer() == std::int64_t{1} << 62);
    CHECK(settings.find("none")->is(PickleType::none));
    CHECK(settings.find("yes")->is(PickleType::boolean));
    CHECK(settings.find("yes")->integer() == 1);
    CHECK(settings.find("max_split_size")->integer() == -1);
    CHECK(settings.find("garbage_collection_threshold")->real() == 0.0);
    CHECK(settings.find("roundup_power2_divisions")->find("4")->integer() == 2);
    CHECK_FALSE(settings.find("absent"));
    CHECK((*document.root().find("external_annotations"))[0].find("time_us")->real() == 2.5);
    const PickleValue pool = *(*document.root().find("segments"))[0].find("segment_pool_id");
    CHECK(pool.is(PickleType::tuple));
    CHECK(pool.size() == 2);
    CHECK_THROWS_AS(pool[2], DataError);
    CHECK_THROWS_AS(pool.integer(), DataError);
    CHECK_THROWS_AS(pool.text(), DataError);
    CHECK_THROWS_AS(pool.find("x"), DataError);
    CHECK_THROWS_AS(document.root()[0], DataError);
    CHECK_THROWS_AS(settings.find("yes")->size(), DataError);
    CHECK(document.root().key(0).text() == "segments");
    CHECK_THROWS_AS(document.root().value(99), DataError);
  }
}

TEST_CASE("a pickle that would run code is refused by the name of its opcode, and nothing runs") {
  const std::string witness = "/tmp/limpid-was-here";
  std::filesystem::remove(witness);
  const std::pair<const char*, const char*> cases[] = {
      {"evil_p2.pickle", "GLOBAL, which imports code"},
      {"evil_p3.pickle", "GLOBAL, which imports code"},
      {"evil_p4.pickle", "STACK_GLOBAL, which imports code"},
      {"evil_p5.pickle", "STACK_GLOBAL, which imports code"},
      {"evil_global.pickle", "GLOBAL, which imports code"},
      {"evil_inst.pickle", "INST, which imports and calls code"},
      {"evil_ext.pickle", "EXT1, which calls code"},
      {"evil_persid.pickle", "PERSID, which asks"},
      {"evil_build.pickle", "BUILD, which runs"},
      {"evil_stack_global.pickle", "STACK_GLOBAL, which imports code"},
      {"old_protocol.pickle", "not a pickle of protocol 2 to 5"},
  };
  for (const auto& [file, reason] : cases) {
    CAPTURE(file);
    CHECK(contains(pickle_error(golden(file)), reason));
    CHECK_THROWS_AS(parse_torch_snapshot(golden(file)), DataError);
  }
  CHECK_FALSE(std::filesystem::exists(witness));
  // Every opcode that is not of the list is refused.
  int accepted = 0;
  for (int opcode = 0; opcode < 256; opcode++) {
    const std::string message = pickle_error(kProto + "N" + static_cast<char>(opcode) + std::string(16, '\0'));
    accepted += !contains(message, "at byte 3: opcode") && !contains(message, "at byte 3 is not one of plain data");
  }
  CHECK(accepted == 34);
}

TEST_CASE("broken pickles end in an error") {
  CHECK(contains(pickle_error(""), "ends at byte 0"));
  CHECK(contains(pickle_error("\x80\x06N."), "protocol 6"));
  CHECK(contains(pickle_error(kProto), "without STOP"));
  CHECK(contains(pickle_error(kProto + "."), "0 values"));
  CHECK(contains(pickle_error(kProto + "NN."), "2 values"));
  CHECK(contains(pickle_error(kProto + "(."), "1 values"));
  CHECK(contains(pickle_error(kProto + "t."), "no mark"));
  CHECK(contains(pickle_error(kProto + "e."), "no mark"));
  CHECK(contains(pickle_error(kProto + "(Ne."), "nothing to add to"));
  CHECK(contains(pickle_error(kProto + "N(Ne."), "not a list"));
  CHECK(contains(pickle_error(kProto + "](NNu."), "not a dict"));
  CHECK(contains(pickle_error(kProto + "}(Nu."), "odd number"));
  CHECK(contains(pickle_error(kProto + "(Nd."), "odd number"));
  CHECK(contains(pickle_error(kProto + "Na."), "too few values"));
  CHECK(contains(pickle_error(kProto + "((Na."), "too few values"));
  CHECK(contains(pickle_error(kProto + "0."), "too few values"));
  CHECK(contains(pickle_error(kProto + "h\x05."), "never stored"));
  CHECK(contains(pickle_error(kProto + "Nr\xff\xff\xff\xff."), "memo number 4294967295"));
  CHECK(contains(pickle_error(kProto + "X\xff\xff\xff\xff"
                                       "abc."),
                 "a text of 4294967295 bytes"));
  CHECK(contains(pickle_error("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"
                              "abc."),
                 "a text of"));
  CHECK(contains(pickle_error(kProto + "\x8a\x0a" + std::string(10, '\1') + "."), "an integer of 10 bytes"));
  CHECK(contains(pickle_error(kProto + "\x8a\x09" + std::string(9, '\1') + "."), "does not fit"));
  CHECK(contains(pickle_error(kProto + "J\x01\x02"), "without STOP"));
  // 2 million levels deep: no stack is used for them.
  const std::string deep = kProto + std::string(2'000'000, ']') + std::string(1'999'999, 'a') + ".";
  const PickleDocument nested(deep);
  CHECK(nested.root().size() == 1);
  CHECK_THROWS_AS(parse_torch_snapshot(deep), DataError);
  // A list that contains itself is a value like another.
  const std::string loop = kProto + "]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a.";
  const PickleDocument self(loop);
  CHECK(self.root()[0][0][0].size() == 1);
  CHECK_THROWS_AS(parse_torch_snapshot(loop), DataError);
  for (std::size_t n = 0; n < golden("snapshot_p4.pickle").size(); n++) {
    CHECK_THROWS_AS(parse_torch_snapshot(golden("snapshot_p4.pickle").substr(0, n)), DataError);
  }
}

TEST_CASE("a snapshot becomes a trace") {
  for (const char* protocol : {"2", "3", "4", "5"}) {
    const TraceLog log = parse_trace(golden(std::string("snapshot_p") + protocol + ".pickle"));
    CHECK(log.info.source == "pytorch");
    CHECK(log.info.device == "cuda:0");
    CHECK(log.info.settings == "max_split_size_mb:64");
    CHECK(log.info.preexisting == 2);
    const std::vector<std::pair<TraceKind, std::uint64_t>> expected = {
        {TraceKind::alloc, 700},
        {TraceKind::alloc, 600},
        {TraceKind::free, 700},
        {TraceKind::segment_alloc, 20 * kMiB},
        {TraceKind::alloc, 3 * kMiB - 100},
        {TraceKind::alloc, 5 * kMiB},
        {TraceKind::free, 3 * kMiB - 100},
        {TraceKind::alloc, 1000},
        {TraceKind::record_stream, 5 * kMiB},
        {TraceKind::free, 5 * kMiB},
        {TraceKind::oom, 100 * kMiB},
    };
    REQUIRE(log.records.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); i++) {
      CAPTURE(i);
      CHECK(log.records[i].kind == expected[i].first);
      CHECK(log.records[i].bytes == expected[i].second);
    }
    CHECK(log.name(log.records[4].name) == "forward (model.py:12)");  // the interpreter's frame is skipped
    CHECK(log.records[5].role == Role::grad);
    CHECK(log.records[5].stream == 7);
    CHECK(log.records[8].stream == kOtherStream);
    std::string notes;
    for (const std::string& note : log.notes) notes += note + "\n";
    CHECK(contains(notes, "2 blocks were live before the first event"));
    CHECK(contains(notes, "1 frees waited for other streams"));
    CHECK(contains(notes, "1 events of unknown kinds"));
    const ReplayResult r = replay(ReplayScript(log), {});
    CHECK(r.completed);
    CHECK(r.lower_bound == 700 + 600 + 8 * kMiB - 100 - 700);
    CHECK(parse_torch_snapshot(golden("snapshot_p4.pickle"), 1).records.size() == 1);
    const TraceLog legacy = parse_trace(golden(std::string("legacy_p") + protocol + ".pickle"));
    REQUIRE(legacy.records.size() == 2);
    CHECK(legacy.records[0].bytes == 1000);
    CHECK(legacy.records[0].stream == 3);
    CHECK(legacy.name(legacy.records[0].name) == "forward (model.py:12)");
    CHECK(legacy.records[1].bytes == 512);
    CHECK(legacy.info.preexisting == 2);
  }
  auto error = [](const std::string& bytes) { return message_of<DataError>([&] { parse_torch_snapshot(bytes); }); };
  CHECK(contains(error(kProto + "N."), "expected a dict"));
  CHECK(contains(error(kProto + "}."), "no 'segments'"));
  CHECK(contains(error(kProto + "](}e."), "no 'address'"));
  // {"segments": [{"address": -1, "blocks": []}]}
  CHECK(contains(error(kProto + "}X\x08\0\0\0segments](}(X\x07\0\0\0"
                                "addressJ\xff\xff\xff\xffX\x06\0\0\0"
                                "blocks]ues."s),
                 "address is -1"));
}

TEST_CASE("export to PyTorch and back keeps every allocation") {
  for (unsigned seed : {1, 2, 3}) {
    const TraceLog log = random_log(seed, 3000);
    const std::string bytes = text_of([&](const ByteSink& out) { print_torch_snapshot(log, {}, out); });
    const TraceLog back = parse_trace(bytes);
    CHECK(events_of(back) == events_of(log));
    CHECK(back.info.preexisting == 0);
    // What waited for a stream is seen to have waited.
    const ReplayScript ours(log), theirs(back);
    CHECK(ours.peak_live == theirs.peak_live);
    std::size_t named = 0;
    for (const TraceRecord& r : back.records) named += r.kind == TraceKind::alloc && contains(back.name(r.name), "t");
    CHECK(named > 0);
    // The roles are those at the time of allocation.
    std::size_t i = 0;
    bool same_roles = true;
    for (const TraceRecord& r : log.records) {
      if (r.kind != TraceKind::alloc) continue;
      while (back.records[i].kind != TraceKind::alloc) i++;
      same_roles = same_roles && back.records[i].role == r.role;
      i++;
    }
    CHECK(same_roles);
  }
  CHECK(text_of([&](const ByteSink& out) { print_torch_snapshot(TraceLog(), {}, out); }).size() > 10);
}

TEST_CASE("an exported snapshot passes CPython's pickle and the viewer's rules") {
  TempFolder folder;
  TraceLog log = random_log(7, 4000);
  log.names.push_back("_start of \xff bad");
  for (TraceRecord& r : log.records) {
    if (r.kind == TraceKind::alloc && r.id % 10 == 0) r.name = static_cast<NameId>(log.names.size() - 1);
  }
  ReplayOptions small;
  small.capacity = 60 * kMiB;  // ends in an oom
  for (const ReplayOptions& options : {ReplayOptions(), small}) {
    {
      std::ofstream file(folder / "s.pickle", std::ios::binary);
      print_torch_snapshot(log, options, [&file](std::string_view bytes) { file << bytes; });
    }
    const auto result = python(std::string(LIMPID_SOURCE_DIR) + "/tests/check_snapshot.py " + (folder / "s.pickle"));
    if (!result) {
      MESSAGE("skipped: there is no python3 here");
      return;
    }
    CAPTURE(result->out);
    CHECK(result->code == 0);
    CHECK(contains(result->out, "ok "));
  }
}

TEST_CASE("RMM logs") {
  const TraceLog log = random_log(11, 3000, 400 * kMiB);
  ReplayOptions options;
  options.capacity = 400 * kMiB;
  const std::string text = text_of([&](const ByteSink& out) { print_rmm_csv(log, options, out); });
  const TraceLog back = parse_trace(text);
  CHECK(events_of(back) == events_of(log));
  CHECK(std::count_if(back.records.begin(), back.records.end(), [](const TraceRecord& r) {
          return r.kind == TraceKind::oom;
        }) == std::count_if(log.records.begin(), log.records.end(), [](const TraceRecord& r) {
          return r.kind == TraceKind::oom;
        }));
  // What the format cannot say (other streams' uses, emptied caches) is lost on the first way, failures that are none
  // without a limit on the second, and nothing after that.
  const TraceLog second = parse_trace(text_of([&](const ByteSink& out) { print_rmm_csv(back, {}, out); }));
  const std::string again = text_of([&](const ByteSink& out) { print_rmm_csv(second, {}, out); });
  const bool stable = text_of([&](const ByteSink& out) { print_rmm_csv(parse_trace(again), {}, out); }) == again;
  CHECK(stable);

  const TraceLog theirs = parse_rmm_csv(
      "Thread,Time,Action,Pointer,Size,Stream\r\n"
      "140573312345856,12:00:01:000001,free,0x7f00,256,0x0\n"
      "1,12:00:01.5,allocate,0x7f8a40000000,1024,0x7f8a38001020\n"
      "\n"
      "1,12:00:02,allocate,0x7f8a40000400,2048,default\n"
      "2,1634567890.3,deallocate,0x7f8a40000000,1024,0x7f8a38001020\n"
      "1,12:00:03,allocate failure,(nil),4096,0\n"
      "1,12:00:04,allocate,0x7f8a40000400,512,0\n"
      "1,12:00:04,allocate,(nil),0,0\n"
      "1,12:00:04,free,(nil),0,0");
  REQUIRE(theirs.records.size() == 8);
  CHECK(theirs.info.preexisting == 1);
  CHECK(theirs.records[0].bytes == 256);
  CHECK(theirs.records[1].kind == TraceKind::free);
  CHECK(theirs.records[2].stream == 0x7f8a38001020);
  CHECK(theirs.records[5].kind == TraceKind::oom);
  CHECK(theirs.records[6].kind == TraceKind::free);  // its free was lost
  CHECK(theirs.records[6].bytes == 2048);
  CHECK(theirs.notes.size() == 3);
  auto error = [](const std::string& line) {
    return message_of<DataError>([&] { parse_rmm_csv("Thread,Time,Action,Pointer,Size,Stream\n" + line); });
  };
  CHECK(contains(error("1,0,allocate,0x1,5"), "line 2: has 5 fields"));
  CHECK(contains(error("1,0,steal,0x1,5,0"), "unknown action 'steal'"));
  CHECK(contains(error("1,0,allocate,0xg,5,0"), "the pointer is not a number"));
  CHECK(contains(error("1,0,allocate,0x1,-5,0"), "the size is not a number"));
  CHECK(contains(error("1,0,allocate,0x1,99999999999999999999,0"), "the size is not a number"));
  CHECK(contains(error("1,0,allocate,0x1,9000000000000000000,0"), "a size of"));
  CHECK(contains(error("1,0,allocate,0x1,5,north"), "the stream is not a number"));
  CHECK(contains(error(std::string(1000, ',')), "more than 64 fields"));
  CHECK_THROWS_AS(parse_rmm_csv(""), DataError);
  CHECK_THROWS_AS(parse_rmm_csv("a,b,c\n"), DataError);
}

TEST_CASE("MiniMalloc lists") {
  const std::string example =
      "id,lower,upper,size\n"
      "b1,0,3,4\n"
      "b2,3,9,4\n"
      "b3,0,9,4\n"
      "b4,9,21,4\n";
  const TraceLog log = parse_trace(example);
  REQUIRE(log.records.size() == 8);
  CHECK(log.name(log.records[0].name) == "b1");
  CHECK(ReplayScript(log).peak_live == 8);
  const std::string out = text_of([&](const ByteSink& sink) { print_minimalloc_csv(log, sink); });
  CHECK(out == "id,lower,upper,size\nb1,0,1,4\nb3,0,2,4\nb2,1,2,4\nb4,2,3,4\n");
  CHECK(text_of([&](const ByteSink& sink) { print_minimalloc_csv(parse_trace(out), sink); }) == out);

  const TraceLog random = random_log(13, 2000);
  const std::string text = text_of([&](const ByteSink& sink) { print_minimalloc_csv(random, sink); });
  const TraceLog back = parse_trace(text);
  CHECK(ReplayScript(back).peak_live == ReplayScript(random).peak_live);
  CHECK(ReplayScript(back).slots == ReplayScript(random).slots);
  CHECK(ReplayScript(back).allocations == ReplayScript(random).allocations);
  // More columns, in another order, as MiniMalloc's own results have them.
  const TraceLog columns = parse_trace("size, lower,upper,id,offset\n7,1,2,x,0\n");
  CHECK(columns.records[0].bytes == 7);
  auto error = [](const std::string& line) {
    return message_of<DataError>([&] { parse_minimalloc_csv("id,lower,upper,size\n" + line); });
  };
  CHECK(contains(error("a,3,3,1"), "lives nowhere"));
  CHECK(contains(error("a,4,3,1"), "lives nowhere"));
  CHECK(contains(error("a,0,3,0"), "lives nowhere"));
  CHECK(contains(error("a,0,3"), "has 3 fields"));
  CHECK(contains(error("a,x,3,1"), "lower is not a number"));
  CHECK_THROWS_AS(parse_minimalloc_csv("id,lower,size\n"), DataError);
  CHECK_THROWS_AS(parse_minimalloc_csv(""), DataError);
}
