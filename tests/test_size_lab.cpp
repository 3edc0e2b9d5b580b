// Single operations at odd sizes: the wave model's figures, tasks that are those of the kernels, when two costs agree.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include <limpid/base/error.h>
#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/cpu/gemm.h>
#include <limpid/train/size_lab.h>

using namespace limpid;
using namespace limpid::train;

namespace {

double sum_of(const cpu::TaskList& list) { return std::accumulate(list.tasks.begin(), list.tasks.end(), 0.0); }

cpu::TaskList linear_tasks(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return cpu::gemm_tasks({.m = rows, .n = out, .k = in, .a_row = in, .b_row = 1, .b_col = in, .c_row = out}, sizeof(float));
}

cpu::TaskList conv_tasks(const cpu::ConvDesc& desc) {
  return cpu::conv2d_forward_tasks(desc, cpu::plan_conv2d(cpu::ConvPass::forward, desc, sizeof(float)), sizeof(float));
}

SizeRow row(double predicted, double median, double iqr, std::int64_t timings = 25) {
  SizeRow r;
  r.size = 33;
  r.reference = 32;
  r.predicted_ratio = predicted;
  r.ratio = {median, median - iqr / 2, median + iqr / 2, timings};
  return r;
}

}  // namespace

TEST_CASE("waves of 128 x 128 tiles on 128 and 132 processors") {
  struct Figure {
    std::int64_t batch;
    double on_128, on_132;
  };
  for (const Figure& f : {Figure{31, 1.032, 1.065}, {32, 1.000, 1.031}, {33, 1.030, 1.000}, {63, 1.016, 1.015}, {64, 1.000, 1.031}, {65, 1.015, 1.015}}) {
    CAPTURE(f.batch);
    CHECK(card_cost(f.batch, 128) == doctest::Approx(f.on_128).epsilon(5e-4));
    CHECK(card_cost(f.batch, 132) == doctest::Approx(f.on_132).epsilon(5e-4));
  }
  // On 132 processors 33 costs a sample least, then 32, then 31: a power of two is no virtue.
  CHECK(card_cost(33, 132) <= card_cost(32, 132));
  CHECK(card_cost(32, 132) <= card_cost(31, 132));
  CHECK(waves(1, 132) == 132);
  CHECK_THROWS_AS(waves(0, 132), ArgumentError);
  CHECK_THROWS_AS(waves(1, 0), ArgumentError);
}

TEST_CASE("threads take tasks in order, and the last ones may leave some idle") {
  const cpu::TaskList three = {.tasks = {1, 1, 1}, .useful = 3};
  CHECK(task_cost(three, 1) == 1);
  CHECK(task_cost(three, 2) == doctest::Approx(4.0 / 3));
  CHECK(task_cost(three, 3) == 1);
  CHECK(task_cost(three, 6) == 2);
  // The long one last: the other thread waits for it. First: it does not.
  CHECK(task_cost({.tasks = {1, 1, 2}, .useful = 4}, 2) == doctest::Approx(1.5));
  CHECK(task_cost({.tasks = {2, 1, 1}, .useful = 4}, 2) == 1);
  CHECK(task_cost({.tasks = {1.5}, .useful = 1}, 1) == 1.5);  // padding
  CHECK(task_cost({.tasks = {1, 1}, .useful = 2, .serial = true}, 2) == 2);
  CHECK_THROWS_AS(task_cost({}, 2), ArgumentError);
  CHECK_THROWS_AS(task_cost(three, 0), ArgumentError);
}

TEST_CASE("the tasks of a product compute all of it, in whole panels of 16 columns") {
  CHECK(cpu::panel_columns(4) == 16);
  CHECK(cpu::panel_columns(8) == 8);
  for (std::int64_t n : {30, 31, 32, 33, 60, 64, 65, 700}) {
    CAPTURE(n);
    const cpu::TaskList list = linear_tasks(128, 64, n);
    CHECK(list.useful == 128 * 64 * static_cast<double>(n));
    CHECK(sum_of(list) == 128 * 64 * static_cast<double>((n + 15) / 16 * 16));
  }
  // 33 features cost as much as 48.
  CHECK(task_cost(linear_tasks(512, 64, 33), 1) / task_cost(linear_tasks(512, 64, 32), 1) == doctest::Approx(48.0 / 33));
  // Rows are never padded.
  for (std::int64_t rows : {31, 33, 97}) CHECK(task_cost(linear_tasks(rows, 256, 256), 1) == 1);
  // Batched products are a task each: 31 of them on two threads take 16 turns.
  auto batched = [](std::int64_t n) {
    return cpu::gemm_tasks({.m = 96, .n = 96, .k = 96, .a_row = 96, .b_row = 96, .c_row = 96, .batch = n, .a_batch = 96 * 96,
                            .b_batch = 96 * 96, .c_batch = 96 * 96}, sizeof(float));
  };
  CHECK(batched(31).tasks.size() == 31);
  for (std::int64_t n : {31, 32, 33, 63, 64, 65}) CHECK(task_cost(batched(n), 2) == doctest::Approx(waves(n, 2)));
  // Products too small to pack or to share.
  const cpu::TaskList small = linear_tasks(4, 8, 5);
  CHECK(small.serial);
  CHECK(sum_of(small) == small.useful);
  CHECK(cpu::gemm_tasks({}, 4).tasks.empty());
}

