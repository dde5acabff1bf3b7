#include "function_run.h"

#include <iterator>

#include "profiler.h"

namespace ortkit::provider {
namespace {

constexpr int32_t kCpu = 1;      // DLPack's kDLCPU
constexpr int32_t kDevice = 12;  // and kDLExtDev
constexpr size_t kScratchAlignment = 64;

enum TypeCode : uint8_t { kInt, kUint, kFloat, kOpaque, kBfloat, kComplex, kBool };

// By ONNX TensorProto.DataType. What DLPack has no code for is opaque; its bits are those of one element.
constexpr OrtkitDLDataType kTypes[] = {
    {kOpaque, 0, 1},  {kFloat, 32, 1},   {kUint, 8, 1},   {kInt, 8, 1},     {kUint, 16, 1},
    {kInt, 16, 1},    {kInt, 32, 1},     {kInt, 64, 1},   {kOpaque, 0, 1},  {kBool, 8, 1},
    {kFloat, 16, 1},  {kFloat, 64, 1},   {kUint, 32, 1},  {kUint, 64, 1},   {kComplex, 64, 1},
    {kComplex, 128, 1}, {kBfloat, 16, 1}, {10, 8, 1},     {11, 8, 1},       {12, 8, 1},
    {13, 8, 1},       {kUint, 4, 1},     {kInt, 4, 1},    {17, 4, 1}};

OrtkitDLDataType TypeOf(int32_t element_type) {
  const bool is_known = element_type > 0 && element_type < static_cast<int32_t>(std::size(kTypes));
  return kTypes[is_known ? element_type : 0];
}

bool IsEmpty(const int64_t* dims, int32_t rank) {
  for (int32_t i = 0; i < rank; ++i) {
    if (dims[i] == 0) return true;
  }
  return false;
}

}  // namespace

FunctionRun* FunctionRun::Of(OrtkitKernelContext* context) {
  return static_cast<FunctionRun*>(context);
}

FunctionRun::FunctionRun(NodeKernel& kernel, ort::KernelContext* context)
    : OrtkitKernelContext{},
      kernel_(kernel),
      api_(kernel.ep_->api()),
      context_(context),
      inputs_(kernel.inputs_.size()),
      addresses_(kernel.is_python_ ? kernel.inputs_.size() : 0) {
  size = sizeof(OrtkitKernelContext);
  input_count = static_cast<int32_t>(kernel.inputs_.size());
  output_count = static_cast<int32_t>(kernel.outputs_.size());
  inputs = inputs_.data();
  make_output = MakeOutputOf;
  parallel_for = ParallelForOf;
  scratch = ScratchOf;
  fail = FailOf;
  ort_context = context;
  ort_api = api_;
  make_outputs = MakeOutputsOf;
}

FunctionRun::~FunctionRun() {
  for (void* memory : scratch_) {
    ort::Status* status = ort::AllocatorFree(api_)(kernel_.ScratchAllocator(context_), memory);
    if (status != nullptr) ort::ReleaseStatus(api_)(status);
  }
}

ort::Status* FunctionRun::Run() {
  ORTKIT_RETURN_IF_FAILED(ReadInputs());
  const int32_t code = kernel_.function_(kernel_.user_, this);
  if (code == 0) return nullptr;
  if (reason_.empty()) reason_ = Format("the kernel returned %d", code);
  if (code_ == 0) code_ = code;
  const bool is_known = code_ > 0 && code_ <= 13;
  return kernel_.ep_->Refuse(is_known ? code_ : ort::kFail, kernel_.label_ + ": " + reason_);
}

ort::Status* FunctionRun::ReadInputs() {
  for (size_t i = 0; i < kernel_.inputs_.size(); ++i) ORTKIT_RETURN_IF_FAILED(ReadInput(i));
  if (kernel_.has_streams_) {
    ORTKIT_RETURN_IF_FAILED(ort::GetStreamHandle(api_)(context_, &stream));
  }
  if (kernel_.is_python_) WriteSignature();
  return nullptr;
}

ort::Status* FunctionRun::ReadInput(size_t index) {
  OrtkitView& view = inputs_[index];
  const ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_FAILED(ort::GetInput(api_)(context_, kernel_.inputs_[index], &value));
  if (value == nullptr) {
    view = {};
    return nullptr;
  }
  size_t rank = 0;
  const int64_t* dims = nullptr;
  const void* data = nullptr;
  ORTKIT_RETURN_IF_FAILED(
      ort::GetTypeAndShapeReference(api_)(value, &view.element_type, &dims, &rank));
  ORTKIT_RETURN_IF_FAILED(ort::GetTensorData(api_)(value, &data));
  view.tensor.data = const_cast<void*>(data);
  view.tensor.device = DeviceOf(value);
  view.tensor.rank = static_cast<int32_t>(rank);
  view.tensor.type = TypeOf(view.element_type);
  view.tensor.dims = const_cast<int64_t*>(dims);
  view.tensor.strides = nullptr;
  view.tensor.byte_offset = 0;
  view.reserved = 0;
  view.value = value;
  return nullptr;
}

OrtkitDLDevice FunctionRun::DeviceOf(const ort::Value* value) const {
  if (!kernel_.has_memory_) return {kCpu, 0};
  const Factory& factory = *kernel_.ep_->factory;
  const int32_t device = FindDevice(factory, ort::DeviceOfValue(factory.runtime.ep)(value));
  return device < 0 ? OrtkitDLDevice{kCpu, 0} : OrtkitDLDevice{kDevice, device};
}

void FunctionRun::WriteSignature() {
  for (int32_t i = 0; i < input_count; ++i) {
    const OrtkitView& view = inputs_[i];
    const bool is_present = view.value != nullptr;
    signature_.push_back(is_present ? view.tensor.rank : -1);
    if (is_present) {
      signature_.insert(signature_.end(), view.tensor.dims, view.tensor.dims + view.tensor.rank);
    }
    addresses_[i] = view.tensor.data;
  }
  signature = signature_.data();
  signature_count = static_cast<int64_t>(signature_.size());
  data = addresses_.data();
}

int32_t FunctionRun::Note(int32_t code, std::string reason) {
  code_ = code == 0 ? ort::kFail : code;
  reason_ = std::move(reason);
  return code_;
}

int32_t FunctionRun::Note(ort::Status* status) {
  if (status == nullptr) return 0;
  const int32_t code = ort::GetErrorCode(api_)(status);
  return Note(code, TakeMessage(api_, status));
}

int32_t FunctionRun::MakeOutput(int32_t index, const int64_t* dims, int32_t rank, OrtkitView* out,
                                void** data) {
  if (index < 0 || index >= output_count) {
    return Note(ort::kInvalidArgument, Format("the kernel makes output %d of %d", index, output_count));
  }
  for (int32_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) {
      return Note(ort::kInvalidArgument,
                  Format("output %d has size %lld in dim %d", index, static_cast<long long>(dims[i]), i));
    }
  }
  ort::Value* value = nullptr;
  if (ort::Status* status = ort::GetOutput(api_)(context_, kernel_.outputs_[index], dims, rank, &value)) {
    return Note(status);
  }
  if (value == nullptr) {  // an optional output that nobody reads
    *data = nullptr;
    if (out != nullptr) *out = {};
    return 0;
  }
  if (ort::Status* status = ort::GetTensorMutableData(api_)(value, data)) return Note(status);
  if (*data == nullptr && !IsEmpty(dims, rank)) {  // ONNX Runtime goes on when an allocator has none
    return Note(ort::kFail, Format("no memory for output %d", index));
  }
  if (out == nullptr) return 0;
  *out = {};
  size_t got = 0;
  const int64_t* kept = nullptr;
  if (ort::Status* status =
          ort::GetTypeAndShapeReference(api_)(value, &out->element_type, &kept, &got)) {
    return Note(status);
  }
  out->tensor.data = *data;
  out->tensor.device = DeviceOf(value);
  out->tensor.rank = static_cast<int32_t>(got);
  out->tensor.type = TypeOf(out->element_type);
  out->tensor.dims = const_cast<int64_t*>(kept);
  out->value = value;
  return 0;
}

