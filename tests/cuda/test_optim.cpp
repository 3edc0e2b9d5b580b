// Optimizer steps, scaling and unscaling against the CPU's kernel table: several steps, tensors of many lengths, all
// dtypes.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/cuda/kernels/optim.cuh>
#include <tensor_test.h>

#include "device_tensor.h"

using namespace limpid;
using namespace limpid::cudasim;
using namespace tensor_test;

namespace {

// Parameters on the host and on the device. Lengths below, at and above a group, a piece and a table; one starts at an
// odd address.
struct Parameters {
  std::vector<OptimChunk> host;
  std::vector<std::unique_ptr<DeviceTensor>> params, grads, states[3];

  Parameters(DType dtype, DType state_dtype, int states_used, int count) {
    static const std::int64_t kLengths[] = {1, 7, 33, 96, 4103, 0, 64};
    for (int i = 0; i < count; i++) {
      const std::int64_t n = i < 7 ? kLengths[i] : i % 5 + 1;
      OptimChunk chunk;
      const Tensor all = from(random_numbers(n + 1, -1, 1, 10 + unsigned(i)), {n + 1}, dtype);
      chunk.param = raw::narrow(all, 0, i == 2, n);
      chunk.grad = from(random_numbers(n, -1, 1, 90 + unsigned(i)), {n}, dtype);
      Tensor* slots[3] = {&chunk.state0, &chunk.state1, &chunk.state2};
      for (int s = 0; s < states_used; s++) {
        *slots[s] = from(std::vector<double>(static_cast<std::size_t>(n)), {n}, state_dtype);
        states[s].push_back(std::make_unique<DeviceTensor>(*slots[s]));
      }
      params.push_back(std::make_unique<DeviceTensor>(chunk.param));
      grads.push_back(std::make_unique<DeviceTensor>(chunk.grad));
      host.push_back(chunk);
    }
  }
  std::vector<cu::OptimTensor> device() {
    std::vector<cu::OptimTensor> table;
    for (std::size_t i = 0; i < host.size(); i++) {
      cu::OptimTensor t{.param = params[i]->data(), .grad = grads[i]->data(), .states = {}, .n = host[i].param.numel()};
      for (int s = 0; s < 3; s++) {
        if (!states[s].empty()) t.states[s] = states[s][i]->data();
      }
      table.push_back(t);
    }
    return table;
  }
  void check(const std::string& what) {
    for (std::size_t i = 0; i < host.size(); i++) {
      const double t = 4 * tolerance(host[i].param.dtype());
      check_close(values(params[i]->read()), values(host[i].param), t, t, what + ": parameter " + std::to_string(i));
      CHECK(params[i]->intact());
      const Tensor* slots[3] = {&host[i].state0, &host[i].state1, &host[i].state2};
      for (int s = 0; s < 3; s++) {
        if (states[s].empty()) continue;
        check_close(values(states[s][i]->read()), values(*slots[s]), t, t, what + ": state " + std::to_string(s));
        CHECK(states[s][i]->intact());
      }
    }
  }
};

struct Types {
  DType param, state;
};
const std::vector<Types> kTypes{{float32, float32}, {float64, float64}, {float16, float16}, {bfloat16, float32}};

// Two steps of both, compared after each.
void check_rule(const std::string& what, int states,
                const std::function<void(Parameters&, Types, std::int64_t step)>& both) {
  for (const Types& types : kTypes) {
    Parameters p(types.param, types.state, states, types.param == float32 ? 70 : 7);
    for (std::int64_t step = 1; step <= 2; step++) {
      both(p, types, step);
      p.check(what + " " + to_string(types.param) + " step " + std::to_string(step));
    }
  }
  CHECK(finding() == "");
}

}  // namespace

TEST_CASE("SGD: plain, momentum, Nesterov, dampening and decay") {
  for (double momentum : {0.0, 0.9}) {
    for (bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      check_rule("sgd", momentum != 0, [&](Parameters& p, Types types, std::int64_t step) {
        const SgdArgs args{.lr = 0.1,
                           .momentum = momentum,
                           .dampening = nesterov ? 0.0 : 0.2,
                           .weight_decay = 0.01,
                           .nesterov = nesterov,
                           .step = step};
        cpu_kernels().sgd(p.host, args);
        CHECK(cu::sgd(p.device(), {types.param, types.state}, args, {}, nullptr) == cudaSuccess);
      });
    }
  }
}

