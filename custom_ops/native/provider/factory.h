// What ONNX Runtime holds of this library: a factory per registration and an Ep per session.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "definition.h"
#include "text.h"

namespace ortkit::provider {

class Profiler;


// One ONNX Runtime; a process may hold several.
struct Runtime {
  const ort::Api* api;
  const ort::EpApi* ep;
  const ort::EditorApi* editor;
  uint32_t version;   // its API version
  std::string text;   // "1.31.1"

  // The version that structs are filled to.
  uint32_t filled() const { return version < ort::kEpApiVersion ? version : ort::kEpApiVersion; }
};

// Never released: Eps, allocators and streams may outlive the registration, and are handed back to it.
struct Factory {
  ort::EpFactory abi;  // first: ONNX Runtime hands back a pointer to this member
  Runtime runtime;
  const Definition* definition;
  std::vector<ort::MemoryInfo*> memories;  // of the devices, null for those in the CPU's memory
  ort::MemoryInfo* cpu_memory;
};

inline Factory* AsFactory(ort::EpFactory* abi) { return reinterpret_cast<Factory*>(abi); }
inline const Factory* AsFactory(const ort::EpFactory* abi) {
  return reinterpret_cast<const Factory*>(abi);
}

struct Ep;
struct KernelState {  // what a kernel of the registry is made from
  Ep* ep;
  const KernelDefinition* kernel;
};

struct Ep {
  ort::Ep abi;  // first
  Factory* factory;
  const Definition* definition;
  void* user;  // of the callbacks
  const ort::Logger* logger;
  Pairs options;
  Pairs config;
  std::vector<int32_t> devices;  // of the definition, those that the session chose
  std::string model_folder;                  // once a graph was seen; empty if it has none
  std::string fatal;                         // an error that must end the session, with strict=1
  int32_t cpu_level = 0;                     // the highest that a kernel of the session needs
  std::vector<const OrtkitLibrary*> written; // those that stand in the EPContext model already
  std::string compatibility;
  ort::KernelRegistry* registry = nullptr;
  std::vector<std::unique_ptr<KernelState>> kernel_states;
  std::shared_ptr<Profiler> profiler;

  const ort::Api* api() const { return factory->runtime.api; }
  const Runtime& runtime() const { return factory->runtime; }
  // What its tensors lie in.
  const ort::MemoryInfo* memory() const {
    const ort::MemoryInfo* own = devices.empty() ? nullptr : factory->memories[devices[0]];
    return own == nullptr ? factory->cpu_memory : own;
  }
  bool is_strict() const { return options.Is("strict", "1"); }
  bool trusts_libraries() const { return options.Is("trust", "1"); }
  bool writes_context() const { return config.Is("ep.context_enable", "1"); }
  // "MyExecutionProvider: <message>"
  ort::Status* Refuse(int32_t code, const std::string& message) const {
    return Fail(api(), code, definition->name + ": " + message);
  }
};

inline Ep* AsEp(ort::Ep* abi) { return reinterpret_cast<Ep*>(abi); }
inline const Ep* AsEp(const ort::Ep* abi) { return reinterpret_cast<const Ep*>(abi); }

// ep.cc
ort::Status* CreateEp(Factory*, const ort::KeyValuePairs* const* metadata, size_t count,
                      const ort::SessionOptions*, const ort::Logger*, ort::Ep** out);
void ReleaseEp(ort::Ep*);
Pairs ReadPairs(const ort::Api*, const ort::KeyValuePairs*);
// Metadata that tells the device of a definition from an EpDevice.
inline constexpr char kDeviceKey[] = "ortkit.device";

// capability.cc
ort::Status* GetCapability(ort::Ep*, const ort::Graph*, ort::GraphSupport*);
// For ortkit_provider_recorded.
void Record(const std::string& error);

// compile.cc
ort::Status* Compile(ort::Ep*, const ort::Graph** graphs, const ort::Node** fused, size_t count,
                     ort::NodeComputeInfo** infos, ort::Node** context_nodes);
void ReleaseNodeComputeInfos(ort::Ep*, ort::NodeComputeInfo** infos, size_t count);

// kernel_registry.cc
ort::Status* GetKernelRegistry(ort::Ep*, const ort::KernelRegistry** out);

// copy_kernels.cc: MemcpyFromHost and MemcpyToHost, unless the definition has its own.
ort::Status* AddCopyKernels(Ep*);

// compatibility.cc
const char* GetCompatibility(ort::Ep*, const ort::Graph*);
ort::Status* ValidateCompatibility(ort::EpFactory*, const ort::HardwareDevice* const*, size_t,
                                   const char* info, int32_t* verdict);

// memory.cc
ort::Status* CreateAllocator(ort::EpFactory*, const ort::MemoryInfo*, const ort::KeyValuePairs*,
                             ort::AllocatorImpl** out);
void ReleaseAllocator(ort::EpFactory*, ort::AllocatorImpl*);
ort::Status* CreateDataTransfer(ort::EpFactory*, ort::DataTransferImpl** out);
// Copies a tensor between devices or from or to the CPU; `stream` is the provider's handle or 0.
ort::Status* Copy(const Factory&, const ort::Value* from, ort::Value* to, uint64_t stream);
// Which of the factory's devices has this memory, or -1.
int32_t FindDevice(const Factory&, const ort::MemoryDevice*);

// stream.cc
ort::Status* CreateSyncStream(ort::EpFactory*, const ort::MemoryDevice*, const ort::KeyValuePairs*,
                              ort::SyncStreamImpl** out);
// The provider's handle, 0 for null.
uint64_t HandleOf(const Factory&, const ort::SyncStream*);

}  // namespace ortkit::provider
