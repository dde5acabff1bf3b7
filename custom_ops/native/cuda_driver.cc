// Finds the CUDA driver at run time: a library that needs it at link time would not load without it.
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

namespace ortkit::cuda {
namespace {

struct Symbol {
  const char* name;
  void** place;
  bool is_optional;
};

template <class Function>
Symbol Need(const char* name, Function** place) {
  return {name, reinterpret_cast<void**>(place), false};
}

bool LoadSymbols(void* library, Driver* driver) {
  const Symbol symbols[] = {
      Need("cuInit", &driver->Init),
      Need("cuGetErrorName", &driver->GetErrorName),
      Need("cuDriverGetVersion", &driver->DriverGetVersion),
      Need("cuDeviceGetCount", &driver->DeviceGetCount),
      Need("cuDeviceGet", &driver->DeviceGet),
      Need("cuDeviceGetAttribute", &driver->DeviceGetAttribute),
      Need("cuDevicePrimaryCtxRetain", &driver->PrimaryContextRetain),
      Need("cuDevicePrimaryCtxRelease_v2", &driver->PrimaryContextRelease),
      Need("cuCtxGetCurrent", &driver->ContextGetCurrent),
      Need("cuCtxPushCurrent_v2", &driver->ContextPush),
      Need("cuCtxPopCurrent_v2", &driver->ContextPop),
      Need("cuModuleLoadDataEx", &driver->ModuleLoad),
      Need("cuModuleUnload", &driver->ModuleUnload),
      Need("cuModuleGetFunction", &driver->ModuleGetFunction),
      Need("cuFuncGetAttribute", &driver->FunctionGetAttribute),
      Need("cuFuncSetAttribute", &driver->FunctionSetAttribute),
      {"cuFuncLoad", reinterpret_cast<void**>(&driver->FunctionLoad), true},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void**>(&driver->EncodeTensorMap), true},
      Need("cuLaunchKernel", &driver->Launch),
      {"cuStreamGetCaptureInfo_v3", reinterpret_cast<void**>(&driver->CaptureInfo), true},
      {"cuLaunchKernelEx", reinterpret_cast<void**>(&driver->LaunchWith), true},
  };
  for (const Symbol& symbol : symbols) {
    *symbol.place = dlsym(library, symbol.name);
    if (*symbol.place == nullptr && !symbol.is_optional) return false;
  }
  return true;
}

bool Start(Driver* driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  int32_t count = 0;
  return LoadSymbols(library, driver) && driver->Init(0) == 0 && driver->DeviceGetCount(&count) == 0 && count > 0;
}

pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
Driver started;
std::atomic<bool> is_started{false};

}  // namespace

const Driver* FindDriver() {
  if (is_started.load(std::memory_order_acquire)) return &started;
  pthread_mutex_lock(&start_mutex);
  if (!is_started.load(std::memory_order_relaxed)) {
    // What is missing now may be there for the next session.
    is_started.store(Start(&started), std::memory_order_release);
  }
  pthread_mutex_unlock(&start_mutex);
  return is_started.load(std::memory_order_acquire) ? &started : nullptr;
}

Result ReadTraits(const Driver& driver, Device device, DeviceTraits* traits) {
  int32_t major = 0;
  int32_t minor = 0;
  Result result = driver.DeviceGetAttribute(&major, kMajor, device);
  if (result == 0) result = driver.DeviceGetAttribute(&minor, kMinor, device);
  if (result == 0) result = driver.DeviceGetAttribute(&traits->shared_bytes, kSharedBytesOptIn, device);
  traits->architecture = major * 10 + minor;
  traits->has_maps = driver.EncodeTensorMap != nullptr;
  return result;
}

// A run's thread nearly always has the session's context already.
ContextGuard::ContextGuard(const Driver& driver, Context* context) : driver_(driver) {
  Context* current = nullptr;
  result_ = driver.ContextGetCurrent(&current);
  if (result_ != 0 || current == context) return;
  result_ = driver.ContextPush(context);
  is_pushed_ = result_ == 0;
}

ContextGuard::~ContextGuard() {
  Context* popped = nullptr;
  if (is_pushed_) driver_.ContextPop(&popped);
}

}  // namespace ortkit::cuda
