// What the runtime library uses of ONNX Runtime's C ABI beyond ../ort_abi.h: a session's allocators
// and what they count. All slots exist since API version 23; tests/native/test_runtime_library.py
// calls each through the library.
#pragma once

#include "../ort_abi.h"

namespace ort {

struct Session;
struct MemoryInfo;
struct Allocator;
struct KeyValuePairs;

inline constexpr Slot<2, const char*(const Status*)> GetErrorMessage;  // lives as long as the status
inline constexpr Slot<30, Status*(const Session*, size_t* count)> GetSessionInputCount;
// Names: "Cpu", "Cuda", "CudaPinned". `kind` is 1 for an arena, `use` 0 for what kernels compute in
// and -1 for what the host reads.
inline constexpr Slot<68, Status*(const char* name, int32_t kind, int32_t device, int32_t use,
                                  MemoryInfo** out)>
    CreateMemoryInfo;
inline constexpr Slot<93, void(Status*)> ReleaseStatus;
inline constexpr Slot<94, void(MemoryInfo*)> ReleaseMemoryInfo;
// The session's own allocator for such memory; what comes back is a handle to it.
inline constexpr Slot<131, Status*(const Session*, const MemoryInfo*, Allocator** out)> CreateAllocator;
inline constexpr Slot<132, void(Allocator*)> ReleaseAllocator;
// Keys and values belong to the pairs.
inline constexpr Slot<298, void(const KeyValuePairs*, const char* const** keys,
                                const char* const** values, size_t* count)>
    GetKeyValuePairs;
inline constexpr Slot<300, void(KeyValuePairs*)> ReleaseKeyValuePairs;
// Empty if the allocator is no arena.
inline constexpr Slot<319, Status*(const Allocator*, KeyValuePairs** out)> GetAllocatorStatistics;

}  // namespace ort
