// Devices, streams, events and errors of cuda/ on the fake runtime with two devices.
#include <filesystem>
#include <thread>

#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>
#include <limpid/cuda/nvml.h>
#include <limpid/tensor/backend.h>
#include <limpid/tensor/creation.h>

#include "cuda_test.h"

using namespace limpid;
using namespace cuda_test;

namespace {

// Before the first look for devices, which is remembered.
const bool kTwoDevices = (fake::reset({.devices = 2}), true);

template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}
bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("devices: count, names, properties, and what is not there") {
  REQUIRE(kTwoDevices);
  CHECK(cu::is_available());
  CHECK(cu::device_count() == 2);
  CHECK(cu::device_name(1) == "Simulated GPU 1");
  const cu::DeviceProperties& p = cu::device_properties(0);
  CHECK(p.major == 9);
  CHECK(p.multiprocessors == 132);
  CHECK(p.total_bytes == 256 * kMiB);
  CHECK(p.pci_bus_id == "0000:01:00.0");
  CHECK(message_of<DeviceError>([] { cu::check_device(2); }) == "[device] cuda:2 is not there, the last is cuda:1");
  CHECK(has(message_of<DeviceError>([] { zeros({2}, {.device = {DeviceType::cuda, 5}}); }), "cuda:5 is not there"));
  const cu::Availability& a = cu::availability();
  CHECK(a.problem.empty());
  CHECK(a.driver_version == 13000);
  CHECK(cu::version_text(a.runtime_version) == "13.0");
}

TEST_CASE("without kernels the device has memory and copies, and computing says what is missing") {
  CHECK(computes(kCpu));
  CHECK_FALSE(computes(kGpu));
  CHECK_FALSE(computes({DeviceType::cuda, 7}));
  CHECK(best_device() == kCpu);
  CHECK(message_of<DeviceError>([] { zeros({2}, {.device = kGpu}); }) ==
        "[kernels] this build cannot compute on cuda:0: it has kernels for cpu only");
}

TEST_CASE("the current device and the current streams are a thread's own, and scopes put them back") {
  CHECK(cu::current_device() == 0);
  CHECK(cu::current_stream() == cu::default_stream(0));
  const cu::Stream side = cu::pool_stream(1);
  {
    cu::StreamScope scope(side);
    CHECK(cu::current_device() == 1);
    CHECK(cu::current_stream() == side);
    CHECK(cu::current_stream(0) == cu::default_stream(0));
    {
      cu::DeviceGuard guard(0);
      CHECK(cu::current_stream() == cu::default_stream(0));
      CHECK(cu::current_stream(1) == side);
    }
    std::thread([] {
      CHECK(cu::current_device() == 0);
      CHECK(cu::current_stream(1) == cu::default_stream(1));
    }).join();
    CHECK(cu::current_device() == 1);
  }
  CHECK(cu::current_device() == 0);
  CHECK(cu::current_stream(1) == cu::default_stream(1));
  CHECK(message_of<DeviceError>([] { cu::DeviceGuard(9); }) != "nothing was thrown");
  CHECK(cu::current_device() == 0);
}

TEST_CASE("streams come from a fixed set, the copy stream is one a device") {
  const std::size_t before = fake::live_streams();
  const cu::Stream first = cu::pool_stream(0);
  for (int i = 0; i < 100; i++) CHECK(cu::pool_stream(0).device == 0);
  CHECK(fake::live_streams() <= before + 32);
  CHECK(first.handle != nullptr);
  CHECK(cu::copy_stream(0) == cu::copy_stream(0));
  CHECK(cu::copy_stream(0) != cu::copy_stream(1));
  CHECK(cu::copy_stream(1).device == 1);
}

TEST_CASE("events order streams, of two devices too, and tell when they are reached") {
  for (std::uint64_t seed = 1; seed <= 10; seed++) {
    fake::reset({.devices = 2, .seed = seed});
    const cu::Stream a = cu::pool_stream(0), b = cu::pool_stream(1);
    int step = 0, at_a = 0, at_b = 0;
    cu::Event event(0);
    CHECK(event.query());  // never recorded: nothing to wait for
    fake::enqueue({.kernel = "a", .stream = a.handle, .run = [&] { return at_a = ++step, 0; }});
    event.record(a);
    event.hold_up(b);
    fake::enqueue({.kernel = "b", .stream = b.handle, .run = [&] { return at_b = ++step, 0; }});
    CHECK_FALSE((a.query() && b.query()));
    b.synchronize();
    CHECK(at_a == 1);
    CHECK(at_b == 2);
    CHECK(event.query());
  }
  CHECK_THROWS_AS(cu::Event(0).record(cu::pool_stream(1)), DeviceError);
  CHECK(fake::live_events() == 0);
}

