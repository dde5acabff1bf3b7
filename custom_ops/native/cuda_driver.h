// The CUDA driver as a library that may be there: what the shim calls of it, written from its public
// description. Names and signatures are those of libcuda.so.1 since CUDA 11.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortkit::cuda {

using Result = int32_t;  // 0 is success
using Device = int32_t;  // a number

inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kInvalidPtx = 218;
inline constexpr Result kNoPtxCompiler = 221;
inline constexpr Result kUnsupportedPtx = 222;

// Attributes of devices and functions; options of the compiler in the driver.
inline constexpr int32_t kMajor = 75;
inline constexpr int32_t kMinor = 76;
inline constexpr int32_t kSharedBytesOptIn = 97;
inline constexpr int32_t kMaxThreads = 0;
inline constexpr int32_t kMaxDynamicSharedBytes = 8;
inline constexpr int32_t kErrorLog = 5;
inline constexpr int32_t kErrorLogBytes = 6;

struct Context;
struct Module;
struct Function;
struct Stream;
struct GraphNode;

// An attribute of a launch (CUlaunchAttribute), and a launch with attributes (CUlaunchConfig).
struct LaunchAttribute {
  int32_t id;
  int32_t padding;
  int32_t value[16];
};
inline constexpr int32_t kMayBeginEarly = 6;

struct LaunchConfig {
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  Stream* stream;
  const LaunchAttribute* attributes;
  uint32_t attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

struct Driver {
  Result (*Init)(uint32_t flags);
  Result (*GetErrorName)(Result, const char** name);
  Result (*DriverGetVersion)(int32_t* version);  // 12040 is 12.4
  Result (*DeviceGetCount)(int32_t* count);
  Result (*DeviceGet)(Device*, int32_t ordinal);
  Result (*DeviceGetAttribute)(int32_t* value, int32_t attribute, Device);
  Result (*PrimaryContextRetain)(Context**, Device);
  Result (*PrimaryContextRelease)(Device);
  Result (*ContextGetCurrent)(Context**);
  Result (*ContextPush)(Context*);
  Result (*ContextPop)(Context**);
  Result (*ModuleLoad)(Module**, const void* image, uint32_t count, int32_t* options, void** values);
  Result (*ModuleUnload)(Module*);
  Result (*ModuleGetFunction)(Function**, Module*, const char* name);
  Result (*FunctionGetAttribute)(int32_t* value, int32_t attribute, Function*);
  Result (*FunctionSetAttribute)(Function*, int32_t attribute, int32_t value);
  Result (*FunctionLoad)(Function*);  // since 12.4, else null
  // Since 12.0, else null. All arrays begin with the innermost dim; `strides` has one less, in bytes.
  Result (*EncodeTensorMap)(void* map, int32_t type, uint32_t rank, void* address, const uint64_t* dims,
                            const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                            int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill);
  Result (*Launch)(Function*, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t threads_x,
                   uint32_t threads_y, uint32_t threads_z, uint32_t shared_bytes, Stream*,
                   void** parameters, void** extra);
  // Since 12.3 and 11.8, else null. The status of a stream that is captured is 1.
  Result (*CaptureInfo)(Stream*, int32_t* status, uint64_t* capture, void** graph,
                        const GraphNode* const** nodes, const void** edges, size_t* count);
  Result (*LaunchWith)(const LaunchConfig*, Function*, void** parameters, void** extra);
};

// The driver, started; null if there is none, or it has no device. It is never unloaded.
const Driver* FindDriver();

// A device as far as code for it is concerned.
struct DeviceTraits {
  int32_t architecture;  // 90 is compute capability 9.0
  int32_t shared_bytes;  // that a block may ask for
  bool has_maps;         // tensors can be described to it
};

Result ReadTraits(const Driver& driver, Device device, DeviceTraits* traits);

// Makes a context current on this thread while it lives.
class ContextGuard {
 public:
  ContextGuard(const Driver& driver, Context* context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

  Result result() const { return result_; }

 private:
  const Driver& driver_;
  Result result_ = 0;
  bool is_pushed_ = false;
};

}  // namespace ortkit::cuda
