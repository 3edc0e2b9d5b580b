// Runs a planted bug and checks what is reported.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/device_buffer.h>
#include <cudasim/emulator.h>
#include <cudasim/planted_bugs.h>

namespace limpid::cudasim {

// "planted_bugs.cu:LINE" of the comment that marks the bug; a bug without one may be reported on any line of its kernel.
inline std::string expected_place(const PlantedBug& bug) {
  std::ifstream source(LIMPID_SOURCE_DIR "/tests/cudasim/planted_bugs.cu");
  std::string line;
  const std::string mark = std::string("// bug: ") + bug.name;
  for (int number = 1; std::getline(source, line); number++) {
    if (line.size() >= mark.size() && line.compare(line.size() - mark.size(), mark.size(), mark) == 0) {
      return "planted_bugs.cu:" + std::to_string(number);
    }
  }
  return "planted_bugs.cu:";
}

// The launch fails, and the finding names a line of the file. In forward order it is the bug's error, sentence and line; in
// others a race may show at its other access, and a thread that left too early as a deadlock.
inline bool finds(const PlantedBug& bug) {
  clear_finding();
  DeviceBuffer<float> x(std::vector<float>(256, 1.0f)), y(256);
  const cudaError_t error = bug.run(x.data(), y.data(), nullptr);
  const std::string text = finding();
  clear_finding();
  INFO("planted bug ", std::string(bug.name), ", order ", std::string(name_of(config().order)), ": ", text);
  CHECK(error != cudaSuccess);
  CHECK(text.find("planted_bugs.cu:") != std::string::npos);
  if (config().order == Order::forward) {
    CHECK(error == bug.error);
    CHECK(text.find(bug.says) != std::string::npos);
    CHECK_MESSAGE(text.find(expected_place(bug)) != std::string::npos, "expected at ", expected_place(bug));
  }
  return error != cudaSuccess;
}

}  // namespace limpid::cudasim