TEST_CASE("an error names the call, the place and CUDA's text, and does not linger") {
  fake::reset({.devices = 2});
  fake::fail_call_of("cudaDeviceSynchronize", 1, 999);
  try {
    cu::synchronize(0);
    FAIL("no error");
  } catch (const cu::CudaError& e) {
    CHECK(e.call() == "cudaDeviceSynchronize");
    CHECK(e.code() == 999);
    CHECK_FALSE(e.sticky());
    CHECK(has(e.what(),
              "[cuda] cudaDeviceSynchronize failed: unknown error (cudaErrorUnknown, 999) at cuda/runtime.cpp:"));
    CHECK(has(e.where(), "runtime.cpp:"));
  }
  CHECK(cu::runtime().cudaGetLastError() == 0);
  cu::synchronize(0);
  fake::fail_call_of("cudaSetDevice", 1, 999);
  CHECK_THROWS_AS(cu::synchronize(1), cu::CudaError);
  CHECK(cu::current_device() == 0);
}

TEST_CASE("a kernel's error comes with a later call, and at its launch when launches wait") {
  const auto launch = [] {
    const int status = fake::enqueue({.kernel = "scale_kernel", .run = [] { return 700; }});
    cu::check_launch(status, "scale_kernel", nullptr, "cuda/kernels/scale.cu", 12);
  };
  fake::reset({.devices = 2});
  launch();
  std::string text = message_of<cu::CudaError>([] { cu::synchronize(0); });
  CHECK(has(text, "cudaDeviceSynchronize failed"));
  CHECK(has(text, "with LIMPID_CUDA_SYNC=1 it is named"));
  CHECK(has(text, "start the program again"));
  CHECK_THROWS_AS(cu::synchronize(0), cu::CudaError);  // the context is lost
  fake::reset({.devices = 2});
  cu::set_launch_sync(true);
  text = message_of<cu::CudaError>(launch);
  cu::set_launch_sync(false);
  CHECK(has(text,
            "[cuda] scale_kernel failed: an illegal memory access was encountered (cudaErrorIllegalAddress, 700) at "
            "kernels/scale.cu:12"));
  CHECK_FALSE(has(text, "LIMPID_CUDA_SYNC"));
  fake::reset({.devices = 2});
}

TEST_CASE("NVML: use of a device; no answer when it refuses") {
  fake::reset({.devices = 2});
  const auto use = cu::gpu_use(1);
  REQUIRE(use);
  CHECK(use->busy == 0.75);
  CHECK(use->total_bytes == 256 * kMiB);
  CHECK(cu::gpu_processes(1).size() == 1);
  fake::fail_call_of("nvmlDeviceGetHandleByPciBusId_v2", 1, 999);
  CHECK_FALSE(cu::gpu_use(1).has_value());
  fake::fail_call_of("nvmlDeviceGetComputeRunningProcesses_v3", 1, 999);
  CHECK(cu::gpu_processes(1).empty());
  std::vector<std::pair<unsigned, std::uint64_t>> many;
  for (unsigned i = 0; i < 50; i++) many.emplace_back(5000000 + i, (i + 1) * kMiB);
  fake::set_processes(0, many);
  const auto list = cu::gpu_processes(0);
  CHECK(list.size() == 51);
  CHECK(list[0].bytes == 50 * kMiB);
}

TEST_CASE("libraries: what is found, and what is said of one that is not") {
  const auto reports = cu::library_reports();
  REQUIRE(reports.size() == 5);
  CHECK(reports[0].found == "CUDA 13.0");
  CHECK(reports[2].wanted == "libcublasLt.so.13 or libcublasLt.so.12");
  CHECK(reports[2].found == "13.1.0");
  CHECK(reports[3].found == "9.19.0");
  for (const cu::LibraryReport& r : reports) {
    CHECK(r.problem.empty());
    CHECK(std::filesystem::exists(r.path));
  }
  cu::Library missing({"libnothing.so.3", "libnothing.so.2"}, {"libnothing.so.1"}, "all the rest");
  CHECK_FALSE(missing.loaded());
  CHECK(missing.wanted() == "libnothing.so.3 or libnothing.so.2");
  CHECK(missing.problem() == "not found");
  CHECK(missing.without() == "all the rest");
  cu::Library other({"libcudnn.so.8"}, {"libcudnn.so.9"}, "");
  CHECK(other.problem() == "found libcudnn.so.9 only");
  CHECK(other.other() == "libcudnn.so.9");
  cu::Library lacking({"libcudnn.so.9"}, {}, "");
  int (*function)() = nullptr;
  lacking.bind("cudnnNoSuchFunction", function);
  CHECK_FALSE(lacking.usable());
  CHECK(lacking.problem() == "it has no cudnnNoSuchFunction");
}
