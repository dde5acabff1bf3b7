#include "fake_runtime.h"

#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace ort {

namespace {

// What ONNX Runtime gives to the tensors that it allocates.
constexpr std::align_val_t kAlignment{64};

size_t Count(const std::vector<int64_t>& dims) {
  size_t count = 1;
  for (int64_t dim : dims) count *= static_cast<size_t>(dim);
  return count;
}

}  // namespace

Value::Value(int32_t type_, std::vector<int64_t> dims_, size_t element_bytes)
    : type(type_), dims(std::move(dims_)), count(Count(dims)) {
  const size_t bytes = count * element_bytes;
  data = static_cast<char*>(::operator new(bytes, kAlignment));
  memset(data, 0xA5, bytes);
}

Value::Value(int32_t type_, std::vector<int64_t> dims_, void* given)
    : type(type_), dims(std::move(dims_)), count(Count(dims)), data(static_cast<char*>(given)), is_given(true) {}

Value::~Value() {
  if (!is_given) ::operator delete(data, kAlignment);
}

KernelContext::~KernelContext() {
  for (Value* output : outputs) {
    bool is_input = false;
    for (const Value* input : inputs) is_input = is_input || input == output;
    if (!is_input) delete output;
  }
}

}  // namespace ort

namespace fake {
namespace {

std::atomic<int> live_statuses{0};
std::atomic<int> live_allocators{0};
std::atomic<int> live_scratch{0};
std::atomic<int> live_lists{0};
std::atomic<bool> has_cuda{true};
thread_local int fail_at = -1;
thread_local bool has_failed = false;
thread_local bool has_failed_to_free = false;
std::mutex domains_mutex;
std::vector<ort::OpDomain*> domains;

ort::Status* Create(int32_t code, const char* text) {
  ++live_statuses;
  return new ort::Status{code, text};
}

ort::Status* Injected() {
  if (fail_at < 0 || fail_at-- > 0) return nullptr;
  has_failed = true;
  return Create(1, "injected");
}

#define FAKE_CALL()                                 \
  do {                                              \
    if (ort::Status* status_ = Injected()) return status_; \
  } while (0)

ort::Status* CreateDomain(const char* name, ort::OpDomain** out) {
  FAKE_CALL();
  *out = new ort::OpDomain{name, {}};
  const std::lock_guard<std::mutex> lock(domains_mutex);
  domains.push_back(*out);
  return nullptr;
}

ort::Status* AddOp(ort::OpDomain* domain, const ort::CustomOp* op) {
  FAKE_CALL();
  domain->ops.push_back(op);
  return nullptr;
}

// As ONNX Runtime has it: one domain of a name per session. It says so later, when a session is made.
ort::Status* AddDomain(ort::SessionOptions* options, ort::OpDomain* domain) {
  FAKE_CALL();
  for (const ort::OpDomain* other : options->domains) {
    if (other->name == domain->name) return Create(1, "Domain already set in registry");
  }
  options->domains.push_back(domain);
  return nullptr;
}

ort::Status* AddConfig(ort::SessionOptions* options, const char* key, const char* value) {
  FAKE_CALL();
  options->config[key] = value;
  return nullptr;
}

ort::Status* HasConfig(const ort::SessionOptions* options, const char* key, int32_t* has) {
  FAKE_CALL();
  *has = options->config.count(key) != 0 ? 1 : 0;
  return nullptr;
}

ort::Status* GetConfig(const ort::SessionOptions* options, const char* key, char* value, size_t* size) {
  FAKE_CALL();
  const std::string& text = options->config.at(key);
  if (*size < text.size() + 1) return Create(2, "Result buffer is not large enough");
  memcpy(value, text.c_str(), text.size() + 1);
  *size = text.size() + 1;
  return nullptr;
}

ort::Status* InputCount(const ort::KernelInfo* info, size_t* count) {
  FAKE_CALL();
  *count = info->inputs;
  return nullptr;
}

ort::Status* OutputCount(const ort::KernelInfo* info, size_t* count) {
  FAKE_CALL();
  *count = info->outputs;
  return nullptr;
}

ort::Status* Constant(const ort::KernelInfo* info, size_t index, int32_t* is_constant, const ort::Value** value) {
  FAKE_CALL();
  const auto found = info->constants.find(index);
  *is_constant = found != info->constants.end();
  *value = *is_constant != 0 ? found->second : nullptr;
  return nullptr;
}

template <class Number>
ort::Status* FindAttribute(const std::map<std::string, Number>& known, const char* name, Number* value) {
  const auto found = known.find(name);
  if (found == known.end()) return Create(1, "no such attribute");
  *value = found->second;
  return nullptr;
}
ort::Status* FloatAttribute(const ort::KernelInfo* info, const char* name, float* value) {
  return FindAttribute(info->reals, name, value);
}
ort::Status* IntegerAttribute(const ort::KernelInfo* info, const char* name, int64_t* value) {
  return FindAttribute(info->integers, name, value);
}

ort::Status* Input(const ort::KernelContext* context, size_t index, const ort::Value** out) {
  FAKE_CALL();
  *out = context->inputs.at(index);
  return nullptr;
}

ort::Status* Output(ort::KernelContext* context, size_t index, const int64_t* dims, size_t rank, ort::Value** out) {
  FAKE_CALL();
  ort::Value*& value = context->outputs.at(index);
  if (value == nullptr) {
    const int32_t type = context->output_types.at(index);
    value = new ort::Value(type, std::vector<int64_t>(dims, dims + rank), ElementBytes(type));
  }
  *out = value;
  return nullptr;
}

ort::Status* Data(const ort::Value* value, const void** out) {
  FAKE_CALL();
  *out = value->data;
  return nullptr;
}

ort::Status* MutableData(ort::Value* value, void** out) {
  FAKE_CALL();
  *out = value->data;
  return nullptr;
}

ort::Status* TypeAndShape(const ort::Value* value, int32_t* type, const int64_t** dims, size_t* rank) {
  FAKE_CALL();
  *type = value->type;
  *dims = value->dims.data();
  *rank = value->dims.size();
  return nullptr;
}

// Any thread takes any index, in no order.
ort::Status* Parallel(const ort::KernelContext* context, ort::ParallelBody* body, size_t total, size_t, void* user) {
  FAKE_CALL();
  ++const_cast<ort::KernelContext*>(context)->parallel_calls;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t index = next++; index < total; index = next++) body(user, total - 1 - index);
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < context->threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return nullptr;
}

ort::Status* InputInfo(const ort::ShapeContext* context, size_t index, ort::TensorInfo** out) {
  FAKE_CALL();
  *out = const_cast<ort::TensorInfo*>(&context->inputs.at(index));
  return nullptr;
}

ort::Status* SetOutputInfo(const ort::ShapeContext* context, size_t index, const ort::TensorInfo* info) {
  FAKE_CALL();
  const_cast<ort::ShapeContext*>(context)->outputs.at(index) = *info;
  return nullptr;
}

ort::Status* NewInfo(ort::TensorInfo** out) {
  FAKE_CALL();
  *out = new ort::TensorInfo;
  return nullptr;
}

void ReleaseInfo(ort::TensorInfo* info) { delete info; }

ort::Status* SetType(ort::TensorInfo* info, int32_t type) {
  FAKE_CALL();
  info->type = type;
  return nullptr;
}

ort::Status* SetDims(ort::TensorInfo* info, const int64_t* dims, size_t rank) {
  FAKE_CALL();
  info->dims.assign(dims, dims + rank);
  info->names.resize(rank);
  return nullptr;
}

ort::Status* SetNames(ort::TensorInfo* info, const char** names, size_t rank) {
  FAKE_CALL();
  info->names.assign(names, names + rank);
  return nullptr;
}

ort::Status* Rank(const ort::TensorInfo* info, size_t* rank) {
  FAKE_CALL();
  *rank = info->dims.size();
  return nullptr;
}

ort::Status* Dims(const ort::TensorInfo* info, int64_t* dims, size_t rank) {
  FAKE_CALL();
  memcpy(dims, info->dims.data(), rank * sizeof *dims);
  return nullptr;
}

ort::Status* Names(const ort::TensorInfo* info, const char** names, size_t rank) {
  FAKE_CALL();
  for (size_t i = 0; i < rank; ++i) names[i] = i < info->names.size() ? info->names[i].c_str() : "";
  return nullptr;
}

ort::Status* InfoAllocator(const ort::KernelInfo* info, int32_t, ort::Allocator** out) {
  FAKE_CALL();
  ++live_allocators;
  *out = new ort::Allocator{{info->device}};
  return nullptr;
}

void ReleaseAllocator(ort::Allocator* allocator) {
  --live_allocators;
  delete allocator;
}

ort::Status* AllocatorInfo(const ort::Allocator* allocator, const ort::MemoryInfo** out) {
  FAKE_CALL();
  static const ort::MemoryInfo memories[] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};  // of one arena each
  *out = &memories[allocator->memory.device];
  return nullptr;
}

