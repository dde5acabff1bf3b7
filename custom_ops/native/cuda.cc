// What a library with CUDA kernels tells of them before a session is there.
#include "cuda.h"

#include <cstdio>

namespace ortkit::cuda {
namespace {

const char* GetExecutionProviderType(const ort::CustomOp*) { return kCudaProvider; }

ort::CustomOp Describe(const OrtkitOp& spec) {
  ort::CustomOp abi = DescribeToRuntime(spec);
  abi.GetExecutionProviderType = GetExecutionProviderType;
  abi.CreateKernelV2 = CreateKernel;
  abi.KernelComputeV2 = Compute;
  abi.KernelDestroy = DestroyKernel;
  abi.GetMayInplace = nullptr;  // what holds for the kernel of the CPU need not hold here
  return abi;
}

bool HasDevice() { return FindDriver() != nullptr; }

bool FitsAny(const OrtkitCudaKernel& kernel, const DeviceTraits& device) {
  for (int32_t i = 0; i < kernel.variant_count; ++i) {
    if (Fits(kernel.variants[i], device)) return true;
  }
  return false;
}

bool CanRun(const OrtkitCudaKernel& kernel, char* why, size_t capacity) {
  const Driver* driver = FindDriver();
  int32_t count = 0;
  if (driver == nullptr || driver->DeviceGetCount(&count) != 0) {
    snprintf(why, capacity, "no GPU");
    return false;
  }
  size_t used = snprintf(why, capacity, "no image for");
  for (int32_t ordinal = 0; ordinal < count; ++ordinal) {
    Device device = 0;
    DeviceTraits traits = {};
    if (driver->DeviceGet(&device, ordinal) != 0 || ReadTraits(*driver, device, &traits) != 0) continue;
    if (FitsAny(kernel, traits)) return true;
    if (used < capacity) {
      used += snprintf(why + used, capacity - used, "%s sm_%d", ordinal == 0 ? "" : ",", traits.architecture);
    }
  }
  return false;
}

}  // namespace

bool Fits(const OrtkitVariant& variant, const DeviceTraits& device) {
  for (int32_t i = 0; i < variant.step_count; ++i) {
    const OrtkitStep& step = variant.steps[i];
    if (step.shared_bytes > device.shared_bytes) return false;
    if (step.map_count > 0 && !device.has_maps) return false;
    bool has_image = false;
    for (int32_t j = 0; j < step.image_count; ++j) {
      has_image = has_image || RankOf(step.images[j], device.architecture) != 0;
    }
    if (!has_image) return false;
  }
  return true;
}

ort::Status* Fail(const Op& op, const Driver& driver, const char* call, Result result,
                  const char* detail) {
  const char* name = nullptr;
  if (driver.GetErrorName(result, &name) != 0 || name == nullptr) name = "an unknown error";
  return Refuse(op, ort::kFail, "%s failed with %s (%d)%s", call, name, result, detail);
}

}  // namespace ortkit::cuda

extern "C" const OrtkitCuda ortkit_cuda = {ortkit::cuda::Describe, ortkit::cuda::HasDevice, ortkit::cuda::CanRun};