TEST_CASE("Adam and AdamW, with and without amsgrad") {
  for (bool decoupled : {false, true}) {
    for (bool amsgrad : {false, true}) {
      check_rule("adam", amsgrad ? 3 : 2, [&](Parameters& p, Types types, std::int64_t step) {
        const AdamArgs args{.lr = 0.01,
                            .beta1 = 0.9,
                            .beta2 = 0.99,
                            .eps = 1e-3,
                            .weight_decay = 0.02,
                            .decoupled = decoupled,
                            .amsgrad = amsgrad,
                            .step = step};
        cpu_kernels().adam(p.host, args);
        CHECK(cu::adam(p.device(), {types.param, types.state}, args, {}, nullptr) == cudaSuccess);
      });
    }
  }
}

TEST_CASE("RMSprop: centred, with momentum") {
  for (bool centered : {false, true}) {
    check_rule("rmsprop", 3, [&](Parameters& p, Types types, std::int64_t) {
      const RmspropArgs args{
          .lr = 0.01, .alpha = 0.9, .eps = 1e-2, .weight_decay = 0.02, .momentum = 0.5, .centered = centered};
      cpu_kernels().rmsprop(p.host, args);
      CHECK(cu::rmsprop(p.device(), {types.param, types.state}, args, {}, nullptr) == cudaSuccess);
    });
  }
}

TEST_CASE("LAMB and LARS: trust ratios on the device") {
  for (DType dtype : {float32, float64}) {
    for (bool adapt : {false, true}) {
      for (bool clip : {false, true}) {
        Parameters lamb(dtype, dtype, 2, 70), lars(dtype, dtype, 1, 7);
        for (std::int64_t step = 1; step <= 2; step++) {
          const LambArgs a{.lr = 0.01,
                           .beta1 = 0.9,
                           .beta2 = 0.99,
                           .eps = 1e-3,
                           .weight_decay = 0.02,
                           .grad_scale = 0.5,
                           .adapt = adapt,
                           .trust_clip = clip,
                           .step = step};
          const LarsArgs b{.lr = 0.1,
                           .momentum = 0.9,
                           .dampening = 0.1,
                           .weight_decay = 0.02,
                           .trust_coefficient = 0.3,
                           .eps = 1e-8,
                           .nesterov = step == 2,
                           .first_step = step == 1,
                           .adapt = adapt,
                           .trust_clip = clip};
          cpu_kernels().lamb(lamb.host, a);
          cpu_kernels().lars(lars.host, b);
          for (Parameters* p : {&lamb, &lars}) {
            const auto table = p->device();
            DeviceBuffer<unsigned char> workspace(cu::trust_workspace_bytes(table));
            CHECK((p == &lamb ? cu::lamb(table, dtype, a, workspace.data(), nullptr)
                              : cu::lars(table, dtype, b, workspace.data(), nullptr)) == cudaSuccess);
            p->check(p == &lamb ? "lamb" : "lars");
            const auto* trust = reinterpret_cast<const double*>(workspace.data());
            for (std::size_t i = 0; i < table.size(); i++) {
              CHECK(trust[i] == doctest::Approx(p->host[i].trust).epsilon(1e-5));
            }
            CHECK(workspace.intact());
          }
        }
      }
    }
  }
  CHECK(cu::lamb({}, float16, {}, nullptr, nullptr) == cudaErrorInvalidValue);
  CHECK(finding() == "");
}

TEST_CASE("the guard: a bad step changes nothing, and steps that did not happen are not counted") {
  for_each_order(
      [] {
        Parameters p(float32, float32, 2, 5), q(float32, float32, 1, 5);
        const auto before = p.host[4].param;
        const AdamArgs args{.lr = 0.01,
                            .beta1 = 0.9,
                            .beta2 = 0.99,
                            .eps = 1e-3,
                            .weight_decay = 0,
                            .decoupled = false,
                            .amsgrad = false,
                            .step = 4};
        const SgdArgs sgd{
            .lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0, .nesterov = false, .step = 4};
        DeviceBuffer<float> bad{1.0f}, good{0.0f};
        DeviceBuffer<std::int64_t> skipped{3};
        CHECK(cu::adam(p.device(), {}, args, {bad.data(), skipped.data()}, nullptr) == cudaSuccess);
        CHECK(cu::sgd(q.device(), {}, sgd, {bad.data(), skipped.data()}, nullptr) == cudaSuccess);
        p.check("nothing has changed");
        q.check("nothing has changed");
        AdamArgs first = args;
        first.step = 1;
        SgdArgs first_sgd = sgd;
        first_sgd.step = 1;
        cpu_kernels().adam(p.host, first);
        cpu_kernels().sgd(q.host, first_sgd);
        CHECK(cu::adam(p.device(), {}, args, {good.data(), skipped.data()}, nullptr) == cudaSuccess);
        CHECK(cu::sgd(q.device(), {}, sgd, {good.data(), skipped.data()}, nullptr) == cudaSuccess);
        p.check("the first step");
        q.check("the first step");
      },
      0);
}

