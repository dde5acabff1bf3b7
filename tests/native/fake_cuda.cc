#include "fake_cuda.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

using fake_cuda::Body;
using fake_cuda::Counts;
using fake_cuda::Launch;
using Result = int32_t;

constexpr Result kInvalidValue = 1, kDeinitialized = 4, kInvalidDevice = 101;
constexpr Result kInvalidContext = 201, kNoBinary = 209, kInvalidPtx = 218, kNotFound = 500;
constexpr Result kInvalidImage = 200, kUnsupportedPtx = 222;

struct Context {
  int device;
  int held;
};
struct Function {
  std::string entry;
  Context* context;
  int32_t shared_bytes;
  bool is_loaded;
};
struct Module {
  Context* context;
  Function function;
};

std::mutex mutex;
#ifdef FAKE_DEVICE
std::vector<Context> devices = {{0, 0}};
std::vector<int32_t> architectures = {FAKE_DEVICE}, shared_limits = {99 << 10};
#else
std::vector<Context> devices;
std::vector<int32_t> architectures, shared_limits;
#endif
std::map<std::string, Body*> bodies;
std::map<Module*, std::unique_ptr<Module>> modules;  // the driver's: what is not unloaded goes with it
int loads = 0, mistakes = 0, fail_at = -1;
Result fail_code = 0;
const char* failed = nullptr;
std::string last_image;
bool has_ended = false;
std::vector<std::unique_ptr<int>> captured;  // nodes of the graph
uint64_t captures = 0;
bool is_captured = false;
thread_local std::vector<Context*> stack;

// A test may rename a function away by a macro of its name.
#ifdef cuFuncLoad
constexpr bool kLoadsBeforeLaunch = false;
#else
constexpr bool kLoadsBeforeLaunch = true;
#endif

// What the next call answers instead of doing anything; 0: nothing.
Result Refused(const char* call) {
  if (has_ended) return kDeinitialized;
  if (fail_at < 0 || fail_at-- > 0) return 0;
  failed = call;
  return fail_code;
}

#define FAKE_CALL(name)                                   \
  const std::lock_guard<std::mutex> lock(mutex);          \
  do {                                                    \
    if (const Result result_ = Refused(name)) return result_; \
  } while (0)

}  // namespace

