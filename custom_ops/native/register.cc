// The library's one export: registers every op of the manifest with a session's options.
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "shim.h"

namespace ortkit {
namespace {

using Manifest = OrtkitManifest;

const char* GetName(const ort::CustomOp* op) { return AsOp(op)->spec->op_type; }
const char* GetExecutionProviderType(const ort::CustomOp*) { return nullptr; }
size_t GetInputTypeCount(const ort::CustomOp* op) { return AsOp(op)->spec->input_count; }
size_t GetOutputTypeCount(const ort::CustomOp* op) { return AsOp(op)->spec->output_count; }
int32_t GetInputType(const ort::CustomOp* op, size_t index) {
  return AsOp(op)->spec->tensors[index].element_type;
}
int32_t GetOutputType(const ort::CustomOp* op, size_t index) {
  const OrtkitOp* spec = AsOp(op)->spec;
  return spec->tensors[spec->input_count + index].element_type;
}
int32_t ZeroAt(const ort::CustomOp*, size_t) { return 0; }
int32_t One(const ort::CustomOp*) { return 1; }
int32_t AnyVersion(const ort::CustomOp*) { return INT32_MAX; }

ort::CustomOp DescribeToRuntime() {
  ort::CustomOp abi = {};
  abi.version = ort::kApiVersion;
  abi.GetName = GetName;
  abi.GetExecutionProviderType = GetExecutionProviderType;
  abi.GetInputType = GetInputType;
  abi.GetInputTypeCount = GetInputTypeCount;
  abi.GetOutputType = GetOutputType;
  abi.GetOutputTypeCount = GetOutputTypeCount;
  abi.KernelDestroy = DestroyKernel;
  abi.GetInputCharacteristic = ZeroAt;
  abi.GetOutputCharacteristic = ZeroAt;
  abi.GetInputMemoryType = ZeroAt;
  abi.GetVariadicInputMinArity = One;
  abi.GetVariadicInputHomogeneity = One;
  abi.GetVariadicOutputMinArity = One;
  abi.GetVariadicOutputHomogeneity = One;
  abi.CreateKernelV2 = CreateKernel;
  abi.KernelComputeV2 = Compute;
  abi.InferOutputShape = InferOutputShape;
  abi.GetStartVersion = One;
  abi.GetEndVersion = AnyVersion;
  return abi;
}

// The ops as registered with one runtime. A process may hold two (the Python package links its own
// copy beside libonnxruntime.so), and shape inference is not told which one calls: hence one each.
struct Registration {
  const ort::Api* api;
  ort::OpDomain* domain;
  Registration* next;
  Op ops[1];  // as many as the manifest has
};

std::atomic<Registration*> registrations{nullptr};

Registration* Find(const ort::Api* api) {
  Registration* entry = registrations.load(std::memory_order_acquire);
  while (entry != nullptr && entry->api != api) entry = entry->next;
  return entry;
}

ort::Status* Fill(Registration* entry, const ort::Api* api, const Manifest& manifest) {
  ORTKIT_RETURN_IF_ERROR(ort::CreateCustomOpDomain(api)(manifest.domain, &entry->domain));
  for (int32_t i = 0; i < manifest.op_count; ++i) {
    entry->ops[i] = {DescribeToRuntime(), &manifest.ops[i], api};
    ORTKIT_RETURN_IF_ERROR(ort::CustomOpDomainAdd(api)(entry->domain, &entry->ops[i].abi));
  }
  return nullptr;
}

void Discard(Registration* entry) {
  if (entry->domain != nullptr) ort::ReleaseCustomOpDomain(entry->api)(entry->domain);
  free(entry);
}

// Finds this runtime's registration or makes it. Two threads may make one at once: one wins.
ort::Status* FindOrMake(const ort::Api* api, const Manifest& manifest, Registration** out) {
  if ((*out = Find(api)) != nullptr) return nullptr;
  const size_t bytes = sizeof(Registration) + manifest.op_count * sizeof(Op);
  auto* entry = static_cast<Registration*>(calloc(1, bytes));
  if (entry == nullptr) return ort::CreateStatus(api)(ort::kFail, "ortkit.fused: out of memory");
  entry->api = api;
  if (ort::Status* status = Fill(entry, api, manifest)) {
    Discard(entry);
    return status;
  }
  entry->next = registrations.load(std::memory_order_acquire);
  do {
    if ((*out = Find(api)) != nullptr) {
      Discard(entry);
      return nullptr;
    }
  } while (!registrations.compare_exchange_weak(entry->next, entry, std::memory_order_acq_rel));
  *out = entry;
  return nullptr;
}

// A status made through version 1 of the table, which every runtime has.
ort::Status* RefuseLibrary(const ort::ApiBase* base, const char* format, const char* first,
                           const char* second) {
  char text[256];
  snprintf(text, sizeof text, format, first, second);
  return ort::CreateStatus(base->GetApi(1))(ort::kFail, text);
}

}  // namespace

ort::Status* Refuse(const Op& op, ort::ErrorCode code, const char* format, ...) {
  char reason[384];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  char text[640];
  snprintf(text, sizeof text, "%s::%s: %s", ortkit_manifest.domain, op.spec->op_type, reason);
  return ort::CreateStatus(op.api)(code, text);
}

}  // namespace ortkit

extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(
    ort::SessionOptions* options, const ort::ApiBase* base) {
  const ort::Api* api = base->GetApi(ort::kApiVersion);
  if (api == nullptr) {
    return ortkit::RefuseLibrary(
        base, "%s: this kernel library needs ONNX Runtime 1.24 or newer, and this is %s",
        ortkit_manifest.domain, base->GetVersionString());
  }
  if (const char* have = ortkit::MissingCpu(ortkit_manifest.cpu)) {
    return ortkit::RefuseLibrary(
        base, "ortkit.fused: these kernels need a processor of level %s, and this one is %s; "
        "build them for its level, or load the model without them",
        ortkit::CpuName(ortkit_manifest.cpu), have);
  }
  ortkit::Registration* entry = nullptr;
  ORTKIT_RETURN_IF_ERROR(ortkit::FindOrMake(api, ortkit_manifest, &entry));
  return ort::AddCustomOpDomain(api)(options, entry->domain);
}
