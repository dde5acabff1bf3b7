// NVTX version 3 is in headers only: what is called finds a tool's library by itself. This is that much
// of it, written from the description of its types: the variable NVTX_INJECTION64_PATH names a library,
// whose InitializeInjectionNvtx2 is handed a function for tables, and writes its own functions into them.
#include "cuda_nvtx.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace ortkit::cuda {
namespace {

using Function = void (*)();
using RangePush = int (*)(const char* name);
using RangePop = int (*)();

// Tables, modules and their functions by number.
constexpr uint32_t kCallbacks = 1, kVersion = 3;
constexpr int32_t kCore = 1;
constexpr uint32_t kRangePush = 9, kRangePop = 11, kCoreCount = 16;
constexpr uint32_t kNvtxVersion = 3;

struct Callbacks {
  size_t bytes;
  int (*GetModuleFunctionTable)(int32_t module, Function*** table, uint32_t* count);
};

struct Version {
  size_t bytes;
  uint32_t version;
  uint32_t reserved;
  void (*SetInjectionVersion)(uint32_t);
};

using GetExportTable = const void* (*)(uint32_t table);
using Initialize = int (*)(GetExportTable);

Function functions[kCoreCount];
Function* core[kCoreCount];

int GetModuleFunctionTable(int32_t module, Function*** table, uint32_t* count) {
  if (module != kCore) return 0;
  if (table != nullptr) *table = core;
  if (count != nullptr) *count = kCoreCount;
  return 1;
}

void IgnoreVersion(uint32_t) {}

const void* ExportTable(uint32_t table) {
  static const Callbacks callbacks = {sizeof(Callbacks), GetModuleFunctionTable};
  static const Version version = {sizeof(Version), kNvtxVersion, 0, IgnoreVersion};
  if (table == kCallbacks) return &callbacks;
  return table == kVersion ? &version : nullptr;
}

// The tool stays loaded: it is called until the process ends.
bool Attach() {
  const char* wanted = getenv("ORTKIT_NVTX");
  const char* path = getenv("NVTX_INJECTION64_PATH");
  if (wanted == nullptr || strcmp(wanted, "1") != 0 || path == nullptr) return false;
  void* library = dlopen(path, RTLD_LAZY);
  if (library == nullptr) return false;
  const auto initialize = reinterpret_cast<Initialize>(dlsym(library, "InitializeInjectionNvtx2"));
  for (uint32_t i = 1; i < kCoreCount; ++i) core[i] = &functions[i];
  return initialize != nullptr && initialize(ExportTable) != 0 && functions[kRangePush] != nullptr &&
         functions[kRangePop] != nullptr;
}

pthread_once_t once = PTHREAD_ONCE_INIT;
std::atomic<bool> is_attached{false};

}  // namespace

void StartNvtx() {
  pthread_once(&once, [] { is_attached.store(Attach(), std::memory_order_release); });
}

NvtxRange::NvtxRange(const char* name) : is_open_(is_attached.load(std::memory_order_acquire)) {
  if (is_open_) reinterpret_cast<RangePush>(functions[kRangePush])(name);
}

NvtxRange::~NvtxRange() {
  if (is_open_) reinterpret_cast<RangePop>(functions[kRangePop])();
}

}  // namespace ortkit::cuda
