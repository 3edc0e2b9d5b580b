// CUDA's libraries as they are on this machine: loaded when first asked for, never given back. Nothing here throws but
// the tables; what is missing or too old is said in words.
#pragma once

#include <string>
#include <vector>

#include <limpid/cuda/api.h>
#include <limpid/cuda/library.h>

namespace limpid::cu {

// Whether and why not this machine computes with CUDA. Found out once, at first use.
struct Availability {
  int devices = 0;
  // Why there is none: "driver not found". Empty when there is one.
  std::string problem;
  // The problem is that two parts do not fit together (a driver that is too old), not that one is missing.
  bool incompatible = false;
  int driver_version = 0;   // highest CUDA version that the driver serves, 13000 for 13.0; 0 = no driver
  int runtime_version = 0;  // of the runtime library; 0 = not loaded
};
const Availability& availability();

// The tables. DeviceError with the problem when the library is not usable.
const RuntimeApi& runtime();
const DriverApi& driver();

// Those that only some kernels need; their own files bind the functions.
Library& cublaslt_library();
Library& cudnn_library();
Library& nvml_library();

// "13.0" of 13000
std::string version_text(int version);

// A library for people: what limpid wants, what is there.
struct LibraryReport {
  std::string purpose;  // "matrix products"
  std::string wanted;   // "libcublasLt.so.13 or .12"
  std::string found;    // version, or name of another version; "" = nothing
  std::string path;     // of the file
  std::string problem;  // "" when it is usable
  std::string without;  // what works without it
};
// Of all libraries; loads those that are not yet. Where there is no device, only of those that were looked for.
std::vector<LibraryReport> library_reports();

}  // namespace limpid::cu