extern "C" {

Result cuInit(uint32_t) {
  FAKE_CALL("cuInit");
  return 0;
}

Result cuGetErrorName(Result code, const char** name) {
  *name = code == 0 ? "CUDA_SUCCESS" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == kNoBinary ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_FAKE";
  return code == 999 ? kInvalidValue : 0;
}

Result cuDriverGetVersion(int32_t* version) {
  *version = 12040;
  return 0;
}

Result cuDeviceGetCount(int32_t* count) {
  FAKE_CALL("cuDeviceGetCount");
  *count = static_cast<int32_t>(devices.size());
  return 0;
}

Result cuDeviceGet(int32_t* device, int32_t ordinal) {
  FAKE_CALL("cuDeviceGet");
  if (ordinal < 0 || ordinal >= static_cast<int32_t>(devices.size())) return kInvalidDevice;
  *device = 40 + ordinal;  // no shim may take the one for the other
  return 0;
}

Result cuDeviceGetAttribute(int32_t* value, int32_t attribute, int32_t device) {
  FAKE_CALL("cuDeviceGetAttribute");
  const int32_t architecture = architectures.at(device - 40);
  switch (attribute) {
    case 75: *value = architecture / 10; return 0;
    case 76: *value = architecture % 10; return 0;
    case 97: *value = shared_limits.at(device - 40); return 0;
    default: return kInvalidValue;
  }
}

Result cuDevicePrimaryCtxRetain(Context** context, int32_t device) {
  FAKE_CALL("cuDevicePrimaryCtxRetain");
  *context = &devices.at(device - 40);
  ++(*context)->held;
  return 0;
}

Result cuDevicePrimaryCtxRelease_v2(int32_t device) {
  FAKE_CALL("cuDevicePrimaryCtxRelease");
  --devices.at(device - 40).held;
  return 0;
}

Result cuCtxGetCurrent(Context** context) {
  FAKE_CALL("cuCtxGetCurrent");
  *context = stack.empty() ? nullptr : stack.back();
  return 0;
}

Result cuCtxPushCurrent_v2(Context* context) {
  FAKE_CALL("cuCtxPushCurrent");
  stack.push_back(context);
  return 0;
}

// A pop always succeeds, or a test could not tell a stack that is left behind from one that had to be.
Result cuCtxPopCurrent_v2(Context** context) {
  if (stack.empty()) return kInvalidContext;
  *context = stack.back();
  stack.pop_back();
  return 0;
}

Result cuModuleLoadDataEx(Module** module, const void* image, uint32_t count, int32_t* options, void** values) {
  FAKE_CALL("cuModuleLoadDataEx");
  char kind[8], entry[64], suffix = 0;
  int32_t architecture = 0;
  if (stack.empty()) return kInvalidContext;
  const int32_t device = architectures.at(stack.back()->device);
  if (sscanf(static_cast<const char*>(image), "%7s %d%c%63s", kind, &architecture, &suffix, entry) != 4) return kInvalidValue;
  const bool is_ptx = !strcmp(kind, "ptx");
  if (is_ptx && strstr(entry, "broken")) {
    for (uint32_t i = 0; i + 1 < count; ++i) {
      if (options[i] == 5) snprintf(static_cast<char*>(values[i]), reinterpret_cast<size_t>(values[i + 1]), "ptxas: %s", entry);
    }
    return kInvalidPtx;
  }
  const bool runs = is_ptx ? architecture <= device
                           : suffix == 'a' ? architecture == device
                                           : architecture <= device && architecture / 10 == device / 10;
  if (!runs) return kNoBinary;
  if (suffix == 'x') return kInvalidImage;
  if (is_ptx && !strcmp(entry, "newer")) return kUnsupportedPtx;
  *module = new Module{stack.back(), {entry, stack.back(), 0, false}};
  modules[*module].reset(*module);
  last_image = static_cast<const char*>(image);
  ++loads;
  return 0;
}

Result cuModuleUnload(Module* module) {
  FAKE_CALL("cuModuleUnload");
  if (stack.empty() || stack.back() != module->context) return ++mistakes, kInvalidContext;
  modules.erase(module);
  return 0;
}

Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
  FAKE_CALL("cuModuleGetFunction");
  if (module->function.entry != name) return kNotFound;
  *function = &module->function;
  return 0;
}

Result cuFuncGetAttribute(int32_t* value, int32_t attribute, Function* function) {
  FAKE_CALL("cuFuncGetAttribute");
  if (attribute != 0) return kInvalidValue;
  *value = function->entry == "narrow" ? 64 : 1024;
  return 0;
}

Result cuFuncSetAttribute(Function* function, int32_t attribute, int32_t value) {
  FAKE_CALL("cuFuncSetAttribute");
  if (attribute != 8 || value > shared_limits.at(function->context->device)) return kInvalidValue;
  function->shared_bytes = value;
  return 0;
}

Result cuFuncLoad(Function* function) {
  FAKE_CALL("cuFuncLoad");
  function->is_loaded = true;
  return 0;
}

Result cuTensorMapEncodeTiled(void* map, int32_t type, uint32_t rank, void* address, const uint64_t* dims,
                              const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                              int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill) {
  FAKE_CALL("cuTensorMapEncodeTiled");
  const auto is_multiple = [](const void* at, uintptr_t of) { return reinterpret_cast<uintptr_t>(at) % of == 0; };
  if (!is_multiple(map, 64) || !is_multiple(address, 16) || rank < 1 || rank > 5) return kInvalidValue;
  if (interleave != 0 || promotion != 2 || fill != 0 || swizzle > 3 || type > 12) return kInvalidValue;
  fake_cuda::Map made = {address, {}, {}, {}, uint8_t(type), uint8_t(rank), uint8_t(swizzle)};
  for (uint32_t i = 0; i < rank; ++i) {
    if (dims[i] == 0 || box[i] == 0 || box[i] > 256 || steps[i] != 1) return kInvalidValue;
    if (i + 1 < rank && (strides[i] == 0 || strides[i] % 16 != 0)) return kInvalidValue;
    made.dims[i] = dims[i];
    made.box[i] = box[i];
    if (i + 1 < rank) made.strides[i] = strides[i];
  }
  memcpy(map, &made, sizeof made);
  return 0;
}

