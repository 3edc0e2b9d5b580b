#include <limpid/tensor/safetensors.h>

#include <cstring>
#include <limits>

#include <limpid/tensor/creation.h>
#include <limpid/tensor/raw.h>

#include "data_test.h"

using namespace limpid;
using namespace data_test;

namespace {

Bytes with_header(const std::string& header, std::size_t data_bytes) {
  Bytes out(8 + header.size() + data_bytes, 1);
  const std::uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  if (!header.empty()) std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

std::string message_of(const std::string& path) {
  try {
    load_safetensors(path);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

void refused(const TemporaryFolder& folder, const std::string& header, std::size_t data_bytes,
             const std::string& expected) {
  CAPTURE(header);
  write_bytes(folder / "bad", with_header(header, data_bytes));
  const std::string message = message_of(folder / "bad");
  CHECK_MESSAGE(message.find(expected) != std::string::npos, message);
  CHECK(message.find(folder / "bad") != std::string::npos);
}

}  // namespace

TEST_CASE("safetensors: what is written is read back, bit for bit") {
  TemporaryFolder folder;
  Generator random(3);
  std::map<std::string, Tensor> tensors;
  tensors["f32"] = randn({3, 1, 5}, {}, random);
  tensors["f64"] = randn({7}, {.dtype = float64}, random);
  tensors["f16"] = raw::cast(randn({3}, {}, random), float16);
  tensors["bf16"] = raw::cast(randn({5}, {}, random), bfloat16);
  tensors["i64"] = from_vector<std::int64_t>({INT64_MIN, -1, INT64_MAX}, {3});
  tensors["i32"] = from_vector<std::int32_t>({-5, 5}, {2, 1});
  tensors["u8"] = from_vector<std::uint8_t>({0, 255, 7}, {3});
  tensors["bool"] = raw::cast(from_vector<std::int32_t>({0, 1, 1}, {3}), DType::boolean);
  tensors["empty"] = empty({0, 3});
  tensors["scalar"] = full({}, 2.5);
  tensors["a name with \"quotes\" and \xc3\xa9"] = ones({1});
  save_safetensors(folder / "x", tensors, {{"format", "pt"}, {"note", "line\nbreak"}});

  std::map<std::string, std::string> metadata{{"stale", "x"}};
  auto loaded = load_safetensors(folder / "x", &metadata);
  CHECK(metadata == std::map<std::string, std::string>{{"format", "pt"}, {"note", "line\nbreak"}});
  REQUIRE(loaded.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    REQUIRE(loaded.count(name) == 1);
    const Tensor& other = loaded[name];
    CHECK(other.shape() == tensor.shape());
    CHECK(other.dtype() == tensor.dtype());
    if (tensor.numel() > 0) CHECK(std::memcmp(other.raw_data(), tensor.raw_data(), tensor.nbytes()) == 0);
  }
  Bytes bytes = read_bytes(folder / "x");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  CHECK(header % 8 == 0);
  save_safetensors(folder / "y", tensors, {{"note", "line\nbreak"}, {"format", "pt"}});
  CHECK(read_bytes(folder / "y") == bytes);
}

TEST_CASE("safetensors: strided tensors are written row-major") {
  TemporaryFolder folder;
  Tensor base = arange(24, {.dtype = float32});
  Tensor x = raw::permute(raw::reshape(base, {2, 3, 4}), {2, 0, 1});
  Tensor channels_last = empty({2, 3, 4, 5}, {}, MemoryFormat::channels_last);
  raw::copy(channels_last, raw::reshape(arange(120, {.dtype = float32}), {2, 3, 4, 5}));
  Tensor expanded = raw::expand("expand", raw::reshape(arange(3, {.dtype = float32}), {1, 3}), {2, 3});
  Tensor part = raw::narrow(base, 0, 5, 4);
  save_safetensors(folder / "x", {{"x", x}, {"cl", channels_last}, {"expanded", expanded}, {"part", part}});
  auto loaded = load_safetensors(folder / "x");
  CHECK(loaded["x"].to_vector<float>() == x.to_vector<float>());
  CHECK(loaded["cl"].to_vector<float>() == channels_last.to_vector<float>());
  CHECK(loaded["cl"].to_vector<float>()[119] == 119.0f);
  CHECK(loaded["expanded"].to_vector<float>() == std::vector<float>{0, 1, 2, 0, 1, 2});
  CHECK(loaded["part"].to_vector<float>() == std::vector<float>{5, 6, 7, 8});
}

TEST_CASE("safetensors: a file of Python's library is read") {
  std::map<std::string, std::string> metadata;
  auto loaded = load_safetensors(LIMPID_TEST_DATA "/from_python.safetensors", &metadata);
  CHECK(metadata == std::map<std::string, std::string>{{"format", "pt"}, {"made by", "golden script"}});
  REQUIRE(loaded.size() == 10);
  CHECK(loaded["f64"].shape() == Shape{2, 3});
  CHECK(loaded["f32"].shape() == Shape{2, 1, 3});
  CHECK(loaded["scalar"].shape() == Shape{});
  CHECK(loaded["empty"].shape() == Shape{0, 4});
  const std::pair<const char*, DType> floats[] = {
      {"f64", float64}, {"f32", float32}, {"f16", float16}, {"bf16", bfloat16}, {"scalar", float32}};
  for (const auto& [name, dtype] : floats) {
    CAPTURE(name);
    CHECK(loaded[name].dtype() == dtype);
    auto values = loaded[name].to_vector<double>();
    for (std::size_t i = 0; i < values.size(); i++) CHECK(values[i] == static_cast<double>(i) * 0.5 - 1);
  }
  CHECK(loaded["i64"].to_vector<std::int64_t>() == std::vector<std::int64_t>{-1, 0, 1, 2});
  CHECK(loaded["i32"].to_vector<std::int64_t>() == std::vector<std::int64_t>{-1, 0, 1});
  CHECK(loaded["i32"].dtype() == int32);
  CHECK(loaded["u8"].to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(loaded["bool"].to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 0});
  CHECK(loaded["bool"].dtype() == DType::boolean);
}

TEST_CASE("safetensors: each fault of a header has its message") {
  TemporaryFolder folder;
  const std::string f32 = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  write_bytes(folder / "good", with_header(f32, 8));
  CHECK(load_safetensors(folder / "good").size() == 1);
  write_bytes(folder / "none", with_header("{}  ", 0));
  CHECK(load_safetensors(folder / "none").empty());

  refused(folder, f32, 7, "lies at bytes 0..8 of 7");
  refused(folder, f32, 9, "end at byte 8 of the data, the file goes on to 9");
  refused(folder, "", 0, "not a JSON object");
  refused(folder, "[]", 0, "not a JSON object");
  refused(folder, " {}", 0, "not a JSON object");
  refused(folder, "{\"a\":", 0, "not JSON");
  refused(folder, "{} x", 0, "not JSON");
  refused(folder, "{\"\xff\":1}", 0, "not JSON");
  refused(folder, R"({"a":{"b":{"c":{"d":{"e":{}}}}}})", 0, "nested too deep");
  refused(folder, R"({"a":1})", 0, "does not have exactly dtype, shape and data_offsets");
  refused(folder, R"({"a":{"dtype":"F32","shape":[2]}})", 0, "does not have exactly");
  refused(folder, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8, "does not have exactly");
  refused(folder, R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", 2, "unknown dtype \"F8_E4M3\"");
  refused(folder, R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,2]}})", 2, "dtype of tensor \"a\" is not a string");
  refused(folder, R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8, "is not a list");
  refused(folder, R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "not a whole number >= 0: \"-2\"");
  refused(folder, R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "not a whole number >= 0: \"2.0\"");
  refused(folder, R"({"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}})", 8, "not a whole number");
  refused(folder, R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "overflows");
  refused(folder, R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8, "overflows");
  refused(folder, R"({"a":{"dtype":"F32","shape":[4611686018427387904,2,0],"data_offsets":[0,0]}})", 0, "overflows");
  refused(folder, R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
          "9 dims, more than 8");
  refused(folder, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "is not a pair");
  refused(folder, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", 8, "not a whole number");
  refused(folder, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "lies at bytes 8..0");
  refused(folder, R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "needs 12 bytes, its offsets span 8");
  refused(
      folder,
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6,
      "starts at byte 2, inside the one before, which ends at 4");
  refused(
      folder,
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9,
      "starts at byte 5, leaving a hole after 4");
  refused(folder, R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5, "leaving a hole after 0");
  refused(
      folder,
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2,
      "\"a\" stands twice");
  refused(folder, R"({"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, "\"dtype\" stands twice");
  refused(folder, R"({"__metadata__":[]})", 0, "__metadata__ is not an object");
  refused(folder, R"({"__metadata__":{"k":1}})", 0, "metadata \"k\" is not a string");
  Bytes flags = with_header(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  flags.back() = 2;
  write_bytes(folder / "bool", flags);
  CHECK(message_of(folder / "bool").find("element 1 of the BOOL tensor \"a\" is 2") != std::string::npos);

  Bytes huge(16, 0xff);
  write_bytes(folder / "huge", huge);
  CHECK(message_of(folder / "huge").find("claims 18446744073709551615 bytes") != std::string::npos);
  Bytes longer = with_header(f32, 8);
  longer[0] = 200;
  write_bytes(folder / "longer", longer);
  CHECK(message_of(folder / "longer").find("claims 200 bytes") != std::string::npos);
  CHECK_THROWS_AS(load_safetensors(folder / "missing"), IoError);
  CHECK_THROWS_AS(load_safetensors(folder.path()), Error);
}

TEST_CASE("safetensors: writing refuses what cannot be written and leaves the old file") {
  TemporaryFolder folder;
  save_safetensors(folder / "x", {{"a", ones({2})}});
  const Bytes before = read_bytes(folder / "x");
  CHECK_THROWS_AS(save_safetensors(folder / "x", {{"a", Tensor()}}), ArgumentError);
  CHECK_THROWS_AS(save_safetensors(folder / "x", {{"__metadata__", ones({2})}}), ArgumentError);
  CHECK_THROWS_AS(save_safetensors(folder / "x", {{"\xff", ones({2})}}), ArgumentError);
  CHECK_THROWS_AS(save_safetensors(folder / "x", {{"a", ones({2})}}, {{"k", "\xff"}}), ArgumentError);
  CHECK(read_bytes(folder / "x") == before);
  CHECK_THROWS_AS(save_safetensors(folder / "no/such/folder", {{"a", ones({2})}}), IoError);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) files += entry.exists() ? 1 : 0;
  CHECK(files == 1);
}

namespace {

void fuzz(int rounds, std::uint64_t seed) {
  TemporaryFolder folder;
  save_safetensors(folder / "x",
                   {{"weight", ones({2, 3})}, {"bias", arange(3)}, {"b", full({2}, 1, {.dtype = DType::boolean})}},
                   {{"format", "pt"}});
  const Bytes good = read_bytes(folder / "x");
  auto read = [&](const Bytes& bytes) {
    write_bytes(folder / "damaged", bytes);
    load_safetensors(folder / "damaged");
  };
  if (seed == 1) cut_everywhere(good, read);
  CHECK(damage(good, seed, rounds, read) > rounds / 2);
}

}  // namespace

TEST_CASE("safetensors: cut or damaged files give errors only") { fuzz(2000, 1); }
TEST_CASE("long: safetensors: many damaged files") { fuzz(100000, 2); }
