// The shim's part for CUDA, in the order in which a session meets it: cuda.cc (which kernels it can
// have), cuda_kernel.cc (a node's kernel, made), cuda_launch.cc (run); beneath them cuda_blas.cc,
// cuda_capture.cc, cuda_driver.cc, cuda_maps.cc, cuda_modules.cc, cuda_scratch.cc and cuda_nvtx.cc.
#pragma once

#include "cuda_driver.h"
#include "cuda_modules.h"
#include "cuda_nvtx.h"
#include "cuda_ort.h"
#include "cuda_scratch.h"
#include "shim.h"

namespace ortkit {
struct Run;  // run.h
}

namespace ortkit::cuda {

struct Launch {
  Function* function;
  Loaded* loaded;  // what holds it
};

// A node's kernel. Everything that a run needs is loaded when it is made, as a run may be captured into
// a CUDA graph, where nothing can be.
struct Kernel {
  const Op* op;
  const Driver* driver;
  Device device;
  Context* context;                 // null until it is held
  ort::Allocator* allocator;        // the session's for this device
  ScratchPool* scratch;             // of all kernels with that allocator; null until it is held
  bool is_usable[ORTKIT_MAX_CUDA_VARIANTS];
  Launch launches[ORTKIT_MAX_CUDA_VARIANTS][ORTKIT_MAX_CUDA_STEPS];
};

// "ortkit.fused::<op type>: <call> failed with <the code's name> (<code>)<detail>".
ort::Status* Fail(const Op& op, const Driver& driver, const char* call, Result result,
                  const char* detail = "");

// Whether a device runs all steps of a variant, as far as the manifest tells.
bool Fits(const OrtkitVariant& variant, const DeviceTraits& device);

// cuda_kernel.cc
ort::Status* CreateKernel(const ort::CustomOp*, const ort::Api*, const ort::KernelInfo*, void** kernel);
void DestroyKernel(void* kernel);

// The same for an op whose node has other inputs than it.
ort::Status* MakeKernel(const Op& op, const ort::KernelInfo*, Kernel** made);

// cuda_launch.cc
ort::Status* Compute(void* kernel, ort::KernelContext*);
// Launches on what was read and made.
ort::Status* LaunchRun(Kernel* kernel, ort::KernelContext*, const Run& run);

}  // namespace ortkit::cuda
