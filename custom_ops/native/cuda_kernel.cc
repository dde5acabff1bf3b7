// A node's kernel on CUDA: made when its session is, with all of its code loaded.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda.h"

namespace ortkit::cuda {
namespace {

#define ORTKIT_RETURN_IF_FAILED(op, driver, name, call)                              \
  do {                                                                               \
    if (const Result result_ = (call)) return Fail(op, driver, name, result_);       \
  } while (0)

// Without asking for more, a block gets 48 KB of shared memory.
constexpr int32_t kSharedBytesForAll = 48 << 10;

// The device is that of the session's allocator: threads that make sessions need not have it current.
ort::Status* FindDevice(const ort::KernelInfo* info, Kernel* kernel) {
  const Op& op = *kernel->op;
  ORTKIT_RETURN_IF_ERROR(ort::KernelInfoGetAllocator(op.api)(info, 0, &kernel->allocator));
  const ort::MemoryInfo* memory = nullptr;  // the allocator's
  ORTKIT_RETURN_IF_ERROR(ort::AllocatorGetInfo(op.api)(kernel->allocator, &memory));
  int32_t ordinal = 0;
  ORTKIT_RETURN_IF_ERROR(ort::MemoryInfoGetId(op.api)(memory, &ordinal));
  kernel->scratch = HoldPool(memory);
  if (kernel->scratch == nullptr) return Refuse(op, ort::kFail, "out of memory");
  const Driver& driver = *kernel->driver;
  ORTKIT_RETURN_IF_FAILED(op, driver, "cuDeviceGet", driver.DeviceGet(&kernel->device, ordinal));
  ORTKIT_RETURN_IF_FAILED(op, driver, "cuDevicePrimaryCtxRetain",
                          driver.PrimaryContextRetain(&kernel->context, kernel->device));
  return nullptr;
}

// "for sm_80, sm_90 and from sm_80 on".
void WriteImages(const OrtkitStep& step, char* text, size_t capacity) {
  size_t used = snprintf(text, capacity, "for ");
  for (int32_t i = 0; i < step.image_count && used < capacity; ++i) {
    const OrtkitImage& image = step.images[i];
    used += snprintf(text + used, capacity - used, "%s%ssm_%d%s", i == 0 ? "" : ", ",
                     image.is_ptx ? "from " : "", image.architecture, image.is_ptx ? " on" : "");
  }
}

ort::Status* RefuseDevice(const Op& op, const DeviceTraits& device) {
  const OrtkitCudaKernel& spec = *op.spec->cuda;
  char images[160] = "for no architecture";
  if (spec.variant_count > 0 && spec.variants[0].step_count > 0) {
    WriteImages(spec.variants[0].steps[0], images, sizeof images);
  }
  return Refuse(op, ort::kFail,
                "its kernel does not run on this GPU (sm_%d, %d bytes of shared memory for a block); it "
                "is %s: build it with --arch sm_%d, or load the model without the library",
                device.architecture, device.shared_bytes, images, device.architecture);
}

// What the driver does not know may be newer than it.
bool MayBeTooOld(Result result) {
  return result == kInvalidImage || result == kNoBinaryForGpu || result == kInvalidPtx ||
         result == kNoPtxCompiler || result == kUnsupportedPtx;
}

ort::Status* LoadStep(Kernel* kernel, const OrtkitStep& step, const DeviceTraits& device, Launch* launch) {
  const Op& op = *kernel->op;
  const Driver& driver = *kernel->driver;
  LoadLog log;
  const Result result = Acquire(driver, kernel->context, step, device.architecture, &launch->loaded, &log);
  if (result != 0) {
    int32_t version = 0;
    driver.DriverGetVersion(&version);
    char detail[256];
    snprintf(detail, sizeof detail, " on sm_%d with a driver for CUDA %d.%d%s%s%s", device.architecture,
             version / 1000, version % 1000 / 10, MayBeTooOld(result) ? ", which may be too old" : "",
             log.text[0] ? ": " : "", log.text);
    return Fail(op, driver, "cuModuleLoadDataEx", result, detail);
  }
  ORTKIT_RETURN_IF_FAILED(
      op, driver, "cuModuleGetFunction",
      driver.ModuleGetFunction(&launch->function, ModuleOf(launch->loaded), step.entry));
  if (step.shared_bytes > kSharedBytesForAll) {
    ORTKIT_RETURN_IF_FAILED(
        op, driver, "cuFuncSetAttribute",
        driver.FunctionSetAttribute(launch->function, kMaxDynamicSharedBytes, step.shared_bytes));
  }
  // The driver may put off loading until the first launch, which may come while a graph is captured.
  if (driver.FunctionLoad != nullptr) {
    ORTKIT_RETURN_IF_FAILED(op, driver, "cuFuncLoad", driver.FunctionLoad(launch->function));
  }
  int32_t threads = 0;
  ORTKIT_RETURN_IF_FAILED(op, driver, "cuFuncGetAttribute",
                          driver.FunctionGetAttribute(&threads, kMaxThreads, launch->function));
  if (threads >= step.threads) return nullptr;
  return Refuse(op, ort::kFail, "a block of its kernel has %d threads, and this GPU runs %d of them",
                step.threads, threads);
}

bool IsNeverEmpty(const OrtkitVariant& variant) {
  for (int32_t i = 0; i < variant.step_count; ++i) {
    const OrtkitStep& step = variant.steps[i];
    for (int32_t j = 0; j < step.map_count; ++j) {
      for (int32_t axis = 0; axis < step.maps[j].rank; ++axis) {
        const OrtkitExtent& dim = step.maps[j].dims[axis];
        if (dim.symbol_count > 0 || dim.factor == 0) return false;
      }
    }
  }
  return true;
}

// Whether a variant takes runs of all sizes.
bool TakesAny(const OrtkitVariant& variant) {
  for (int32_t i = 0; i < variant.condition_count; ++i) {
    const OrtkitCondition& one = variant.conditions[i];
    if (one.extent.symbol_count > 0 || one.extent.factor > one.at_most || one.extent.factor % one.divisible_by != 0) {
      return false;
    }
  }
  return IsNeverEmpty(variant);
}

ort::Status* LoadVariants(Kernel* kernel) {
  const Op& op = *kernel->op;
  const OrtkitCudaKernel& spec = *op.spec->cuda;
  DeviceTraits device = {};
  ORTKIT_RETURN_IF_FAILED(op, *kernel->driver, "cuDeviceGetAttribute",
                          ReadTraits(*kernel->driver, kernel->device, &device));
  const ContextGuard guard(*kernel->driver, kernel->context);
  ORTKIT_RETURN_IF_FAILED(op, *kernel->driver, "cuCtxPushCurrent", guard.result());
  bool is_any_usable = false, takes_aligned = false, takes_all = false;
  for (int32_t i = 0; i < spec.variant_count; ++i) {
    const OrtkitVariant& variant = spec.variants[i];
    // What no run takes may be PTX, which the driver would compile for seconds.
    if (takes_all || (takes_aligned && variant.is_aligned) || !Fits(variant, device)) continue;
    for (int32_t j = 0; j < variant.step_count; ++j) {
      ORTKIT_RETURN_IF_ERROR(LoadStep(kernel, variant.steps[j], device, &kernel->launches[i][j]));
    }
    kernel->is_usable[i] = is_any_usable = true;
    takes_aligned = takes_aligned || TakesAny(variant);
    takes_all = takes_all || (TakesAny(variant) && !variant.is_aligned);
  }
  return is_any_usable ? nullptr : RefuseDevice(op, device);
}

ort::Status* Fill(const ort::KernelInfo* info, Kernel* kernel) {
  if (kernel->driver == nullptr) {
    return Refuse(*kernel->op, ort::kFail, "there is no CUDA driver with a device (libcuda.so.1)");
  }
  ORTKIT_RETURN_IF_ERROR(FindDevice(info, kernel));
  return LoadVariants(kernel);
}

}  // namespace

ort::Status* CreateKernel(const ort::CustomOp* custom_op, const ort::Api*, const ort::KernelInfo* info,
                          void** made) {
  const Op& op = *AsOp(custom_op);
  ORTKIT_RETURN_IF_ERROR(CheckCounts(op, info));
  Kernel* kernel = nullptr;
  ORTKIT_RETURN_IF_ERROR(MakeKernel(op, info, &kernel));
  *made = kernel;
  return nullptr;
}

ort::Status* MakeKernel(const Op& op, const ort::KernelInfo* info, Kernel** made) {
  auto* kernel = static_cast<Kernel*>(calloc(1, sizeof(Kernel)));
  if (kernel == nullptr) return Refuse(op, ort::kFail, "out of memory");
  kernel->op = &op;
  kernel->driver = FindDriver();
  StartNvtx();
  ort::Status* status = Fill(info, kernel);
  if (status != nullptr) {
    DestroyKernel(kernel);
    return status;
  }
  *made = kernel;
  return nullptr;
}

// May come when the driver has ended or the context is gone: what then fails is gone as well.
void DestroyKernel(void* made) {
  auto* kernel = static_cast<Kernel*>(made);
  if (kernel->context != nullptr) {
    const ContextGuard guard(*kernel->driver, kernel->context);
    for (const auto& steps : kernel->launches) {
      for (const Launch& launch : steps) {
        if (launch.loaded != nullptr) Release(*kernel->driver, launch.loaded, guard.result() == 0);
      }
    }
  }
  if (kernel->context != nullptr) kernel->driver->PrimaryContextRelease(kernel->device);
  if (kernel->scratch != nullptr) LetGoOfPool(kernel->scratch, kernel->op->api, kernel->allocator);
  if (kernel->allocator != nullptr) ort::ReleaseAllocator(kernel->op->api)(kernel->allocator);
  free(kernel);
}

}  // namespace ortkit::cuda
