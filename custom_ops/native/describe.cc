// What ONNX Runtime asks about an op, answered from its part of the manifest.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "shim.h"

namespace ortkit {
namespace {

constexpr int32_t kHostInput = -2;  // ONNX Runtime's OrtMemTypeCPUInput

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
// Sizes that follow from a value are known before a launch: the value has to be the host's.
int32_t GetInputMemoryType(const ort::CustomOp* op, size_t index) {
  const OrtkitOp& spec = *AsOp(op)->spec;
  for (int32_t i = 0; i < spec.value_size_count; ++i) {
    if (static_cast<size_t>(spec.value_sizes[i].tensor) == index) return kHostInput;
  }
  return 0;
}
int32_t One(const ort::CustomOp*) { return 1; }
int32_t AnyVersion(const ort::CustomOp*) { return INT32_MAX; }
void KeepPairs(int32_t*, int32_t*) {}  // they are static

}  // namespace

ort::CustomOp DescribeAlike(OrtkitPairs may_inplace) {
  ort::CustomOp abi = {};
  abi.version = ort::kApiVersion;
  abi.GetExecutionProviderType = GetExecutionProviderType;
  abi.GetInputCharacteristic = ZeroAt;
  abi.GetOutputCharacteristic = ZeroAt;
  abi.GetInputMemoryType = ZeroAt;
  abi.GetVariadicInputMinArity = One;
  abi.GetVariadicInputHomogeneity = One;
  abi.GetVariadicOutputMinArity = One;
  abi.GetVariadicOutputHomogeneity = One;
  abi.GetStartVersion = One;
  abi.GetEndVersion = AnyVersion;
  abi.GetMayInplace = may_inplace;
  abi.ReleaseMayInplace = KeepPairs;
  return abi;
}

ort::CustomOp DescribeToRuntime(const OrtkitOp& spec) {
  ort::CustomOp abi = DescribeAlike(spec.may_inplace);
  abi.GetName = GetName;
  abi.GetInputType = GetInputType;
  abi.GetInputTypeCount = GetInputTypeCount;
  abi.GetInputMemoryType = GetInputMemoryType;
  abi.GetOutputType = GetOutputType;
  abi.GetOutputTypeCount = GetOutputTypeCount;
  const bool is_streamed = spec.streams_constants != 0;
  abi.KernelDestroy = is_streamed ? DestroyStreamed : DestroyKernel;
  abi.CreateKernelV2 = is_streamed ? CreateStreamed : CreateKernel;
  abi.KernelComputeV2 = is_streamed ? ComputeStreamed : spec.counts_rows != 0 ? ComputeCounted : Compute;
  abi.InferOutputShape = InferOutputShape;
  return abi;
}

ort::Status* Refuse(const Op& op, ort::ErrorCode code, const char* format, ...) {
  char reason[384];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  char text[1024];
  const bool is_named = strstr(op.spec->op_type, "::") != nullptr;  // it has a domain of its own
  snprintf(text, sizeof text, "%s%s%.600s: %s", is_named ? "" : ortkit_manifest.domain, is_named ? "" : "::",
           op.spec->op_type, reason);
  return ort::CreateStatus(op.api)(code, text);
}

ort::Status* CheckCounts(const Op& op, const ort::KernelInfo* info) {
  size_t inputs = 0;
  size_t outputs = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetInputCount(op.api)(info, &inputs));
  ORTKIT_RETURN_IF_ERROR(ort::GetOutputCount(op.api)(info, &outputs));
  if (inputs == static_cast<size_t>(op.spec->input_count) &&
      outputs == static_cast<size_t>(op.spec->output_count)) {
    return nullptr;
  }
  return Refuse(op, ort::kInvalidArgument, "the node has %zu inputs and %zu outputs, expected %d and %d",
                inputs, outputs, op.spec->input_count, op.spec->output_count);
}

}  // namespace ortkit
