// A custom-op library that calls every slot of custom_ops/native/ort_abi.h and reports what it saw.
// Built and read by test_abi.py.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "cuda_ort.h"
#include "ort_abi.h"

namespace {

const ort::Api* api = nullptr;
ort::Allocator* allocator = nullptr;  // the node's, for its scratch memory
const ort::MemoryInfo* memory = nullptr;
char report[8192];

// One line per slot: its name in the header, then "ok" or what went wrong.
void Note(const char* slot, bool is_right, const char* format = "", ...) {
  char detail[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(detail, sizeof detail, format, arguments);
  va_end(arguments);
  const size_t used = strlen(report);
  snprintf(report + used, sizeof report - used, "%s %s %s\n", slot, is_right ? "ok" : "wrong", detail);
}

const char* GetName(const ort::CustomOp*) { return "Probe"; }
const char* GetProvider(const ort::CustomOp*) { return nullptr; }
int32_t Float(const ort::CustomOp*, size_t) { return 1; }
size_t OneTensor(const ort::CustomOp*) { return 1; }
size_t TwoTensors(const ort::CustomOp*) { return 2; }
int32_t Zero(const ort::CustomOp*, size_t) { return 0; }
int32_t One(const ort::CustomOp*) { return 1; }
int32_t Any(const ort::CustomOp*) { return INT32_MAX; }

ort::Status* Create(const ort::CustomOp*, const ort::Api* given, const ort::KernelInfo* info, void** kernel) {
  size_t inputs = 0, outputs = 0;
  Note("GetInputCount", !ort::GetInputCount(given)(info, &inputs) && inputs == 2, "%zu", inputs);
  // The second input is a constant 42.
  int32_t is_constant[2] = {7, 7};
  const ort::Value* constant[2] = {};
  const void* number = nullptr;
  const bool got_first = !ort::GetConstantInput(given)(info, 0, &is_constant[0], &constant[0]);
  const bool got_second = !ort::GetConstantInput(given)(info, 1, &is_constant[1], &constant[1]);
  const bool has_number = is_constant[1] == 1 && !ort::GetTensorData(given)(constant[1], &number);
  Note("GetConstantInput", got_first && got_second && is_constant[0] == 0 && has_number &&
                               *static_cast<const float*>(number) == 42.0f);
  Note("GetOutputCount", !ort::GetOutputCount(given)(info, &outputs) && outputs == 1, "%zu", outputs);
  Note("KernelInfoGetAllocator", !ort::KernelInfoGetAllocator(given)(info, 0, &allocator) && allocator);
  ort::Allocator* again = nullptr;
  const ort::MemoryInfo* same = nullptr;
  Note("AllocatorGetInfo", !ort::AllocatorGetInfo(given)(allocator, &memory) && memory &&
                               !ort::KernelInfoGetAllocator(given)(info, 0, &again) &&
                               !ort::AllocatorGetInfo(given)(again, &same) && same == memory);
  ort::ReleaseAllocator(given)(again);
  int32_t device = 7;
  Note("MemoryInfoGetId", !ort::MemoryInfoGetId(given)(memory, &device) && device == 0, "%d", device);
  // The node has scale = 0.5 and axis = 7.
  float scale = 0;
  Note("GetFloatAttribute", !ort::GetFloatAttribute(given)(info, "scale", &scale) && scale == 0.5f);
  int64_t axis = 0;
  Note("GetIntegerAttribute", !ort::GetIntegerAttribute(given)(info, "axis", &axis) && axis == 7);
  *kernel = &api;
  return nullptr;
}

void Destroy(void*) {
  ort::ReleaseAllocator(api)(allocator);
  Note("ReleaseAllocator", true);
}

// The model's input is float[2, rows, ?].
ort::Status* Infer(const ort::CustomOp*, ort::ShapeContext* context) {
  ort::TensorInfo* input = nullptr;
  Note("GetInputTypeShape", !ort::GetInputTypeShape(api)(context, 0, &input) && input);
  Note("HasShape", ort::HasShape(api)(input));
  size_t count = 0;
  Note("GetShapeInputCount", !ort::GetShapeInputCount(api)(context, &count) && count == 2, "%zu", count);
  int32_t element_type = 0;
  Note("GetElementType", !ort::GetElementType(api)(input, &element_type) && element_type == 1, "%d", element_type);
  size_t rank = 0;
  Note("GetRank", !ort::GetRank(api)(input, &rank) && rank == 3, "%zu", rank);
  int64_t dims[3] = {};
  Note("GetDimensions", !ort::GetDimensions(api)(input, dims, 3) && dims[0] == 2 && dims[1] == -1 && dims[2] == -1,
       "%d %d %d", int(dims[0]), int(dims[1]), int(dims[2]));
  const char* names[3] = {};
  const bool got_names = !ort::GetSymbolicDimensions(api)(input, names, 3);
  Note("GetSymbolicDimensions", got_names && !strcmp(names[0], "") && !strcmp(names[1], "rows") && !strcmp(names[2], ""));
  ort::TensorInfo* output = nullptr;
  Note("CreateTensorInfo", !ort::CreateTensorInfo(api)(&output) && output);
  Note("SetElementType", !ort::SetElementType(api)(output, 1));
  Note("SetDimensions", !ort::SetDimensions(api)(output, dims, 3));
  names[2] = "invented";
  Note("SetSymbolicDimensions", !ort::SetSymbolicDimensions(api)(output, names, 3));
  Note("SetOutputTypeShape", !ort::SetOutputTypeShape(api)(context, 0, output));
  ort::ReleaseTensorInfo(api)(output);
  Note("ReleaseTensorInfo", true);
  return nullptr;
}

void Mark(void* user, size_t index) { static_cast<unsigned char*>(user)[index] += 1; }

// The input is float[2, 3, 4] counting up from 0; the output its negative.
ort::Status* Run(void*, ort::KernelContext* context) {
  const ort::Value* input = nullptr;
  Note("GetInput", !ort::GetInput(api)(context, 0, &input) && input);
  int32_t type = 0;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  const bool got_shape = !ort::GetTypeAndShapeReference(api)(input, &type, &dims, &rank);
  Note("GetTypeAndShapeReference", got_shape && type == 1 && rank == 3 && dims[0] == 2 && dims[1] == 3 && dims[2] == 4,
       "type %d rank %zu", type, rank);
  const void* data = nullptr;
  const bool got_data = !ort::GetTensorData(api)(input, &data);
  Note("GetTensorData", got_data && static_cast<const float*>(data)[23] - static_cast<const float*>(data)[0] == 23.0f);
  ort::Value* output = nullptr;
  Note("GetOutput", !ort::GetOutput(api)(context, 0, dims, rank, &output) && output);
  void* written = nullptr;
  Note("GetTensorMutableData", !ort::GetTensorMutableData(api)(output, &written) && written && written != data);
  for (int i = 0; i < 24; ++i) static_cast<float*>(written)[i] = -static_cast<const float*>(data)[i];
  unsigned char marks[1000] = {};
  const bool ran = !ort::ParallelFor(api)(context, Mark, sizeof marks, 0, marks);
  bool is_each_once = true;
  for (unsigned char mark : marks) is_each_once = is_each_once && mark == 1;
  Note("ParallelFor", ran && is_each_once);
  void* stream = &api;
  Note("GetGpuComputeStream", !ort::GetGpuComputeStream(api)(context, &stream) && stream == nullptr);
  void* resource = nullptr;
  ort::Status* refused = ort::GetResource(api)(context, 1, 10002, &resource);
  Note("GetResource", refused != nullptr && resource == nullptr);  // there is no stream on the CPU
  ort::ReleaseStatus(api)(refused);
  void* scratch = nullptr;
  Note("AllocatorAlloc", !ort::AllocatorAlloc(api)(allocator, 1000, &scratch) && scratch);
  memset(scratch, 1, 1000);
  Note("AllocatorFree", !ort::AllocatorFree(api)(allocator, scratch));
  return static_cast<const float*>(data)[0] == 0.0f
             ? nullptr
             : ort::CreateStatus(api)(ort::kInvalidArgument, "the probe refuses");
}

ort::CustomOp op = {ort::kApiVersion, nullptr, GetName, GetProvider, Float, TwoTensors, Float, OneTensor, nullptr,
                    Destroy, Zero, Zero, Zero, One, One, One, One, Create, Run, Infer, One, Any, nullptr, nullptr,
                    nullptr, nullptr};

}  // namespace

extern "C" const char* probe_report() { return report; }

extern "C" ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base) {
  api = base->GetApi(ort::kApiVersion);
  ort::Status* status = ort::CreateStatus(api)(ort::kFail, "thrown away");
  Note("CreateStatus", status != nullptr);
  ort::ReleaseStatus(api)(status);
  Note("ReleaseStatus", true);
  char** names = nullptr;
  int32_t count = 0;
  const bool got_names = !ort::GetAvailableProviders(api)(&names, &count);
  Note("GetAvailableProviders", got_names && count > 0 && !strcmp(names[count - 1], "CPUExecutionProvider"), "%d", count);
  Note("ReleaseAvailableProviders", !ort::ReleaseAvailableProviders(api)(names, count));
  static ort::OpDomain* domain = nullptr;
  Note("CreateCustomOpDomain", !ort::CreateCustomOpDomain(api)("probe", &domain) && domain);
  Note("CustomOpDomainAdd", !ort::CustomOpDomainAdd(api)(domain, &op));
  int32_t has = 7;
  Note("HasSessionConfigEntry", !ort::HasSessionConfigEntry(api)(options, "probe.key", &has) && has == 0, "%d", has);
  Note("AddSessionConfigEntry", !ort::AddSessionConfigEntry(api)(options, "probe.key", "value"));
  Note("HasSessionConfigEntry", !ort::HasSessionConfigEntry(api)(options, "probe.key", &has) && has == 1, "%d", has);
  char value[16] = {};
  size_t size = sizeof value;
  Note("GetSessionConfigEntry", !ort::GetSessionConfigEntry(api)(options, "probe.key", value, &size) && size == 6 &&
       !strcmp(value, "value"), "%s %zu", value, size);
  ort::Status* result = ort::AddCustomOpDomain(api)(options, domain);
  Note("AddCustomOpDomain", result == nullptr);
  return result;
}
