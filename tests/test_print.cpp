// Tensors as text.
#include "tensor_test.h"

using namespace tensor_test;

TEST_CASE("small tensors") {
  CHECK(format_tensor(from({3}, {})) == "3.");
  CHECK(format_tensor(from({1, 2, 3}, {3})) == "[1., 2., 3.]");
  CHECK(format_tensor(from({1, 2.5, -3}, {3})) == "[ 1.0,  2.5, -3.0]");
  CHECK(format_tensor(from({1, 2, 3, 4}, {2, 2}, int64)) == "[[1, 2],\n [3, 4]]");
  CHECK(format_tensor(from({1, -20, 3, 4}, {2, 2}, int32)) == "[[  1, -20],\n [  3,   4]]");
  CHECK(format_tensor(from({1, 0}, {2}, boolean)) == "[ true, false]");
  CHECK(format_tensor(from({1, 0}, {2, 1, 1}, uint8)) == "[[[1]],\n\n [[0]]]");
}

TEST_CASE("precision and scientific notation") {
  CHECK(format_tensor(from({0.1234567, 12}, {2})) == "[ 0.1235, 12.0000]");
  CHECK(format_tensor(from({0.1234567, 12}, {2}), 2) == "[ 0.12, 12.00]");
  CHECK(format_tensor(from({1e-7, 1}, {2})) == "[1.e-07, 1.e+00]");
  CHECK(format_tensor(from({1.5e12, 1}, {2})) == "[1.5e+12, 1.0e+00]");
  CHECK(format_tensor(from({std::nan(""), HUGE_VAL, -HUGE_VAL, 1}, {4})) == "[ nan,  inf, -inf,   1.]");
  CHECK(format_tensor(from({0, 0}, {2}, float16)) == "[0., 0.]");
  CHECK(format_tensor(from({0.1}, {1}, float32)) == "[0.1]");
  CHECK_THROWS_AS(format_tensor(from({1}, {1}), -1), ArgumentError);
}

TEST_CASE("views print in logical order") {
  Tensor x = from({1, 2, 3, 4, 5, 6}, {2, 3}, int64);
  CHECK(format_tensor(raw::transpose(x, 0, 1)) == "[[1, 4],\n [2, 5],\n [3, 6]]");
  CHECK(format_tensor(raw::narrow(x, 1, 1, 1)) == "[[2],\n [5]]");
}

TEST_CASE("empty and undefined") {
  CHECK(format_tensor(raw::empty({0}, float32, kCpu)) == "[]");
  CHECK(format_tensor(raw::empty({2, 0}, float32, kCpu)) == "[] [2,0]");
  CHECK(format_tensor(Tensor()) == "undefined");
}

TEST_CASE("large tensors are abbreviated, long lines broken") {
  std::vector<double> many(1001);
  for (std::size_t i = 0; i < many.size(); i++) many[i] = static_cast<double>(i);
  CHECK(format_tensor(from(many, {1001}, int64)) == "[   0,    1,    2, ...,  998,  999, 1000]");
  Tensor square = from(std::vector<double>(10000, 7), {100, 100}, int64);
  CHECK(format_tensor(square) ==
        "[[7, 7, 7, ..., 7, 7, 7],\n [7, 7, 7, ..., 7, 7, 7],\n [7, 7, 7, ..., 7, 7, 7],\n ...,\n"
        " [7, 7, 7, ..., 7, 7, 7],\n [7, 7, 7, ..., 7, 7, 7],\n [7, 7, 7, ..., 7, 7, 7]]");
  std::string text = format_tensor(from(std::vector<double>(60, 1234), {60}, int64));
  std::size_t start = 0;
  while (start < text.size()) {
    std::size_t end = std::min(text.find('\n', start), text.size());
    CHECK(end - start <= 80);
    start = end + 1;
  }
  CHECK(text.find('\n') != std::string::npos);
}