ort::Status* MemoryDevice(const ort::MemoryInfo* memory, int32_t* device) {
  FAKE_CALL();
  *device = memory->device;
  return nullptr;
}

ort::Status* Stream(const ort::KernelContext* context, void** stream) {
  FAKE_CALL();
  *stream = context->stream;
  return nullptr;
}

ort::Status* Resource(const ort::KernelContext* context, int32_t version, int32_t which, void** resource) {
  FAKE_CALL();
  if (version != 1 || which != 10002) return new ort::Status{2, "no such resource"};
  *resource = context->blas;
  return nullptr;
}

ort::Status* Alloc(ort::Allocator*, size_t bytes, void** out) {
  FAKE_CALL();
  ++live_scratch;
  *out = ::operator new(bytes, std::align_val_t{64});
  return nullptr;
}

// Memory is given back even where that is said to fail: the shim can do no more about it.
ort::Status* Free(ort::Allocator*, void* memory) {
  --live_scratch;
  ::operator delete(memory, std::align_val_t{64});
  ort::Status* status = Injected();
  has_failed_to_free = has_failed_to_free || status != nullptr;
  return status;
}

ort::Status* Providers(char*** names, int32_t* count) {
  FAKE_CALL();
  static char cuda[] = "CUDAExecutionProvider";
  static char cpu[] = "CPUExecutionProvider";
  ++live_lists;
  *names = has_cuda ? new char*[2]{cuda, cpu} : new char*[1]{cpu};
  *count = has_cuda ? 2 : 1;
  return nullptr;
}

