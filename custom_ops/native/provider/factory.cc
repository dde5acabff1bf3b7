// The two exports that ONNX Runtime calls, and what it asks before there is a session.
#include "factory.h"

#include <cstdlib>
#include <mutex>

namespace ortkit::provider {
namespace {

const char* GetName(const ort::EpFactory* abi) { return AsFactory(abi)->definition->name.c_str(); }
const char* GetVendor(const ort::EpFactory* abi) {
  return AsFactory(abi)->definition->vendor.c_str();
}
const char* GetVersion(const ort::EpFactory* abi) {
  return AsFactory(abi)->definition->version_text.c_str();
}
uint32_t GetVendorId(const ort::EpFactory* abi) {
  return AsFactory(abi)->definition->calls.vendor_id;
}
bool IsStreamAware(const ort::EpFactory* abi) { return AsFactory(abi)->definition->has_streams(); }

bool Fits(const DeviceDefinition& device, const Runtime& runtime, const ort::HardwareDevice* hardware) {
  if (ort::HardwareType(runtime.api)(hardware) != device.hardware_type) return false;
  return device.vendor_id == 0 || ort::HardwareVendorId(runtime.api)(hardware) == device.vendor_id;
}

ort::Status* MakeDevice(Factory* factory, size_t index, const ort::HardwareDevice* hardware,
                        ort::EpDevice** out) {
  const Runtime& runtime = factory->runtime;
  const DeviceDefinition& device = factory->definition->devices[index];
  ort::KeyValuePairs* metadata = nullptr;
  ort::CreatePairs(runtime.api)(&metadata);
  for (size_t i = 0; i < device.metadata.size(); ++i) {
    ort::AddPair(runtime.api)(metadata, device.metadata[i].first.c_str(),
                              device.metadata[i].second.c_str());
  }
  ort::AddPair(runtime.api)(metadata, kDeviceKey, Format("%zu", index).c_str());
  ort::Status* status =
      ort::CreateEpDevice(runtime.ep)(&factory->abi, hardware, metadata, nullptr, out);
  ort::ReleasePairs(runtime.api)(metadata);
  if (status != nullptr || factory->memories[index] == nullptr) return status;
  return ort::AddAllocatorInfo(runtime.ep)(*out, factory->memories[index]);
}

// Each device of the definition, on the first piece of hardware that it can be reached through.
ort::Status* GetSupportedDevices(ort::EpFactory* abi, const ort::HardwareDevice* const* hardware,
                                 size_t count, ort::EpDevice** devices, size_t room,
                                 size_t* device_count) {
  Factory* factory = AsFactory(abi);
  *device_count = 0;
  for (size_t index = 0; index < factory->definition->devices.size(); ++index) {
    const DeviceDefinition& device = factory->definition->devices[index];
    for (size_t i = 0; i < count; ++i) {
      if (!Fits(device, factory->runtime, hardware[i])) continue;
      if (*device_count == room) {
        return Fail(factory->runtime.api, ort::kFail,
                    Format("%s: ONNX Runtime takes %zu devices of a provider", GetName(abi), room));
      }
      ORTKIT_RETURN_IF_FAILED(MakeDevice(factory, index, hardware[i], &devices[*device_count]));
      ++*device_count;
      break;
    }
  }
  return nullptr;
}

ort::Status* CreateEpOf(ort::EpFactory* abi, const ort::HardwareDevice* const*,
                        const ort::KeyValuePairs* const* metadata, size_t count,
                        const ort::SessionOptions* options, const ort::Logger* logger, ort::Ep** out) {
  return CreateEp(AsFactory(abi), metadata, count, options, logger, out);
}
void ReleaseEpOf(ort::EpFactory*, ort::Ep* ep) { ReleaseEp(ep); }

ort::Status* MakeMemories(Factory* factory) {
  const Runtime& runtime = factory->runtime;
  ORTKIT_RETURN_IF_FAILED(ort::CreateCpuMemoryInfo(runtime.api)(0, 0, &factory->cpu_memory));
  factory->memories.resize(factory->definition->devices.size());
  for (size_t i = 0; i < factory->memories.size(); ++i) {
    const DeviceDefinition& device = factory->definition->devices[i];
    if (!device.has_memory) continue;
    ORTKIT_RETURN_IF_FAILED(ort::CreateMemoryInfo(runtime.api)(
        device.memory_name.c_str(), device.memory.device_type, factory->definition->calls.vendor_id,
        static_cast<int32_t>(i), 0, device.memory.alignment, 0, &factory->memories[i]));
  }
  return nullptr;
}

void FillAbi(Factory* factory) {
  ort::EpFactory& abi = factory->abi;
  abi.version = factory->runtime.filled();
  abi.GetName = GetName;
  abi.GetVendor = GetVendor;
  abi.GetSupportedDevices = GetSupportedDevices;
  abi.CreateEp = CreateEpOf;
  abi.ReleaseEp = ReleaseEpOf;
  abi.GetVendorId = GetVendorId;
  abi.GetVersion = GetVersion;
  abi.ValidateCompiledModelCompatibilityInfo = ValidateCompatibility;
  abi.CreateAllocator = CreateAllocator;
  abi.ReleaseAllocator = ReleaseAllocator;
  abi.CreateDataTransfer = CreateDataTransfer;
  abi.IsStreamAware = IsStreamAware;
  abi.CreateSyncStreamForDevice = CreateSyncStream;
}

// Keeps factories reachable; see Factory.
void Keep(Factory* factory) {
  static std::mutex& mutex = *new std::mutex;
  static std::vector<Factory*>& kept = *new std::vector<Factory*>;
  const std::lock_guard<std::mutex> lock(mutex);
  kept.push_back(factory);
}

// The 31 of "1.31.1".
uint32_t ApiVersion(const std::string& text) {
  const size_t dot = text.find('.');
  return dot == std::string::npos ? 0 : static_cast<uint32_t>(atoi(text.c_str() + dot + 1));
}

}  // namespace
}  // namespace ortkit::provider

extern "C" __attribute__((visibility("default"))) ort::Status* CreateEpFactories(
    const char* registration, const ort::ApiBase* base, const ort::Logger*, ort::EpFactory** factories,
    size_t room, size_t* count) {
  using namespace ortkit::provider;
  *count = 0;
  const std::string version = base->GetVersionString();
  const ort::Api* api = base->GetApi(ort::kApiVersion);
  if (api == nullptr) {
    return Fail(base->GetApi(1), ort::kFail,
                "ortkit's providers need ONNX Runtime 1.24 or newer, and this is " + version);
  }
  const Definition* definition = FindDefinition(registration);
  if (definition == nullptr) {
    return Fail(api, ort::kInvalidArgument,
                Format("no provider is defined under the name %s", registration));
  }
  const PythonCall python(definition->is_python());
  if (!python) return Fail(api, ort::kFail, definition->name + ": " + kClosed);
  if (room < 1) return Fail(api, ort::kInvalidArgument, "there is no room for a factory");
  auto* factory = new Factory{};
  Keep(factory);
  factory->definition = definition;
  factory->runtime = {api, ort::GetEpApi(api)(), ort::GetEditorApi(api)(), ApiVersion(version), version};
  FillAbi(factory);
  ORTKIT_RETURN_IF_FAILED(MakeMemories(factory));
  factories[0] = &factory->abi;
  *count = 1;
  return nullptr;
}

// Eps of live sessions come back to the factory later, so it stays.
extern "C" __attribute__((visibility("default"))) ort::Status* ReleaseEpFactory(ort::EpFactory*) {
  return nullptr;
}
