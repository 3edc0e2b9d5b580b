// TaskList: how a kernel cuts its work, for predictions of how well a size fits the tiles (train/size_lab.h). From the
// same functions that the kernels are cut with, so it cannot differ from what runs. Nothing is computed here.
#pragma once

#include <vector>

namespace limpid::cpu {

// In multiply-adds, or elements of an elementwise operation.
struct TaskList {
  std::vector<double> tasks;  // what each one computes, padding included, in the order in which threads take them
  double useful = 0;          // what the result needs
  bool serial = false;        // too little work: one thread does all of them
};

}  // namespace limpid::cpu
