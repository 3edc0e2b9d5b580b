#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <limpid/base/format.h>

namespace limpid::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A pipe gets a line at least this seldom.
constexpr double kPlainSeconds = 10;
constexpr double kBarSeconds = 0.1;
// A loss this many times the first step's is no training any more.
constexpr double kDiverged = 1e3;

std::string bar(double fraction) {
  constexpr int kWidth = 20;
  const int full = std::clamp(static_cast<int>(fraction * kWidth), 0, kWidth);
  return "[" + std::string(static_cast<std::size_t>(full), '#') +
         std::string(static_cast<std::size_t>(kWidth - full), '.') + "]";
}

}  // namespace

Progress::Progress(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::on_plan(const train::EpochPlan& plan) {
  message("epoch  " + train::to_string(plan));
  if (const std::string text = train::batch_warning(plan); !text.empty()) warning(text);
}

void Progress::on_skip(const train::StepRecord& r, const std::string& what) {
  message(concat("step ", r.step, " was skipped, loss scale ", r.scale, ": ", what.empty() ? "a gradient was not finite" : what));
}

void Progress::on_retry(std::int64_t step, const train::OomRetry& r) {
  warning(concat("step ", step, " ran out of memory (", r.where, ", ", format_bytes(r.requested), ") with micro-batches of ",
                 r.micro_batch, "; it was taken back and made again with ", r.next_micro_batch, "; ",
                 r.released_segments, " cached segments (", format_bytes(r.released_bytes), ") went back to the device"));
}

void Progress::on_start(std::int64_t first_step, std::int64_t total_steps, std::int64_t steps_an_epoch) {
  total_steps_ = total_steps;
  steps_an_epoch_ = std::max<std::int64_t>(steps_an_epoch, 1);
  last_draw_ = Clock::now();
  if (first_step > 0) message(concat("resuming at step ", first_step, " of ", total_steps));
}

bool Progress::has_diverged(double loss, const std::string& what) {
  const bool finite = std::isfinite(loss);
  if (finite && (first_loss_ <= 0 || loss <= kDiverged * first_loss_)) return false;
  if (!diverged_) {
    warning(concat("the loss of ", what, " is ",
                   finite ? concat(loss, ", over ", kDiverged, " times that of the first step, ", first_loss_)
                          : std::string("not finite"),
                   ": the training has diverged; try a lower --lr, --warmup or --clip"));
  }
  return diverged_ = true;
}

void Progress::on_step(const train::StepRecord& r) {
  if (r.applied) {  // a skipped step changed nothing
    if (first_loss_ == 0 && std::isfinite(r.loss)) first_loss_ = r.loss;
    has_diverged(r.loss, concat("step ", r.step));
  }
  if (quiet_) return;
  const auto n = static_cast<double>(r.samples);
  loss_ += r.loss * n;
  accuracy_ += r.accuracy * n;
  samples_ += r.samples;
  seconds_ += r.seconds;
  const Clock::time_point now = Clock::now();
  if (std::chrono::duration<double>(now - last_draw_).count() < (terminal_ ? kBarSeconds : kPlainSeconds)) return;
  last_draw_ = now;
  const double samples = static_cast<double>(samples_);
  const std::int64_t in_epoch = r.step - r.epoch * steps_an_epoch_ + 1;
  char text[256];
  std::snprintf(text, sizeof text, "epoch %lld %s %lld/%lld  loss %.4f  accuracy %.1f %%  %.0f samples/s  memory without io %s",
                static_cast<long long>(r.epoch + 1),
                terminal_ ? bar(static_cast<double>(in_epoch) / static_cast<double>(steps_an_epoch_)).c_str() : "step",
                static_cast<long long>(in_epoch), static_cast<long long>(steps_an_epoch_), loss_ / samples,
                100 * accuracy_ / samples, seconds_ > 0 ? samples / seconds_ : 0.0,
                format_bytes(r.reserved_bytes).c_str());
  if (terminal_) {
    draw(text);
    // An average over about the last hundred drawings.
    loss_ *= 0.9, accuracy_ *= 0.9, seconds_ *= 0.9;
    samples_ = static_cast<std::int64_t>(samples * 0.9);
  } else {
    message(text);
    loss_ = accuracy_ = seconds_ = 0;
    samples_ = 0;
  }
}

void Progress::on_epoch(const train::EpochRecord& r) {
  const bool diverged = has_diverged(r.validation ? r.validation->loss : r.train_loss,
                                     concat(r.validation ? "the validation after epoch " : "epoch ", r.epoch + 1));
  char text[256];
  int n = std::snprintf(text, sizeof text, "epoch %lld: train loss %.4f, accuracy %.2f %%",
                        static_cast<long long>(r.epoch + 1), r.train_loss, 100 * r.train_accuracy);
  std::string line(text, static_cast<std::size_t>(n));
  if (r.validation) {
    n = std::snprintf(text, sizeof text, "; validation loss %.4f, accuracy %.2f %%%s", r.validation->loss,
                      100 * r.validation->accuracy, r.best && !diverged ? " (best)" : "");
    line.append(text, static_cast<std::size_t>(n));
  }
  n = std::snprintf(text, sizeof text, "; %.1f s", r.seconds);
  line.append(text, static_cast<std::size_t>(n));
  message(line);
  loss_ = accuracy_ = seconds_ = 0;
  samples_ = 0;
}

void Progress::on_evaluation(const char* what, std::int64_t done, std::int64_t total) {
  if (quiet_) return;
  const Clock::time_point now = Clock::now();
  if (std::chrono::duration<double>(now - last_draw_).count() < (terminal_ ? kBarSeconds : kPlainSeconds)) return;
  last_draw_ = now;
  if (terminal_) {
    draw(concat(what, " ", bar(static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total, 1))), " ",
                done, "/", total));
  } else {
    message(concat(what, ": ", done, " of ", total, " samples"));
  }
}

void Progress::message(const std::string& text) {
  if (quiet_) return;
  clear();
  std::fprintf(stderr, "%s\n", printable_lines(text).c_str());
}

void Progress::warning(const std::string& text) {
  clear();
  std::fprintf(stderr, "limpid: warning: %s\n", printable_lines(text).c_str());
}

void Progress::draw(const std::string& line) {
  winsize window{};
  std::size_t width = 80;
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) width = window.ws_col;
  std::fprintf(stderr, "\r\033[K%s", line.substr(0, width - 1).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace limpid::cli
