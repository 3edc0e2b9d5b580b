// Progress of a training run on stderr: a bar that is redrawn on a terminal, plain lines in a pipe or file.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <limpid/train/trainer.h>

namespace limpid::cli {

class Progress : public train::TrainObserver {
 public:
  explicit Progress(bool quiet);
  ~Progress() override;
  void on_plan(const train::EpochPlan& plan) override;
  void on_start(std::int64_t first_step, std::int64_t total_steps, std::int64_t steps_an_epoch) override;
  void on_step(const train::StepRecord& record) override;
  void on_epoch(const train::EpochRecord& record) override;
  void on_leak(const memory::LeakReport& report) override { warning(memory::to_string(report)); }
  void on_skip(const train::StepRecord& record, const std::string& what) override;
  void on_retry(std::int64_t step, const train::OomRetry& retry) override;
  void on_evaluation(const char* what, std::int64_t done, std::int64_t total) override;
  void message(const std::string& text);  // a line of its own
  void warning(const std::string& text);  // the same, in a quiet run too

 private:
  // Whether this loss means divergence: not finite, or far above the first one. The first such loss is warned of.
  bool has_diverged(double loss, const std::string& what);
  void draw(const std::string& line);
  void clear();
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  std::int64_t total_steps_ = 0, steps_an_epoch_ = 1;
  // Since the last line: smooths the figures shown.
  double loss_ = 0, accuracy_ = 0, seconds_ = 0;
  std::int64_t samples_ = 0;
  std::chrono::steady_clock::time_point last_draw_ = std::chrono::steady_clock::now();
  double first_loss_ = 0;  // of the first step seen; 0: none yet
  bool diverged_ = false;  // told
};

}  // namespace limpid::cli
