// The nodes that ONNX Runtime puts where a value crosses to or from a provider's memory.
//
// A provider with memory has to bring their kernels: without them the CPU's run, and a copy "to the device"
// stays where it is (seen with ONNX Runtime 1.24 and 1.31).
#include "factory.h"

namespace ortkit::provider {
namespace {

// ONNX TensorProto.DataType of all tensors of numbers that every ONNX Runtime knows.
constexpr int32_t kElementTypes[] = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20};

struct CopyKernel {
  ort::KernelImpl abi;  // first
  const Factory* factory;
};

ort::Status* Compute(ort::KernelImpl* abi, ort::KernelContext* context) {
  const Factory& factory = *reinterpret_cast<CopyKernel*>(abi)->factory;
  const ort::Api* api = factory.runtime.api;
  const ort::Value* from = nullptr;
  ort::Value* to = nullptr;
  int32_t element_type = 0;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  void* stream = nullptr;
  ORTKIT_RETURN_IF_FAILED(ort::GetInput(api)(context, 0, &from));
  ORTKIT_RETURN_IF_FAILED(ort::GetTypeAndShapeReference(api)(from, &element_type, &dims, &rank));
  ORTKIT_RETURN_IF_FAILED(ort::GetOutput(api)(context, 0, dims, rank, &to));
  if (factory.definition->has_streams()) {
    ORTKIT_RETURN_IF_FAILED(ort::GetStreamHandle(api)(context, &stream));
  }
  return Copy(factory, from, to, reinterpret_cast<uint64_t>(stream));
}

void Release(ort::KernelImpl* abi) { delete reinterpret_cast<CopyKernel*>(abi); }

ort::Status* Create(void* state, const ort::KernelInfo*, ort::KernelImpl** out) {
  const Ep& ep = *static_cast<const Ep*>(state);
  auto* kernel = new CopyKernel{{}, ep.factory};
  kernel->abi.version = ep.runtime().filled();
  kernel->abi.Compute = Compute;
  kernel->abi.Release = Release;
  *out = &kernel->abi;
  return nullptr;
}

ort::Status* Describe(const Ep& ep, const char* op_type, bool is_from_host, ort::KernelDefBuilder* builder) {
  const ort::EpApi* api = ep.runtime().ep;
  std::vector<const ort::DataType*> types;
  for (const int32_t element_type : kElementTypes) {
    const ort::DataType* type = nullptr;
    ORTKIT_RETURN_IF_FAILED(ort::GetTensorDataType(api)(element_type, &type));
    types.push_back(type);
  }
  ORTKIT_RETURN_IF_FAILED(ort::SetOperatorType(api)(builder, op_type));
  ORTKIT_RETURN_IF_FAILED(ort::SetDomain(api)(builder, ""));
  ORTKIT_RETURN_IF_FAILED(ort::SetSinceVersion(api)(builder, 1, 1));
  ORTKIT_RETURN_IF_FAILED(ort::SetExecutionProvider(api)(builder, ep.definition->name.c_str()));
  ORTKIT_RETURN_IF_FAILED(ort::AddTypeConstraint(api)(builder, "T", types.data(), types.size()));
  return is_from_host ? ort::SetInputMemory(api)(builder, 0, ort::kCpuInput)
                      : ort::SetOutputMemory(api)(builder, 0, ort::kCpuOutput);
}

ort::Status* Add(Ep* ep, const char* op_type, bool is_from_host) {
  const ort::EpApi* api = ep->runtime().ep;
  ort::KernelDefBuilder* builder = nullptr;
  ORTKIT_RETURN_IF_FAILED(ort::CreateBuilder(api)(&builder));
  ort::KernelDef* made = nullptr;
  ort::Status* status = Describe(*ep, op_type, is_from_host, builder);
  if (status == nullptr) status = ort::BuildKernelDef(api)(builder, &made);
  ort::ReleaseBuilder(api)(builder);
  if (status != nullptr) return status;
  status = ort::AddKernel(api)(ep->registry, made, Create, ep);
  ort::ReleaseKernelDef(api)(made);
  return status;
}

}  // namespace

ort::Status* AddCopyKernels(Ep* ep) {
  if (!ep->definition->has_memory()) return nullptr;
  for (const bool is_from_host : {true, false}) {
    const char* op_type = is_from_host ? "MemcpyFromHost" : "MemcpyToHost";
    bool is_defined = false;
    for (const KernelDefinition& kernel : ep->definition->kernels) {
      is_defined = is_defined || kernel.op_type == op_type;
    }
    if (!is_defined) ORTKIT_RETURN_IF_FAILED(Add(ep, op_type, is_from_host));
  }
  return nullptr;
}

}  // namespace ortkit::provider
