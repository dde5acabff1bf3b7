// What kernels for CUDA use of ONNX Runtime's C ABI beyond ort_abi.h. All of it exists since API
// version 24; tests/native/test_abi.py calls each.
#pragma once

#include "ort_abi.h"

namespace ort {

struct Allocator;
struct MemoryInfo;

inline constexpr Slot<72, Status*(const MemoryInfo*, int32_t* device)> MemoryInfoGetId;
inline constexpr Slot<75, Status*(Allocator*, size_t bytes, void** out)> AllocatorAlloc;
inline constexpr Slot<76, Status*(Allocator*, void* memory)> AllocatorFree;
// The answer belongs to the allocator.
inline constexpr Slot<77, Status*(const Allocator*, const MemoryInfo** out)> AllocatorGetInfo;
inline constexpr Slot<93, void(Status*)> ReleaseStatus;
inline constexpr Slot<125, Status*(char*** names, int32_t* count)> GetAvailableProviders;
inline constexpr Slot<126, Status*(char** names, int32_t count)> ReleaseAvailableProviders;
inline constexpr Slot<132, void(Allocator*)> ReleaseAllocator;
// The CUstream of the run; null on the CPU.
inline constexpr Slot<193, Status*(const KernelContext*, void** stream)> GetGpuComputeStream;
// By version 1: 10002 is the cuBLAS handle of the run's stream.
inline constexpr Slot<265, Status*(const KernelContext*, int32_t version, int32_t which, void** resource)>
    GetResource;
// `type` 0: what the node's provider computes in.
inline constexpr Slot<278, Status*(const KernelInfo*, int32_t type, Allocator** out)>
    KernelInfoGetAllocator;

}  // namespace ort

namespace ortkit {

inline constexpr char kCudaProvider[] = "CUDAExecutionProvider";

}  // namespace ortkit