TEST_CASE("the tasks of a convolution: Winograd, direct, depthwise") {
  for (std::int64_t c : {16, 30, 32, 33, 64, 65, 160}) {
    CAPTURE(c);
    const double padded = static_cast<double>((c + 15) / 16 * 16) / static_cast<double>(c);
    const cpu::ConvDesc winograd = {.n = 4, .c = c, .h = 16, .w = 16, .k = c, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1};
    const cpu::ConvDesc direct = {.n = 4, .c = c, .h = 16, .w = 16, .k = c, .r = 5, .s = 5, .pad_h = 2, .pad_w = 2};
    REQUIRE(std::string(cpu::plan_conv2d(cpu::ConvPass::forward, winograd, 4).algorithm) == "winograd");
    REQUIRE(std::string(cpu::plan_conv2d(cpu::ConvPass::forward, direct, 4).algorithm) == "direct");
    for (const cpu::ConvDesc& d : {winograd, direct}) {
      const cpu::TaskList list = conv_tasks(d);
      CHECK(list.useful == static_cast<double>(4 * 16 * 16 * c * c * d.r * d.s));
      CHECK(sum_of(list) / list.useful == doctest::Approx(padded));
    }
  }
  // Tiles of 4 x 4 that stick out of the image are computed as well.
  const cpu::TaskList edge = conv_tasks({.n = 2, .c = 16, .h = 14, .w = 14, .k = 16, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1});
  CHECK(sum_of(edge) / edge.useful == doctest::Approx(16.0 * 16 / (14 * 14)));
  const cpu::TaskList depthwise = conv_tasks({.n = 2, .c = 32, .h = 8, .w = 8, .k = 32, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1, .groups = 32});
  CHECK(depthwise.tasks.size() == 16);
  CHECK(sum_of(depthwise) == depthwise.useful);
}

TEST_CASE("agree, disagree, or too noisy to tell") {
  CHECK(judge(row(1.03, 1.03, 0.02)) == Verdict::agree);
  CHECK(judge(row(1.03, 1.05, 0.02)) == Verdict::agree);
  CHECK(judge(row(1.03, 1.01, 0.02)) == Verdict::agree);
  CHECK(judge(row(1.03, 1.07, 0.02)) == Verdict::disagree);
  CHECK(judge(row(1.03, 0.98, 0.02)) == Verdict::disagree);
  CHECK(judge(row(1.03, 1.07, 0.20)) == Verdict::noisy);   // known to 0.063 only
  CHECK(judge(row(1.03, 1.03, 0.20)) == Verdict::noisy);   // near by chance
  CHECK(judge(row(1.03, 1.30, 0.20)) == Verdict::disagree);
  CHECK(row(1, 1, 0.1).noise() == doctest::Approx(1.57 * 0.1 / 5));
  SizeRow reference = row(1, 1, 0);
  reference.size = 32;
  CHECK(judge(reference) == Verdict::reference);
}

TEST_CASE("a small lab: references, verdicts, text and JSON") {
  SizeLabSettings s;
  s.batches = {15, 16, 17};
  s.channels = {16, 17};
  s.rounds = 2;
  s.warmup = 0;
  s.threads = 2;
  s.least_seconds = 0;
  const SizeLab lab = size_lab(s);
  REQUIRE(lab.experiments.size() == 7);
  const std::vector<std::string> ops = {"matmul", "linear", "conv2d", "relu", "dropout", "conv2d", "linear"};
  for (std::size_t i = 0; i < ops.size(); i++) {
    const SizeExperiment& e = lab.experiments[i];
    CAPTURE(e.op);
    CHECK(e.op == ops[i]);
    CHECK(e.rows.size() == (i == 0 ? 3 : i < 5 ? 5 : 2));
    for (const SizeRow& r : e.rows) {
      CHECK(r.seconds.count == 2);
      CHECK(r.per_unit > 0);
      CHECK(r.predicted >= 1);
      CHECK(r.reference == 16);
      CHECK((r.verdict == Verdict::reference) == (r.size == 16));
      CHECK(r.verdict == judge(r));
      if (r.size == 16) CHECK(r.ratio.median == 1);
    }
  }
  CHECK(lab.experiments[0].rows[0].predicted_ratio == doctest::Approx(16.0 / 15));
  CHECK(lab.experiments[5].rows[1].predicted_ratio > 1.5);  // 32 channels computed for 17
  CHECK(lab.count(Verdict::reference) == 7);
  const nlohmann::json json = nlohmann::json::parse(to_json(lab));
  CHECK(json["experiments"][0]["rows"][0]["predicted_132_processors"].get<double>() == card_cost(15, 132));
  CHECK(json["agree"].get<int>() + json["disagree"].get<int>() + json["noisy"].get<int>() == 20);
  const std::string text = to_string(lab);
  CHECK(text.find("\nmatmul\n======\n[n,96,96] x [n,96,96], cost per sample\n") != std::string::npos);
  // Both experiments of an operation stand under its name, and what nobody asked for is said to be added.
  CHECK(text.find("\nlinear\n======\n[n,256] -> [n,256], cost per sample; besides the sizes asked for: 60 and 62\n") !=
        std::string::npos);
  CHECK(text.find("\nlinear\n", text.find("\nlinear\n") + 1) == std::string::npos);
  CHECK(text.find("[128,c] -> [128,c], cost per multiply-add\n") < text.find("\nconv2d\n"));
  CHECK(lab.experiments[0].added.empty());
  CHECK(lab.experiments[1].added == std::vector<std::int64_t>{60, 62});
  CHECK(lab.experiments[6].added.empty());
  CHECK(json["experiments"][1]["added"] == nlohmann::json({60, 62}));
  s.batches = {};
  CHECK_THROWS_AS(size_lab(s), ArgumentError);
  s.batches = {5000};
  CHECK_THROWS_WITH_AS(size_lab(s), "[size_lab] sizes are from 1 to 4096, got 5000", ArgumentError);
  s.batches = {8};
  s.rounds = 0;
  CHECK_THROWS_AS(size_lab(s), ArgumentError);
  s.rounds = INT64_MAX;
  CHECK_THROWS_AS(size_lab(s), ArgumentError);
}
