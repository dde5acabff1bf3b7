// Kernels by op: what a definition's entries are to ONNX Runtime.
#include "compile.h"
#include "ep.h"
#include "graph.h"

namespace ortkit::provider {
namespace {

struct SingleKernel {
  ort::KernelImpl abi;  // first
  std::unique_ptr<NodeKernel> kernel;
};

SingleKernel* AsSingle(ort::KernelImpl* abi) { return reinterpret_cast<SingleKernel*>(abi); }

ort::Status* Compute(ort::KernelImpl* abi, ort::KernelContext* context) {
  return AsSingle(abi)->kernel->Run(context);
}
void Release(ort::KernelImpl* abi) { delete AsSingle(abi); }

ort::Status* ReadShape(const Ep& ep, const ort::KernelInfo* info, NodeShape* shape) {
  const ort::Api* api = ep.api();
  size_t length = 0;
  // Without room it says how much is needed.
  if (ort::Status* status = ort::GetKernelNodeName(api)(info, nullptr, &length)) {
    ort::ReleaseStatus(api)(status);
  }
  std::vector<char> name(length + 1);
  if (length > 0) ORTKIT_RETURN_IF_FAILED(ort::GetKernelNodeName(api)(info, name.data(), &length));
  shape->name = name.data();
  size_t inputs = 0;
  size_t outputs = 0;
  ORTKIT_RETURN_IF_FAILED(ort::GetInputCount(api)(info, &inputs));
  ORTKIT_RETURN_IF_FAILED(ort::GetOutputCount(api)(info, &outputs));
  shape->input_count = static_cast<int32_t>(inputs);
  Reader reader(api);
  for (size_t i = 0; i < outputs; ++i) {
    ort::TypeInfo* type = nullptr;
    if (ort::Status* status = ort::GetOutputTypeInfo(api)(info, i, &type)) {
      ort::ReleaseStatus(api)(status);  // an optional output that nobody reads
      shape->output_types.push_back(0);
      continue;
    }
    shape->output_types.push_back(reader.ElementType(type));
    ort::ReleaseTypeInfo(api)(type);
  }
  return reader.Take();
}

ort::Status* CreateKernel(void* state, const ort::KernelInfo* info, ort::KernelImpl** out) {
  const auto& [ep, definition] = *static_cast<const KernelState*>(state);
  if (!ep->fatal.empty()) return Fail(ep->api(), ort::kFail, ep->fatal);
  OrtkitKernels kernels = {ep, {}, {}};
  kernels.shapes.resize(1);
  kernels.made.resize(1);
  ORTKIT_RETURN_IF_FAILED(ReadShape(*ep, info, &kernels.shapes[0]));
  const OrtkitKernelEntry& entry = definition->entry;
  const OrtkitKernelRequest request = {ep->api(), info};
  const Ep* the_ep = ep;
  ORTKIT_RETURN_IF_FAILED(Call(*the_ep, definition->op_type.c_str(), [&](OrtkitError* error) {
    return entry.create(entry.user, the_ep->user, &request, &kernels, error);
  }));
  if (kernels.made[0] == nullptr) {
    return ep->Refuse(ort::kFail, definition->op_type + ": create made no kernel");
  }
  auto* single = new SingleKernel{{}, std::move(kernels.made[0])};
  single->abi.version = ep->runtime().filled();
  single->abi.Compute = Compute;
  single->abi.Release = Release;
  *out = &single->abi;
  return nullptr;
}

ort::Status* Describe(const Ep& ep, const KernelDefinition& kernel, ort::KernelDefBuilder* builder) {
  const ort::EpApi* api = ep.runtime().ep;
  const OrtkitKernelEntry& entry = kernel.entry;
  ORTKIT_RETURN_IF_FAILED(ort::SetOperatorType(api)(builder, kernel.op_type.c_str()));
  ORTKIT_RETURN_IF_FAILED(ort::SetDomain(api)(builder, kernel.domain.c_str()));
  ORTKIT_RETURN_IF_FAILED(ort::SetSinceVersion(api)(builder, entry.first_version, entry.last_version));
  ORTKIT_RETURN_IF_FAILED(ort::SetExecutionProvider(api)(builder, ep.definition->name.c_str()));
  for (const auto& [name, element_types] : kernel.constraints) {
    std::vector<const ort::DataType*> types(element_types.size());
    for (size_t i = 0; i < types.size(); ++i) {
      ORTKIT_RETURN_IF_FAILED(ort::GetTensorDataType(api)(element_types[i], &types[i]));
    }
    ORTKIT_RETURN_IF_FAILED(
        ort::AddTypeConstraint(api)(builder, name.c_str(), types.data(), types.size()));
  }
  for (const int32_t input : kernel.cpu_inputs) {
    ORTKIT_RETURN_IF_FAILED(ort::SetInputMemory(api)(builder, input, ort::kCpuInput));
  }
  for (const int32_t output : kernel.cpu_outputs) {
    ORTKIT_RETURN_IF_FAILED(ort::SetOutputMemory(api)(builder, output, ort::kCpuOutput));
  }
  return nullptr;
}

ort::Status* Add(Ep* ep, const KernelDefinition& kernel) {
  const ort::EpApi* api = ep->runtime().ep;
  ort::KernelDefBuilder* builder = nullptr;
  ORTKIT_RETURN_IF_FAILED(ort::CreateBuilder(api)(&builder));
  ort::KernelDef* made = nullptr;
  ort::Status* status = Describe(*ep, kernel, builder);
  if (status == nullptr) status = ort::BuildKernelDef(api)(builder, &made);
  ort::ReleaseBuilder(api)(builder);
  if (status != nullptr) return status;
  ep->kernel_states.push_back(std::make_unique<KernelState>(KernelState{ep, &kernel}));
  status = ort::AddKernel(api)(ep->registry, made, CreateKernel, ep->kernel_states.back().get());
  ort::ReleaseKernelDef(api)(made);
  return status;
}

}  // namespace

ort::Status* GetKernelRegistry(ort::Ep* abi, const ort::KernelRegistry** out) {
  Ep* ep = AsEp(abi);
  *out = nullptr;
  if (ep->registry == nullptr) {
    ORTKIT_RETURN_IF_FAILED(ort::CreateKernelRegistry(ep->runtime().ep)(&ep->registry));
    for (const KernelDefinition& kernel : ep->definition->kernels) {
      ORTKIT_RETURN_IF_FAILED(Add(ep, kernel));
    }
    ORTKIT_RETURN_IF_FAILED(AddCopyKernels(ep));
  }
  *out = ep->registry;
  return nullptr;
}

}  // namespace ortkit::provider