static Result Launched(Function* function, const uint32_t* blocks, const uint32_t* block, uint32_t shared_bytes, void* stream,
                       void** parameters, void** extra, bool is_early) {
  const uint32_t x = blocks[0], y = blocks[1], z = blocks[2], threads = block[0], threads_y = block[1], threads_z = block[2];
  Body* body = nullptr;
  {
    FAKE_CALL("cuLaunchKernel");
    if (stack.empty() || stack.back() != function->context || (kLoadsBeforeLaunch && !function->is_loaded)) return ++mistakes, kInvalidContext;
    if (x == 0 || y == 0 || z == 0 || threads == 0 || threads_y != 1 || threads_z != 1 || extra != nullptr) return kInvalidValue;
    if (shared_bytes > 48 << 10 && shared_bytes > static_cast<uint32_t>(function->shared_bytes)) return kInvalidValue;
    body = bodies.at(function->entry);
    if (is_captured) captured.emplace_back(new int);
  }
  body({function->entry.c_str(), {x, y, z}, threads, shared_bytes, stream, parameters, is_early});
  return 0;
}

Result cuLaunchKernel(Function* function, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t threads_y,
                      uint32_t threads_z, uint32_t shared_bytes, void* stream, void** parameters, void** extra) {
  const uint32_t blocks[] = {x, y, z}, block[] = {threads, threads_y, threads_z};
  return Launched(function, blocks, block, shared_bytes, stream, parameters, extra, false);
}

struct Attribute {
  int32_t id, padding, value[16];
};
struct Config {
  uint32_t blocks[3], block[3], shared_bytes;
  void* stream;
  Attribute* attributes;
  uint32_t count;
};

Result cuLaunchKernelEx(const Config* config, Function* function, void** parameters, void** extra) {
  const bool is_early = config->count == 1 && config->attributes->id == 6 && config->attributes->value[0] == 1;
  if (!is_early || captured.empty()) return ++mistakes, kInvalidValue;
  return Launched(function, config->blocks, config->block, config->shared_bytes, config->stream, parameters, extra, true);
}

Result cuStreamGetCaptureInfo_v3(void*, int32_t* status, uint64_t* id, void**, void* const** nodes, const void** edges, size_t* count) {
  static thread_local void* last;
  const std::lock_guard<std::mutex> lock(mutex);
  *status = is_captured ? 1 : 0;
  if (!is_captured) return 0;
  if (edges == nullptr) return kInvalidValue;
  *id = captures;
  *count = captured.empty() ? 0 : 1;
  last = captured.empty() ? nullptr : captured.back().get();
  *nodes = &last;
  return 0;
}

__attribute__((visibility("default"))) extern const fake_cuda::Control fake_cuda_control;
const fake_cuda::Control fake_cuda_control = {
    [](const int32_t (*given)[2], int32_t count) {
      devices.clear();
      architectures.clear();
      shared_limits.clear();
      for (int32_t i = 0; i < count; ++i) {
        devices.push_back({i, 0});
        architectures.push_back(given[i][0]);
        shared_limits.push_back(given[i][1]);
      }
      modules.clear();
      loads = mistakes = 0;
      fail_at = -1;
      failed = nullptr;
      has_ended = false;
      stack.clear();
    },
    [](const char* entry, Body* body) { bodies[entry] = body; },
    [](int count, Result code) {
      fail_at = count;
      fail_code = code;
      failed = nullptr;
    },
    [] { return failed; },
    [] {
      Counts counts = {0, static_cast<int>(modules.size()), loads, static_cast<int>(stack.size()), mistakes};
      for (const Context& context : devices) counts.contexts += context.held;
      return counts;
    },
    [] { return last_image.c_str(); },
    [] { return stack.empty() ? -1 : stack.back()->device; },
    [](int device) { stack.push_back(&devices.at(device)); },
    [](bool is_begun) {
      captures += is_begun;
      is_captured = is_begun;
      captured.clear();
    },
    [] { captured.emplace_back(new int); },
    [] { has_ended = true; },
};

}  // extern "C"
