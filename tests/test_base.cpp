#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/base/format.h>
#include <limpid/base/names.h>
#include <limpid/base/scope.h>

#include <cstdlib>
#include <filesystem>

using namespace limpid;

TEST_CASE("concat joins numbers, text and booleans") {
  CHECK(concat("[op] ", 3, " of ", 0.5, ' ', true, " ", std::string("x")) == "[op] 3 of 0.5 true x");
}

TEST_CASE("LIMPID_CHECK throws the named kind with message and place") {
  try {
    LIMPID_CHECK(1 == 2, ShapeError, "[op] expected ", 2, ", got ", 1);
    FAIL("did not throw");
  } catch (const ShapeError& e) {
    CHECK(e.message() == "[op] expected 2, got 1");
    CHECK(e.where().find("test_base.cpp:") != std::string::npos);
  }
}

TEST_CASE("names are interned once") {
  CHECK(intern("") == 0);
  NameId a = intern("base.test.a");
  CHECK(a == intern("base.test.a"));
  CHECK(a != intern("base.test.b"));
  CHECK(name_of(a) == "base.test.a");
  CHECK(name_of(0xffffffffu) == "?");
}

TEST_CASE("scopes restore what they replaced") {
  Scope before = current_scope();
  {
    OpScope op(intern("conv2d"));
    PhaseScope phase(Phase::backward);
    CHECK(current_scope().op == intern("conv2d"));
    CHECK(current_scope().phase == Phase::backward);
  }
  CHECK(current_scope().op == before.op);
  CHECK(current_scope().phase == before.phase);
}

TEST_CASE("bytes are printed and parsed in powers of two") {
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(std::uint64_t{3} << 30) == "3.00 GiB");
  CHECK(format_count(-1234567) == "-1,234,567");
  CHECK(printable("a\x1b[31m\n\x7f \xc2\x9b \xc3\xa9 \xff\xe2\x82") ==
        "a\\x1b[31m\\x0a\\x7f \\xc2\\x9b \xc3\xa9 \\xff\\xe2\\x82");
  CHECK(printable_lines("a\tb\nc\n") == "a\\x09b\nc\n");
  CHECK(parse_bytes("2GiB", "--cap") == std::uint64_t{2} << 30);
  CHECK(parse_bytes("1.5KiB", "--cap") == 1536);
  for (const char* bad : {"", "x", "-1", "0", "2GB", "nan", "1e300GiB", "3MiBs"}) {
    CHECK_THROWS_AS(parse_bytes(bad, "--cap"), ArgumentError);
  }
}

TEST_CASE("a file is written whole or not at all") {
  auto dir = std::filesystem::temp_directory_path() / ("limpid_base_" + std::to_string(std::rand()));
  std::filesystem::create_directories(dir);
  std::string path = (dir / "f").string();
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("new, never committed");
  }
  auto bytes = read_file(path);
  CHECK(std::string(bytes.begin(), bytes.end()) == "old");
  CHECK(std::distance(std::filesystem::directory_iterator(dir), {}) == 1);
  CHECK_THROWS_AS(read_file(path, 2), IoError);
  CHECK_THROWS_AS(read_file((dir / "none").string()), IoError);
  CHECK_THROWS_AS(read_file(dir.string()), IoError);
  CHECK_THROWS_AS(write_file_atomically((dir / "none" / "f").string(), "x"), IoError);
  std::filesystem::remove_all(dir);
}

TEST_CASE("AtomicFile writes through a link, and never replaces what is not a regular file") {
  const std::string folder = std::filesystem::temp_directory_path() / ("limpid_atomic_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  write_file_atomically(folder + "/target", "old");
  std::filesystem::create_symlink("target", folder + "/link");
  write_file_atomically(folder + "/link", "new");
  CHECK(std::filesystem::is_symlink(folder + "/link"));
  const auto bytes = read_file(folder + "/target");
  CHECK(std::string(bytes.begin(), bytes.end()) == "new");
  REQUIRE(::mkfifo((folder + "/pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(write_file_atomically(folder + "/pipe", "x"), IoError);
  CHECK(std::filesystem::is_fifo(folder + "/pipe"));
  CHECK_THROWS_AS(write_file_atomically("/dev/full", "x"), IoError);
  CHECK(std::filesystem::is_character_file("/dev/full"));
  std::filesystem::remove_all(folder);
}
