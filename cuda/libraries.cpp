#include <limpid/cuda/libraries.h>

#include <limpid/base/error.h>

namespace limpid::cu {
namespace {

template <class Api>
struct Loaded {
  Library library;
  Api api = {};
};

Loaded<DriverApi>& driver_library() {
  static auto* loaded = [] {
    auto* l = new Loaded<DriverApi>{Library({"libcuda.so.1"}, {}, "everything on the CPU")};
#define LIMPID_BIND(name, ...) l->library.bind(#name, l->api.name);
    LIMPID_DRIVER_FUNCTIONS(LIMPID_BIND)
#undef LIMPID_BIND
    return l;
  }();
  return *loaded;
}

Loaded<RuntimeApi>& runtime_library() {
  static auto* loaded = [] {
    auto* l = new Loaded<RuntimeApi>{Library({"libcudart.so.13", "libcudart.so.12"},
                                             {"libcudart.so.11.0", "libcudart.so"}, "everything on the CPU")};
#define LIMPID_BIND(name, ...) l->library.bind(#name, l->api.name);
    LIMPID_RUNTIME_FUNCTIONS(LIMPID_BIND)
#undef LIMPID_BIND
    l->library.bind("cudaGetErrorName", l->api.cudaGetErrorName);
    l->library.bind("cudaGetErrorString", l->api.cudaGetErrorString);
    return l;
  }();
  return *loaded;
}

Availability look() {
  Availability a;
  const auto& [driver_file, driver_api] = driver_library();
  if (!driver_file.usable()) {
    a.problem = driver_file.loaded()
                    ? concat("the driver ", driver_file.path(), " is of no use: ", driver_file.problem())
                    : "driver " + driver_file.problem();
    a.incompatible = driver_file.loaded();
    return a;
  }
  if (driver_api.cuDriverGetVersion(&a.driver_version) != kSuccess) a.driver_version = 0;
  const auto& [runtime_file, api] = runtime_library();
  if (!runtime_file.usable()) {
    a.problem = concat("the driver is there (CUDA ", version_text(a.driver_version), "), the runtime library ",
                       runtime_file.wanted(), " is not usable: ", runtime_file.problem());
    return a;
  }
  api.cudaRuntimeGetVersion(&a.runtime_version);
  const int status = api.cudaGetDeviceCount(&a.devices);
  if (status == kSuccess && a.devices > 0) return a;
  a.devices = 0;
  api.cudaGetLastError();
  if (status == kSuccess || status == kNoDevice) {
    a.problem = concat("the driver (CUDA ", version_text(a.driver_version), ") sees none");
  } else if (status == kInsufficientDriver) {
    a.incompatible = true;
    a.problem = concat("the driver is too old: it serves CUDA up to ", version_text(a.driver_version),
                       ", the runtime library is ", version_text(a.runtime_version));
  } else {
    a.problem = concat("the driver (CUDA ", version_text(a.driver_version),
                       ") cannot be used: ", api.cudaGetErrorString(status), " (", api.cudaGetErrorName(status), ", ",
                       status, ")");
  }
  return a;
}

// Version numbers of cuBLASLt and cuDNN, 130100 and 91900: major * 10000 + minor * 100 + patch.
std::string library_version(Library& library, const char* symbol) {
  std::size_t (*get)() = nullptr;
  library.bind(symbol, get);
  if (!get) return "";
  const std::size_t version = get();
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

LibraryReport report(const char* purpose, const Library& library, std::string version) {
  LibraryReport r{purpose, library.wanted(), std::move(version), library.path(), library.problem(), library.without()};
  if (r.found.empty()) r.found = library.loaded() ? library.name() : library.other();
  return r;
}

}  // namespace

const Availability& availability() {
  static const Availability* const found = new Availability(look());
  return *found;
}

const RuntimeApi& runtime() {
  const auto& [library, api] = runtime_library();
  if (!library.usable())
    LIMPID_THROW(DeviceError, "[cuda] the runtime library ", library.wanted(), ": ", library.problem());
  return api;
}

const DriverApi& driver() {
  const auto& [library, api] = driver_library();
  if (!library.usable()) LIMPID_THROW(DeviceError, "[cuda] the driver ", library.wanted(), ": ", library.problem());
  return api;
}

Library& cublaslt_library() {
  static auto* library = new Library({"libcublasLt.so.13", "libcublasLt.so.12"}, {"libcublasLt.so.11"},
                                     "matrix products by limpid's own kernels");
  return *library;
}

Library& cudnn_library() {
  static auto* library = new Library({"libcudnn.so.9"}, {"libcudnn.so.8"}, "convolutions by limpid's own kernels");
  return *library;
}

Library& nvml_library() {
  static auto* library = new Library({"libnvidia-ml.so.1"}, {},
                                     "all but the busy share of a GPU and the list of programs that hold its memory");
  return *library;
}

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

std::vector<LibraryReport> library_reports() {
  const Availability& a = availability();
  std::vector<LibraryReport> reports;
  reports.push_back(
      report("driver", driver_library().library, a.driver_version ? "CUDA " + version_text(a.driver_version) : ""));
  if (a.driver_version == 0) return reports;
  reports.push_back(
      report("runtime", runtime_library().library, a.runtime_version ? version_text(a.runtime_version) : ""));
  if (a.devices == 0) return reports;
  const std::string blas = library_version(cublaslt_library(), "cublasLtGetVersion");
  reports.push_back(report("matrix products", cublaslt_library(), blas));
  const std::string dnn = library_version(cudnn_library(), "cudnnGetVersion");
  reports.push_back(report("convolutions", cudnn_library(), dnn));
  reports.push_back(report("monitoring", nvml_library(), ""));
  return reports;
}

}  // namespace limpid::cu