TEST_CASE("scaling, unscaling and the sum of squares of many tensors") {
  for (DType dtype : kFloats) {
    Parameters p(dtype, dtype, 0, 70);
    std::vector<Tensor> host;
    for (const OptimChunk& chunk : p.host) host.push_back(chunk.param);
    cpu_kernels().scale(host, 0.37);
    CHECK(cu::scale(p.device(), dtype, 0.37, nullptr) == cudaSuccess);
    p.check("scale");

    const auto table = p.device();
    const std::int64_t parts = cu::sum_of_squares_parts(table);
    std::vector<double> sums;
    for_each_order(
        [&] {
          DeviceBuffer<double> partials(static_cast<std::size_t>(parts)), total(1);
          CHECK(cu::sum_of_squares(table, dtype, partials.data(), nullptr) == cudaSuccess);
          CHECK(cu::sum_partials(partials.data(), parts, total.data(), nullptr) == cudaSuccess);
          sums.push_back(total[0]);
          CHECK((partials.intact() && total.intact()));
        },
        0);
    double want = 0;
    for (const Tensor& t : host) {
      for (double v : values(t)) want += v * v;
    }
    for (double s : sums) {
      CHECK(s == sums[0]);
      CHECK(s == doctest::Approx(want).epsilon(1e-12));
    }

    for (float factor : {0.25f, 1.0f}) {
      Tensor found = from({0}, {1}, float32), inverse = from({factor}, {1}, float32);
      DeviceTensor device_found(found), device_inverse(inverse);
      auto unscale = [&](Parameters& q, float expected) {
        std::vector<Tensor> grads;
        for (const OptimChunk& chunk : q.host) grads.push_back(chunk.param);
        cpu_kernels().amp_unscale(grads, found, inverse);
        CHECK(cu::amp_unscale(q.device(), dtype, device_found.data_as<float>(), device_inverse.data_as<float>(),
                              nullptr) == cudaSuccess);
        CHECK(values(device_found.read())[0] == expected);
        CHECK(values(found)[0] == expected);
      };
      Parameters fine(dtype, dtype, 0, 7);
      unscale(fine, 0);
      fine.check("unscale");
      for (double bad : {double(INFINITY), double(NAN)}) {
        Parameters broken(dtype, dtype, 0, 7);
        std::vector<double> numbers = values(broken.host[4].param);
        numbers[4101] = bad;
        assign(broken.host[4].param, numbers);
        broken.params[4] = std::make_unique<DeviceTensor>(broken.host[4].param);
        assign(found, {0});
        device_found.data_as<float>()[0] = 0;
        unscale(broken, 1);
        broken.check("unscale with " + std::to_string(bad));
      }
    }
  }
  CHECK(finding() == "");
}

TEST_CASE("the rule of the loss scale") {
  Tensor scale = from({65536}, {1}, float32), tracker = from({0}, {1}, int32), found = from({0}, {1}, float32);
  DeviceTensor s(scale), t(tracker), f(found);
  for (int step = 0; step < 12; step++) {
    const double bad = step == 3 || step == 4;
    if (step == 9) {  // growing from here overflows
      assign(scale, {3e38});
      s.data_as<float>()[0] = 3e38f;
    }
    assign(found, {bad});
    f.data_as<float>()[0] = static_cast<float>(bad);
    cpu_kernels().amp_update(scale, tracker, found, 2, 0.5, 2);
    CHECK(cu::amp_update(s.data_as<float>(), t.data_as<std::int32_t>(), f.data_as<float>(), 2, 0.5, 2, nullptr) ==
          cudaSuccess);
    CHECK(values(s.read()) == values(scale));
    CHECK(values(t.read()) == values(tracker));
  }
  CHECK((s.intact() && t.intact() && f.intact()));
  CHECK(finding() == "");
}
