// The functions of CUDA's libraries that limpid calls, as tables that are filled when the libraries are loaded. Declared
// here and not taken from CUDA's headers, so that the host code builds and runs the same with and without a toolkit: types
// and values are those of CUDA's stable binary interface (runtime 12 and 13); tests/test_cuda_abi.cpp compares them with
// the headers where there are some.
//
// Every function returns its library's status, 0 for success. Calls go through the check of cuda/error.h.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;
struct CUevent_st;

namespace limpid::cu {

using StreamHandle = CUstream_st*;  // cudaStream_t and CUstream; null is the device's default stream
using EventHandle = CUevent_st*;

// cudaError_t, as far as limpid tells them apart.
enum : int {
  kSuccess = 0,
  kMemoryAllocation = 2,
  kInitializationError = 3,
  kInsufficientDriver = 35,
  kNoDevice = 100,
  kNotReady = 600,
  kPeerAccessAlreadyEnabled = 704,
};
enum CopyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };
enum : unsigned { kStreamNonBlocking = 1, kEventDisableTiming = 2 };
enum DeviceAttribute : int {
  kWarpSize = 10,
  kMultiprocessors = 16,
  kL2CacheBytes = 38,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
};

// F(name, parameters...)
#define LIMPID_RUNTIME_FUNCTIONS(F)                                                              \
  F(cudaRuntimeGetVersion, int* version)                                                         \
  F(cudaDriverGetVersion, int* version)                                                          \
  F(cudaGetDeviceCount, int* count)                                                              \
  F(cudaGetDevice, int* device)                                                                  \
  F(cudaSetDevice, int device)                                                                   \
  F(cudaDeviceGetAttribute, int* value, int attribute, int device)                               \
  F(cudaDeviceGetPCIBusId, char* text, int bytes, int device)                                    \
  F(cudaDeviceSynchronize, void)                                                                 \
  F(cudaGetLastError, void)                                                                      \
  F(cudaMemGetInfo, std::size_t* free, std::size_t* total)                                       \
  F(cudaMalloc, void** pointer, std::size_t bytes)                                               \
  F(cudaFree, void* pointer)                                                                     \
  F(cudaHostAlloc, void** pointer, std::size_t bytes, unsigned flags)                            \
  F(cudaFreeHost, void* pointer)                                                                 \
  F(cudaMemcpyAsync, void* to, const void* from, std::size_t bytes, int kind, StreamHandle s)    \
  F(cudaMemcpyPeerAsync, void* to, int to_device, const void* from, int from_device,             \
    std::size_t bytes, StreamHandle s)                                                           \
  F(cudaMemsetAsync, void* to, int value, std::size_t bytes, StreamHandle s)                     \
  F(cudaStreamCreateWithFlags, StreamHandle* s, unsigned flags)                                  \
  F(cudaStreamDestroy, StreamHandle s)                                                           \
  F(cudaStreamSynchronize, StreamHandle s)                                                       \
  F(cudaStreamQuery, StreamHandle s)                                                             \
  F(cudaStreamWaitEvent, StreamHandle s, EventHandle event, unsigned flags)                      \
  F(cudaEventCreateWithFlags, EventHandle* event, unsigned flags)                                \
  F(cudaEventDestroy, EventHandle event)                                                         \
  F(cudaEventRecord, EventHandle event, StreamHandle s)                                          \
  F(cudaEventQuery, EventHandle event)                                                           \
  F(cudaEventSynchronize, EventHandle event)                                                     \
  F(cudaEventElapsedTime, float* milliseconds, EventHandle from, EventHandle to)

struct RuntimeApi {
#define LIMPID_MEMBER(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  LIMPID_RUNTIME_FUNCTIONS(LIMPID_MEMBER)
#undef LIMPID_MEMBER
  const char* (*cudaGetErrorName)(int status) = nullptr;
  const char* (*cudaGetErrorString)(int status) = nullptr;
};

// The driver's: names, and virtual memory, which the runtime library does not have.
using DevicePointer = std::uint64_t;  // CUdeviceptr
using MemoryHandle = std::uint64_t;   // CUmemGenericAllocationHandle
enum : int {
  kDriverOutOfMemory = 2,         // CUDA_ERROR_OUT_OF_MEMORY
  kVirtualMemorySupported = 102,  // CUdevice_attribute
};

struct MemoryLocation {  // CUmemLocation
  int type = 1;          // CU_MEM_LOCATION_TYPE_DEVICE
  int device = 0;
};
struct MemoryProperties {     // CUmemAllocationProp
  int type = 1;               // CU_MEM_ALLOCATION_TYPE_PINNED
  int requested_handles = 0;  // CU_MEM_HANDLE_TYPE_NONE
  MemoryLocation location;
  void* windows_data = nullptr;
  unsigned char compression = 0, gpu_direct = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
struct MemoryAccess {  // CUmemAccessDesc
  MemoryLocation location;
  int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};

#define LIMPID_DRIVER_FUNCTIONS(F)                                                                                 \
  F(cuInit, unsigned flags)                                                                                        \
  F(cuDriverGetVersion, int* version)                                                                              \
  F(cuGetErrorName, int status, const char** text)                                                                 \
  F(cuGetErrorString, int status, const char** text)                                                               \
  F(cuDeviceGetName, char* text, int bytes, int device)                                                            \
  F(cuDeviceGetAttribute, int* value, int attribute, int device)                                                   \
  F(cuMemGetAllocationGranularity, std::size_t* bytes, const MemoryProperties* properties, int option)             \
  F(cuMemAddressReserve, DevicePointer* at, std::size_t bytes, std::size_t alignment, DevicePointer wish,          \
    unsigned long long flags)                                                                                      \
  F(cuMemAddressFree, DevicePointer at, std::size_t bytes)                                                         \
  F(cuMemCreate, MemoryHandle* handle, std::size_t bytes, const MemoryProperties* properties,                      \
    unsigned long long flags)                                                                                      \
  F(cuMemRelease, MemoryHandle handle)                                                                             \
  F(cuMemMap, DevicePointer at, std::size_t bytes, std::size_t offset, MemoryHandle handle,                        \
    unsigned long long flags)                                                                                      \
  F(cuMemUnmap, DevicePointer at, std::size_t bytes)                                                               \
  F(cuMemSetAccess, DevicePointer at, std::size_t bytes, const MemoryAccess* access, std::size_t count)

struct DriverApi {
#define LIMPID_MEMBER(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  LIMPID_DRIVER_FUNCTIONS(LIMPID_MEMBER)
#undef LIMPID_MEMBER
};

}  // namespace limpid::cu