ort::Status* ReleaseProviders(char** names, int32_t) {
  --live_lists;
  delete[] names;
  FAKE_CALL();
  return nullptr;
}

void ReleaseStatus(ort::Status* status) {
  --live_statuses;
  delete status;
}

// Slots that the shim may not use stay null.
struct Tables {
  const void* slots[kRuntimes][512] = {};

  template <int kIndex, class Signature>
  void Set(ort::Slot<kIndex, Signature>, Signature* function) {
    for (auto& table : slots) table[kIndex] = reinterpret_cast<const void*>(function);
  }

  Tables() {
    Set(ort::CreateStatus, Create);
    Set(ort::CreateCustomOpDomain, CreateDomain);
    Set(ort::CustomOpDomainAdd, AddOp);
    Set(ort::AddCustomOpDomain, AddDomain);
    Set(ort::AddSessionConfigEntry, AddConfig);
    Set(ort::HasSessionConfigEntry, HasConfig);
    Set(ort::GetSessionConfigEntry, GetConfig);
    Set(ort::GetFloatAttribute, FloatAttribute);
    Set(ort::GetIntegerAttribute, IntegerAttribute);
    Set(ort::GetInputCount, InputCount);
    Set(ort::GetOutputCount, OutputCount);
    Set(ort::GetConstantInput, Constant);
    Set(ort::GetInput, Input);
    Set(ort::GetOutput, Output);
    Set(ort::GetTensorData, Data);
    Set(ort::GetTensorMutableData, MutableData);
    Set(ort::GetTypeAndShapeReference, TypeAndShape);
    Set(ort::ParallelFor, Parallel);
    Set(ort::GetInputTypeShape, InputInfo);
    Set(ort::SetOutputTypeShape, SetOutputInfo);
    Set(ort::CreateTensorInfo, NewInfo);
    Set(ort::ReleaseTensorInfo, ReleaseInfo);
    Set(ort::SetElementType, SetType);
    Set(ort::SetDimensions, SetDims);
    Set(ort::SetSymbolicDimensions, SetNames);
    Set(ort::GetRank, Rank);
    Set(ort::GetDimensions, Dims);
    Set(ort::GetSymbolicDimensions, Names);
    Set(ort::KernelInfoGetAllocator, InfoAllocator);
    Set(ort::ReleaseAllocator, ReleaseAllocator);
    Set(ort::AllocatorGetInfo, AllocatorInfo);
    Set(ort::GetResource, Resource);
    Set(ort::MemoryInfoGetId, MemoryDevice);
    Set(ort::GetGpuComputeStream, Stream);
    Set(ort::AllocatorAlloc, Alloc);
    Set(ort::AllocatorFree, Free);
    Set(ort::GetAvailableProviders, Providers);
    Set(ort::ReleaseAvailableProviders, ReleaseProviders);
    Set(ort::ReleaseStatus, ReleaseStatus);
  }
};

