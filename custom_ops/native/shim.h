// Parts of the shim, in the order in which a session meets them:
// register.cc, session.cc, describe.cc, infer.cc, kernel.cc, counted.cc, or streamed.cc with constants.cc; names*.cc are for
// ops under names of their users', cpu.cc answers what this machine runs.
// cuda*.cc are linked into libraries with CUDA kernels only.
//
// C++17 without exceptions, RTTI, or anything of the C++ run-time library: the archive is linked by
// the C compiler of whoever makes a kernel library.
#pragma once

#include "manifest.h"
#include "names.h"
#include "ort_abi.h"

namespace ortkit {

// One kernel of an op as one runtime sees it. Lives until the process ends: ONNX Runtime keeps
// pointers to it.
struct Op {
  ort::CustomOp abi;  // first: ONNX Runtime hands back a pointer to this member
  const OrtkitOp* spec;
  const ort::Api* api;
  bool is_cuda;       // the kernel for CUDA, not the one for the CPU
};

inline const Op* AsOp(const ort::CustomOp* op) { return reinterpret_cast<const Op*>(op); }

// A status that reads "ortkit.fused::<op type>: <reason>".
ort::Status* Refuse(const Op& op, ort::ErrorCode code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// describe.cc: what is the same for all ops; and an op with its kernel for the CPU.
ort::CustomOp DescribeAlike(OrtkitPairs may_inplace);
ort::CustomOp DescribeToRuntime(const OrtkitOp& spec);
// Refuses a node of other inputs or outputs than its op has.
ort::Status* CheckCounts(const Op& op, const ort::KernelInfo* info);

// session.cc: `ops` must live as long as the sessions made from `options`.
ort::Status* AddToSession(const ort::Api*, ort::SessionOptions*, const Op* ops, int32_t count);

// kernel.cc
ort::Status* CreateKernel(const ort::CustomOp*, const ort::Api*, const ort::KernelInfo*, void** kernel);
ort::Status* Compute(void* kernel, ort::KernelContext*);
void DestroyKernel(void* kernel);

// streamed.cc: the same for kernels that stream their constants.
ort::Status* CreateStreamed(const ort::CustomOp*, const ort::Api*, const ort::KernelInfo*, void** kernel);
ort::Status* ComputeStreamed(void* kernel, ort::KernelContext*);
void DestroyStreamed(void* kernel);

// counted.cc: the same for kernels that count the rows of their output.
ort::Status* ComputeCounted(void* kernel, ort::KernelContext*);

// Whether the session gets the set of kernels for CUDA.
ort::Status* IsForCuda(const ort::Api*, const ort::SessionOptions*, bool* is_cuda);

// infer.cc
ort::Status* InferOutputShape(const ort::CustomOp*, ort::ShapeContext*);
// The same for a node whose inputs stand elsewhere (`places`, -1 and below: not the node's) and may have
// any number of axes where the op has one (`wildcard_axes`); see names.h. Both may be null.
ort::Status* InferShapes(const Op& op, ort::ShapeContext*, const int32_t* places, const int32_t* wildcard_axes);

// names.cc: a runtime's ops under names of their users', in its part of the storage.
void MakeNames(const ort::Api*, int32_t entry);
ort::Status* AddNames(const ort::Api*, ort::SessionOptions*, int32_t entry);

// cpu.cc
const char* CpuName(OrtkitCpu cpu);
// What x86-64 processors say of themselves: words of CPUID, and the low half of XCR0.
struct CpuWords {
  uint32_t leaf1_ecx;
  uint32_t extended_ecx;  // leaf 0x80000001
  uint32_t leaf7_ebx;
  uint32_t saved_state;   // the registers that the system saves; 0 if it does not tell
  uint32_t leaf7_ecx = 0;
  uint32_t leaf7_edx = 0;
  uint32_t leaf7_part1_eax = 0;
};
// The highest level that such a processor runs.
OrtkitCpu LevelOf(const CpuWords& cpu);
// Null if this machine runs code built for `needed`, else the name of what it has.
const char* MissingCpu(OrtkitCpu needed);

#define ORTKIT_RETURN_IF_ERROR(call)              \
  do {                                            \
    if (::ort::Status* status_ = (call)) return status_; \
  } while (0)

}  // namespace ortkit

// cuda.cc, reached through the manifest only, so that it is not linked in where it is not used.
struct OrtkitCuda {
  ort::CustomOp (*DescribeToRuntime)(const OrtkitOp& spec);
  // Whether the driver is there and has a device.
  bool (*HasDevice)();
  // Whether some device runs some variant of the kernel; if not, says why: "no image for sm_86".
  bool (*CanRun)(const OrtkitCudaKernel& kernel, char* why, size_t capacity);
};

// names_cuda.cc, reached through the names only.
struct OrtkitNamesCuda {
  void (*Describe)(ort::CustomOp* abi);
  // Whether some device runs all kernels of the op; if not, says why.
  bool (*CanRun)(const OrtkitNamedOp& spec, char* why, size_t capacity);
};
