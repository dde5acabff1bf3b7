// Allocators and copies of providers with memory of their own.
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "ep.h"

namespace ortkit::provider {
namespace {

struct Allocator {
  ort::AllocatorImpl abi;  // first
  Factory* factory;
  int32_t device;

  const DeviceDefinition& definition() const { return factory->definition->devices[device]; }
};

Allocator* AsAllocator(ort::AllocatorImpl* abi) { return reinterpret_cast<Allocator*>(abi); }
const Allocator* AsAllocator(const ort::AllocatorImpl* abi) {
  return reinterpret_cast<const Allocator*>(abi);
}

void Raise(std::atomic<int64_t>* highest, int64_t value) {
  int64_t known = highest->load();
  while (value > known && !highest->compare_exchange_weak(known, value)) {
  }
}

// The sizes of blocks, kept apart: the memory of a device need not be readable here.
class Blocks {
 public:
  void Add(const void* data, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sizes_[data] = bytes;
  }
  size_t Take(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sizes_.find(data);
    if (found == sizes_.end()) return 0;
    const size_t bytes = found->second;
    sizes_.erase(found);
    return bytes;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, size_t> sizes_;
};

Blocks& TheBlocks() {
  static Blocks& blocks = *new Blocks;
  return blocks;
}

void* AllocateOn(Allocator* allocator, size_t bytes, uint64_t stream) {
  if (bytes == 0) return nullptr;
  const Definition& definition = *allocator->factory->definition;
  const PythonCall python(definition.is_python());
  if (!python) return nullptr;
  const DeviceDefinition& device = allocator->definition();
  void* data = device.memory.allocate(definition.calls.user, allocator->device, bytes, stream);
  if (data == nullptr) return nullptr;
  TheBlocks().Add(data, bytes);
  Counters& counters = *device.counters;
  const auto size = static_cast<int64_t>(bytes);
  ++counters.allocations;
  counters.total += size;
  Raise(&counters.largest, size);
  Raise(&counters.max_in_use, counters.in_use += size);
  return data;
}

void* Alloc(ort::AllocatorImpl* abi, size_t bytes) { return AllocateOn(AsAllocator(abi), bytes, 0); }
void* Reserve(ort::AllocatorImpl* abi, size_t bytes) { return AllocateOn(AsAllocator(abi), bytes, 0); }
void* AllocOnStream(ort::AllocatorImpl* abi, size_t bytes, ort::SyncStream* stream) {
  Allocator* allocator = AsAllocator(abi);
  return AllocateOn(allocator, bytes, HandleOf(*allocator->factory, stream));
}

void Free(ort::AllocatorImpl* abi, void* data) {
  if (data == nullptr) return;
  Allocator* allocator = AsAllocator(abi);
  const DeviceDefinition& device = allocator->definition();
  ++device.counters->frees;
  device.counters->in_use -= static_cast<int64_t>(TheBlocks().Take(data));
  const Definition& definition = *allocator->factory->definition;
  const PythonCall python(definition.is_python());
  if (python) device.memory.free(definition.calls.user, allocator->device, data);
}

const ort::MemoryInfo* Info(const ort::AllocatorImpl* abi) {
  const Allocator* allocator = AsAllocator(abi);
  return allocator->factory->memories[allocator->device];
}

// Under the names that ONNX Runtime's own arena uses.
ort::Status* GetStats(const ort::AllocatorImpl* abi, ort::KeyValuePairs** out) {
  const Allocator* allocator = AsAllocator(abi);
  const ort::Api* api = allocator->factory->runtime.api;
  const Counters& counters = *allocator->definition().counters;
  const std::pair<const char*, int64_t> values[] = {
      {"InUse", counters.in_use},          {"MaxInUse", counters.max_in_use},
      {"NumAllocs", counters.allocations}, {"TotalAllocated", counters.total},
      {"MaxAllocSize", counters.largest},  {"NumFrees", counters.frees}};
  ort::CreatePairs(api)(out);
  for (const auto& [key, value] : values) {
    ort::AddPair(api)(*out, key, Format("%lld", static_cast<long long>(value)).c_str());
  }
  return nullptr;
}

struct DataTransfer {
  ort::DataTransferImpl abi;  // first
  Factory* factory;
};

OrtkitPlace PlaceOf(const Factory& factory, const ort::MemoryDevice* memory) {
  const int32_t device = FindDevice(factory, memory);
  return device < 0 ? OrtkitPlace{0, 0} : OrtkitPlace{1, device};
}

// Between this provider's devices, and between one and the CPU.
bool CanCopy(const ort::DataTransferImpl* abi, const ort::MemoryDevice* from, const ort::MemoryDevice* to) {
  const Factory& factory = *reinterpret_cast<const DataTransfer*>(abi)->factory;
  const bool from_is_ours = FindDevice(factory, from) >= 0;
  const bool to_is_ours = FindDevice(factory, to) >= 0;
  const bool from_is_cpu = ort::MemoryDeviceType(factory.runtime.ep)(from) == 0;
  const bool to_is_cpu = ort::MemoryDeviceType(factory.runtime.ep)(to) == 0;
  return (from_is_ours && (to_is_ours || to_is_cpu)) || (to_is_ours && from_is_cpu);
}

ort::Status* CopyTensors(ort::DataTransferImpl* abi, const ort::Value** from, ort::Value** to,
                         ort::SyncStream** streams, size_t count) {
  const Factory& factory = *reinterpret_cast<DataTransfer*>(abi)->factory;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t stream = streams == nullptr ? 0 : HandleOf(factory, streams[i]);
    ORTKIT_RETURN_IF_FAILED(Copy(factory, from[i], to[i], stream));
  }
  return nullptr;
}

void ReleaseTransfer(ort::DataTransferImpl* abi) { delete reinterpret_cast<DataTransfer*>(abi); }

}  // namespace

ort::Status* Copy(const Factory& factory, const ort::Value* from, ort::Value* to, uint64_t stream) {
  const Runtime& runtime = factory.runtime;
  const Definition& definition = *factory.definition;
  const void* source = nullptr;
  void* target = nullptr;
  size_t bytes = 0;
  ORTKIT_RETURN_IF_FAILED(ort::GetTensorData(runtime.api)(from, &source));
  ORTKIT_RETURN_IF_FAILED(ort::GetTensorMutableData(runtime.api)(to, &target));
  ORTKIT_RETURN_IF_FAILED(ort::GetTensorBytes(runtime.api)(from, &bytes));
  if (bytes == 0) return nullptr;
  if (source == nullptr || target == nullptr) {  // ONNX Runtime goes on when an allocator has no memory
    const std::string reason = Format(": no memory for a tensor of %zu bytes", bytes);
    return Fail(runtime.api, ort::kFail, definition.name + reason);
  }
  const OrtkitPlace from_place = PlaceOf(factory, ort::DeviceOfValue(runtime.ep)(from));
  const OrtkitPlace to_place = PlaceOf(factory, ort::DeviceOfValue(runtime.ep)(to));
  if (!from_place.is_ours && !to_place.is_ours) {
    memcpy(target, source, bytes);
    return nullptr;
  }
  const int32_t device = from_place.is_ours ? from_place.device : to_place.device;
  const PythonCall python(definition.is_python());
  if (!python) return Fail(runtime.api, ort::kFail, definition.name + ": " + kClosed);
  OrtkitError error;
  const int32_t code = definition.devices[device].memory.copy(
      definition.calls.user, source, from_place, target, to_place, bytes, stream, &error);
  return FromCallback(runtime.api, definition.name, "copy", code, error);
}

int32_t FindDevice(const Factory& factory, const ort::MemoryDevice* memory) {
  const ort::EpApi* api = factory.runtime.ep;
  if (memory == nullptr || ort::MemoryDeviceVendor(api)(memory) != factory.definition->calls.vendor_id) {
    return -1;
  }
  const uint32_t id = ort::MemoryDeviceId(api)(memory);
  if (id >= factory.memories.size() || factory.memories[id] == nullptr) return -1;
  const int32_t type = factory.definition->devices[id].memory.device_type;
  return ort::MemoryDeviceType(api)(memory) == type ? static_cast<int32_t>(id) : -1;
}

ort::Status* CreateAllocator(ort::EpFactory* abi, const ort::MemoryInfo* memory,
                             const ort::KeyValuePairs*, ort::AllocatorImpl** out) {
  Factory* factory = AsFactory(abi);
  *out = nullptr;
  const int32_t device = FindDevice(*factory, ort::DeviceOfMemory(factory->runtime.ep)(memory));
  if (device < 0) return nullptr;
  auto* allocator = new Allocator{{}, factory, device};
  allocator->abi.version = factory->runtime.filled();
  allocator->abi.Alloc = Alloc;
  allocator->abi.Free = Free;
  allocator->abi.Info = Info;
  allocator->abi.Reserve = Reserve;
  allocator->abi.GetStats = GetStats;
  // Up to 1.27 at least ONNX Runtime hands it something that is no stream when it allocates by memory
  // pattern, and it crashed; seen with 1.24.4, 1.25.0 and 1.27.0, not with 1.31.1.
  const bool is_on_stream = allocator->definition().memory.has_streams != 0;
  if (is_on_stream && factory->runtime.version >= 31) allocator->abi.AllocOnStream = AllocOnStream;
  *out = &allocator->abi;
  return nullptr;
}

void ReleaseAllocator(ort::EpFactory*, ort::AllocatorImpl* abi) { delete AsAllocator(abi); }

ort::Status* CreateDataTransfer(ort::EpFactory* abi, ort::DataTransferImpl** out) {
  Factory* factory = AsFactory(abi);
  *out = nullptr;
  if (!factory->definition->has_memory()) return nullptr;
  auto* transfer = new DataTransfer{{}, factory};
  transfer->abi.version = factory->runtime.filled();
  transfer->abi.Release = ReleaseTransfer;
  transfer->abi.CanCopy = CanCopy;
  transfer->abi.CopyTensors = CopyTensors;
  *out = &transfer->abi;
  return nullptr;
}

}  // namespace ortkit::provider