const Tables& AllTables() {
  static const Tables tables;
  return tables;
}

template <int kIndex>
const ort::Api* GetApi(uint32_t version) {
  return version <= 31 ? Table(kIndex) : nullptr;
}
const ort::Api* GetOldApi(uint32_t version) { return version < 24 ? Table(0) : nullptr; }
const char* Version() { return "1.31.1"; }
const char* OldVersion() { return "1.23.2"; }

}  // namespace

const ort::Api* Table(int index) { return reinterpret_cast<const ort::Api*>(AllTables().slots[index]); }

const ort::ApiBase* Base(int index) {
  static const ort::ApiBase bases[kRuntimes] = {
      {GetApi<0>, Version}, {GetApi<1>, Version}, {GetApi<2>, Version}, {GetApi<3>, Version},
      {GetApi<4>, Version}, {GetApi<5>, Version}, {GetApi<6>, Version}, {GetApi<7>, Version}};
  return &bases[index];
}

const ort::ApiBase* OldBase() {
  static const ort::ApiBase base = {GetOldApi, OldVersion};
  return &base;
}

int LiveStatuses() { return live_statuses; }
int LiveAllocators() { return live_allocators + live_lists; }
int LiveScratch() { return live_scratch; }
bool HasFailedToFree() { return has_failed_to_free; }
void HaveCuda(bool has) { has_cuda = has; }

std::string Take(ort::Status* status) {
  if (status == nullptr) return "";
  --live_statuses;
  std::string text = std::to_string(status->code) + " " + status->text;
  delete status;
  return text;
}

void FailAt(int count) {
  fail_at = count;
  has_failed = has_failed_to_free = false;
}

bool HasFailed() { return has_failed; }

size_t ElementBytes(int32_t type) {
  switch (type) {
    case 1: case 6: case 12: return 4;
    case 7: case 11: case 13: return 8;
    case 4: case 5: case 10: case 16: return 2;
    default: return 1;
  }
}

void ReleaseDomains() {
  const std::lock_guard<std::mutex> lock(domains_mutex);
  for (const ort::OpDomain* domain : domains) delete domain;
  domains.clear();
}

}  // namespace fake
