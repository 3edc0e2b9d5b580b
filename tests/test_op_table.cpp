#include <doctest/doctest.h>

#include "op_table.h"

#include <limpid/autograd/functions.h>
#include <limpid/autograd/gradcheck.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/base/file.h>
#include <limpid/tensor/fused_kernels.h>
#include <limpid/tensor/kernels.h>

#include <cmath>
#include <cstring>
#include <regex>
#include <set>

using namespace limpid;
using namespace limpid::test;

namespace {

void check_close(const OpRow& row, const OpSample& sample, const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  INFO(row.name << " / " << sample.label);
  REQUIRE(got.size() == want.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); i++) {
    double error = std::fabs(got[i] - want[i]) / (1 + std::fabs(want[i]));
    if (std::isnan(got[i]) != std::isnan(want[i])) error = INFINITY;
    if (!std::isnan(error)) worst = std::max(worst, error);
  }
  CHECK(worst <= tolerance);
}

Inputs as(const Inputs& inputs, DType dtype) {
  Inputs out;
  for (const Tensor& t : inputs) out.push_back(is_floating(t.dtype()) ? t.detach().to(dtype) : t);
  return out;
}

}  // namespace

TEST_CASE("every op agrees with its plain loop in float64") {
  std::size_t samples = 0;
  for (const OpRow& row : op_table()) {
    for (const OpSample& sample : row.samples) {
      NoGradGuard no_grad;
      check_close(row, sample, sample.run(sample.inputs).to_vector<double>(), sample.reference(sample.inputs), row.tolerance);
      samples++;
    }
  }
  MESSAGE(op_table().size() << " rows, " << samples << " samples");
}

TEST_CASE("every op agrees with its plain loop in float32, float16 and bfloat16") {
  struct Precision {
    DType dtype;
    double tolerance;
  };
  for (Precision p : {Precision{float32, 3e-5}, Precision{float16, 2e-3}, Precision{bfloat16, 1.6e-2}}) {
    for (const OpRow& row : op_table()) {
      // Steps of the result amplify rounding of the input: comparing these only makes sense on the rounded input itself.
      for (const OpSample& sample : row.samples) {
        if (sample.inputs.empty()) continue;
        NoGradGuard no_grad;
        Inputs rounded = as(sample.inputs, p.dtype);
        INFO(to_string(p.dtype));
        check_close(row, sample, sample.run(rounded).to_vector<double>(), sample.reference(as(rounded, float64)), p.tolerance);
      }
    }
  }
}

TEST_CASE("every differentiable op passes gradcheck on every sample") {
  for (const OpRow& row : op_table()) {
    if (!row.differentiable) continue;
    for (const OpSample& sample : row.samples) {
      INFO(row.name << " / " << sample.label);
      Tensor output = sample.run(sample.inputs);
      REQUIRE(output.requires_grad());
      if (output.numel() == 0) {  // nothing to perturb: the gradient must exist and be zero
        output.backward(zeros(output.shape(), {.dtype = float64}));
        continue;
      }
      GradcheckResult result = gradcheck(sample.run, sample.inputs);
      INFO(result.message);
      CHECK(result.ok);
    }
  }
}

TEST_CASE("gradients of float32, float16 and bfloat16 agree with float64") {
  struct Precision {
    DType dtype;
    double tolerance;
  };
  for (Precision p : {Precision{float32, 1e-4}, Precision{float16, 2e-3}, Precision{bfloat16, 1.6e-2}}) {
    for (const OpRow& row : op_table()) {
      if (!row.differentiable) continue;
      for (const OpSample& sample : row.samples) {
        std::vector<std::vector<double>> grads;
        for (DType dtype : {float64, p.dtype}) {
          Inputs in = as(as(sample.inputs, p.dtype), dtype);  // the values that the lower precision has
          for (Tensor& t : in) {
            if (is_floating(t.dtype())) t.requires_grad_();
          }
          Tensor y = sample.run(in);
          y.backward(full(y.shape(), 0.5, {.dtype = y.dtype()}));
          std::vector<double> all;
          for (Tensor& t : in) {
            if (!t.requires_grad()) continue;
            if (t.grad().defined()) CHECK(t.grad().dtype() == dtype);
            std::vector<double> g = t.grad().defined() ? t.grad().to_vector<double>() : std::vector<double>();
            all.insert(all.end(), g.begin(), g.end());
          }
          grads.push_back(all);
        }
        INFO(to_string(p.dtype));
        check_close(row, sample, grads[1], grads[0], p.tolerance);
      }
    }
  }
}

TEST_CASE("memory layout does not change results") {
  for (const OpRow& row : op_table()) {
    for (const OpSample& sample : row.samples) {
      NoGradGuard no_grad;
      Inputs moved;
      for (const Tensor& t : sample.inputs) {
        if (!is_floating(t.dtype()) || t.dim() == 0) {
          moved.push_back(t);
          continue;
        }
        // The same values as a view into a larger tensor with the dims in reverse memory order.
        std::vector<std::int64_t> reversed;
        for (int d = t.dim() - 1; d >= 0; d--) reversed.push_back(d);
        Tensor wide = pad(permute(t.detach(), reversed).contiguous(), {1, 2});
        moved.push_back(permute(narrow(wide, -1, 1, t.size(0)), reversed));
      }
      check_close(row, sample, sample.run(moved).to_vector<double>(), sample.run(sample.inputs).to_vector<double>(), 1e-13);
    }
  }
}

TEST_CASE("completeness: every public function has a row") {
  std::string text;
  for (const char* header : {"/autograd/functions.h", "/autograd/fused.h"}) {
    auto bytes = read_file(std::string(LIMPID_SOURCE_DIR) + header);
    text.append(bytes.begin(), bytes.end());
  }
  std::set<std::string> declared, covered;
  std::regex declaration("\nTensor (\\w+)\\(");
  for (auto it = std::sregex_iterator(text.begin(), text.end(), declaration); it != std::sregex_iterator(); ++it) declared.insert((*it)[1]);
  for (const OpRow& row : op_table()) covered.insert(row.name);
  REQUIRE(declared.size() > 80);
  for (const std::string& name : declared) {
    INFO(name);
    CHECK(covered.count(name) == 1);
  }
  for (const OpRow& row : op_table()) CHECK(!row.samples.empty());
  // Functions without a gradient are declared so here, and nowhere else.
  const std::set<std::string> no_gradient{"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "isfinite",
                                          "isnan", "argmax", "argmin", "any", "all", "one_hot"};
  for (const OpRow& row : op_table()) CHECK((no_gradient.count(row.name) == 1) == !row.differentiable);
}

TEST_CASE("completeness: every entry of the CPU kernel table is filled") {
  const auto check_filled = [](const auto& table) {
    const void* const* entries = reinterpret_cast<const void* const*>(&table);
    for (std::size_t i = 0; i < sizeof table / sizeof(void*); i++) {
      INFO("entry " << i);
      CHECK(entries[i] != nullptr);
    }
  };
  check_filled(cpu_kernels());
  check_filled(cpu_fused_kernels());
}