int32_t FunctionRun::MakeOutputOf(OrtkitKernelContext* context, int32_t index, const int64_t* dims,
                                  int32_t rank, OrtkitView* out) {
  void* data = nullptr;
  return Of(context)->MakeOutput(index, dims, rank, out, &data);
}

int32_t FunctionRun::MakeOutputsOf(OrtkitKernelContext* context, const int64_t* signature, void** data) {
  FunctionRun& run = *Of(context);
  for (int32_t i = 0; i < run.output_count; ++i) {
    const auto rank = static_cast<int32_t>(*signature);
    const int32_t code = run.MakeOutput(i, signature + 1, rank, nullptr, &data[i]);
    if (code != 0) return code;
    signature += 1 + rank;
  }
  return 0;
}

int32_t FunctionRun::ParallelForOf(OrtkitKernelContext* context, void (*body)(void*, size_t),
                                   size_t total, void* user) {
  FunctionRun& run = *Of(context);
  if (total == 1) body(user, 0);
  if (total <= 1) return 0;
  return run.Note(ort::ParallelFor(run.api_)(run.context_, body, total, 0, user));
}

// The session's allocators align to 64 bytes and more; one of a provider may do less, so room is added.
void* FunctionRun::ScratchOf(OrtkitKernelContext* context, size_t bytes) {
  FunctionRun& run = *Of(context);
  ort::Allocator* allocator = run.kernel_.ScratchAllocator(run.context_);
  if (allocator == nullptr || bytes > SIZE_MAX - kScratchAlignment) return nullptr;
  void* memory = nullptr;
  const size_t more = run.kernel_.has_memory_ ? 0 : kScratchAlignment - 1;
  if (ort::Status* status = ort::AllocatorAlloc(run.api_)(allocator, bytes + more + (bytes == 0), &memory)) {
    run.Note(status);
    return nullptr;
  }
  run.scratch_.push_back(memory);
  if (run.kernel_.has_memory_) return memory;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return reinterpret_cast<void*>((address + more) / kScratchAlignment * kScratchAlignment);
}

int32_t FunctionRun::FailOf(OrtkitKernelContext* context, int32_t code, const char* reason) {
  return Of(context)->Note(code, reason == nullptr ? "" : reason);
}

}  // namespace ortkit::provider

extern "C" {

int32_t ortkit_provider_is_profiling(const OrtkitKernelContext* context) {
  using namespace ortkit::provider;
  const Profiler* profiler = ProfilerOf(FunctionRun::Of(const_cast<OrtkitKernelContext*>(context))->kernel());
  return profiler != nullptr && profiler->is_active();
}

void ortkit_provider_add_event(const OrtkitKernelContext* context, const char* name, int64_t begin,
                               int64_t end, const OrtkitEntries* arguments) {
  using namespace ortkit::provider;
  Profiler* profiler = ProfilerOf(FunctionRun::Of(const_cast<OrtkitKernelContext*>(context))->kernel());
  if (profiler == nullptr || !profiler->is_active()) return;
  profiler->Add(name, begin, end, arguments == nullptr ? Pairs() : Pairs(*arguments));
}

}  // extern "C"
