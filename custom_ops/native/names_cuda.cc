// Ops under names of their users' on CUDA: a node has a kernel for each choice that may be taken in a run.
#include <cstdlib>

#include "cuda.h"
#include "names_node.h"

namespace ortkit::cuda {
namespace {

struct NamedKernel {
  Node node;
  Op* ops;           // of each choice, which its kernel points to
  Kernel** kernels;  // null where the choice has none for CUDA
};

const char* GetExecutionProviderType(const ort::CustomOp*) { return kCudaProvider; }

void DestroyNamed(void* made) {
  auto* kernel = static_cast<NamedKernel*>(made);
  for (int32_t i = 0; kernel->kernels != nullptr && i < kernel->node.op->spec->choice_count; ++i) {
    if (kernel->kernels[i] != nullptr) DestroyKernel(kernel->kernels[i]);
  }
  free(kernel->kernels);
  free(kernel->ops);
  free(kernel);
}

ort::Status* Fill(const NamedOp& op, const ort::KernelInfo* info, NamedKernel* kernel) {
  ORTKIT_RETURN_IF_ERROR(ReadNode(op, info, &kernel->node));
  const OrtkitNamedOp& spec = *op.spec;
  kernel->ops = static_cast<Op*>(calloc(spec.choice_count, sizeof(Op)));
  kernel->kernels = static_cast<Kernel**>(calloc(spec.choice_count, sizeof(Kernel*)));
  if (kernel->ops == nullptr || kernel->kernels == nullptr) return RefuseNode(op, "%s", "out of memory");
  for (int32_t i = 0; i < spec.choice_count; ++i) {
    if (spec.choices[i].op->cuda == nullptr) continue;
    kernel->ops[i] = OpOf(op, spec.choices[i]);
    ORTKIT_RETURN_IF_ERROR(MakeKernel(kernel->ops[i], info, &kernel->kernels[i]));
  }
  return nullptr;
}

ort::Status* CreateNamed(const ort::CustomOp* custom_op, const ort::Api*, const ort::KernelInfo* info, void** made) {
  const NamedOp& op = *AsNamed(custom_op);
  auto* kernel = static_cast<NamedKernel*>(aligned_alloc(alignof(NamedKernel), sizeof(NamedKernel)));
  if (kernel == nullptr) return RefuseNode(op, "%s", "out of memory");
  *kernel = {};
  kernel->node.op = &op;
  ort::Status* status = Fill(op, info, kernel);
  if (status != nullptr) {
    DestroyNamed(kernel);
    return status;
  }
  *made = kernel;
  return nullptr;
}

ort::Status* ComputeNamed(void* made, ort::KernelContext* context) {
  auto& kernel = *static_cast<NamedKernel*>(made);
  const NvtxRange range(kernel.node.op->spec->name);
  Run run;
  Star star;
  int32_t chosen = 0;
  ORTKIT_RETURN_IF_ERROR(ChooseAndRead(kernel.node, context, &run, &star, &chosen));
  ORTKIT_RETURN_IF_ERROR(MakeNamedOutputs(kernel.node, context, chosen, star, &run));
  return LaunchRun(kernel.kernels[chosen], context, run);
}

void Describe(ort::CustomOp* abi) {
  abi->GetExecutionProviderType = GetExecutionProviderType;
  abi->CreateKernelV2 = CreateNamed;
  abi->KernelComputeV2 = ComputeNamed;
  abi->KernelDestroy = DestroyNamed;
  abi->GetMayInplace = nullptr;  // what holds for the kernel of the CPU need not hold here
}

// All kernels that a node may need must run, as which one it needs a run tells.
bool CanRun(const OrtkitNamedOp& spec, char* why, size_t capacity) {
  for (int32_t i = 0; i < spec.choice_count; ++i) {
    const OrtkitCudaKernel* kernel = spec.choices[i].op->cuda;
    if (kernel != nullptr && !ortkit_cuda.CanRun(*kernel, why, capacity)) return false;
  }
  return true;
}

}  // namespace
}  // namespace ortkit::cuda

extern "C" const OrtkitNamesCuda ortkit_names_cuda = {ortkit::cuda::Describe, ortkit::cuda::CanRun};
