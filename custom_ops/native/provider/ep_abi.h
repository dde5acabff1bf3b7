// What a provider uses of ONNX Runtime's C ABI beyond ../ort_abi.h: the structs that it fills, each
// field with the API version that brought it, and slots of three tables. ONNX Runtime reads a field
// only of structs whose `version` is the field's or later, so each is filled to the running one's.
//
// All slots exist since API version 24 but where it says more; tests/native/test_provider_bridge.py.
#pragma once

#include "../ort_abi.h"

namespace ort {

struct Env;
struct Graph;
struct Node;
struct ValueInfo;
struct OpAttr;
struct TypeInfo;
struct RunOptions;
struct Logger;
struct MemoryInfo;
struct MemoryDevice;
struct Allocator;
struct KeyValuePairs;
struct HardwareDevice;
struct SyncStream;
struct EpDevice;
struct GraphSupport;
struct ComputeContext;
struct KernelDef;
struct KernelDefBuilder;
struct KernelRegistry;
struct DataType;
struct ProfilingEvent;
struct ProfilingEvents;

// The newest API version whose fields are laid out below; later ones have added none.
inline constexpr uint32_t kEpApiVersion = 31;

struct Ep;
struct EpFactory;

struct NodeFusionOptions {
  uint32_t version;
  bool drop_constant_initializers;
};

struct NodeComputeInfo {
  uint32_t version;
  Status* (*CreateState)(NodeComputeInfo*, ComputeContext*, void** state);
  Status* (*Compute)(NodeComputeInfo*, void* state, KernelContext*);
  void (*ReleaseState)(NodeComputeInfo*, void* state);
};

struct KernelImpl {
  uint32_t version;
  uint32_t flags;
  Status* (*Compute)(KernelImpl*, KernelContext*);
  void (*Release)(KernelImpl*);
  void* PrePackWeight;
  void* SetSharedPrePackedWeight;
};
using CreateKernelFunction = Status*(void* state, const KernelInfo*, KernelImpl** out);

struct AllocatorImpl {
  uint32_t version;
  void* (*Alloc)(AllocatorImpl*, size_t bytes);
  void (*Free)(AllocatorImpl*, void*);
  const MemoryInfo* (*Info)(const AllocatorImpl*);
  void* (*Reserve)(AllocatorImpl*, size_t bytes);
  Status* (*GetStats)(const AllocatorImpl*, KeyValuePairs** out);
  void* (*AllocOnStream)(AllocatorImpl*, size_t bytes, SyncStream*);
  Status* (*Shrink)(AllocatorImpl*);  // 25
};

struct DataTransferImpl {
  uint32_t version;
  void (*Release)(DataTransferImpl*);
  bool (*CanCopy)(const DataTransferImpl*, const MemoryDevice* from, const MemoryDevice* to);
  Status* (*CopyTensors)(DataTransferImpl*, const Value** from, Value** to, SyncStream** streams,
                         size_t count);
};

struct SyncNotificationImpl {
  uint32_t version;
  void (*Release)(SyncNotificationImpl*);
  Status* (*Activate)(SyncNotificationImpl*);
  Status* (*WaitOnDevice)(SyncNotificationImpl*, SyncStream* consumer);
  Status* (*WaitOnHost)(SyncNotificationImpl*);
};

struct SyncStreamImpl {
  uint32_t version;
  void (*Release)(SyncStreamImpl*);
  void* (*GetHandle)(SyncStreamImpl*);
  Status* (*CreateNotification)(SyncStreamImpl*, SyncNotificationImpl** out);
  Status* (*Flush)(SyncStreamImpl*);
  Status* (*OnSessionRunEnd)(SyncStreamImpl*);
};

struct EpProfilerImpl {  // 25
  uint32_t version;
  void (*Release)(EpProfilerImpl*);
  // How long before this call ONNX Runtime's profile began.
  Status* (*StartProfiling)(EpProfilerImpl*, int64_t offset_nanoseconds);
  Status* (*StartEvent)(EpProfilerImpl*, uint64_t id);
  Status* (*StopEvent)(EpProfilerImpl*, uint64_t id, const ProfilingEvent*);
  Status* (*EndProfiling)(EpProfilerImpl*, ProfilingEvents*);
};

struct Ep {
  uint32_t version;
  const char* (*GetName)(const Ep*);
  Status* (*GetCapability)(Ep*, const Graph*, GraphSupport*);
  Status* (*Compile)(Ep*, const Graph** graphs, const Node** fused, size_t count,
                     NodeComputeInfo** infos, Node** context_nodes);
  void (*ReleaseNodeComputeInfos)(Ep*, NodeComputeInfo** infos, size_t count);
  void* GetPreferredDataLayout;
  void* ShouldConvertDataLayoutForOp;
  Status* (*SetDynamicOptions)(Ep*, const char* const* keys, const char* const* values, size_t count);
  Status* (*OnRunStart)(Ep*, const RunOptions*);
  Status* (*OnRunEnd)(Ep*, const RunOptions*, bool is_synchronous);
  void* CreateAllocator;
  void* CreateSyncStreamForDevice;
  const char* (*GetCompiledModelCompatibilityInfo)(Ep*, const Graph*);
  Status* (*GetKernelRegistry)(Ep*, const KernelRegistry** out);  // 24
  Status* (*IsConcurrentRunSupported)(Ep*, bool* is_supported);   // 24
  void* Sync;                                                     // 25
  Status* (*CreateProfiler)(Ep*, EpProfilerImpl** out);           // 25
  void* graph_capture[5];                                         // 26
  Status* (*OnSessionInitializationEnd)(Ep*);                     // 27
  void* later[16];                                                // 27 and newer
};

struct EpFactory {
  uint32_t version;
  const char* (*GetName)(const EpFactory*);
  const char* (*GetVendor)(const EpFactory*);
  Status* (*GetSupportedDevices)(EpFactory*, const HardwareDevice* const* hardware, size_t count,
                                 EpDevice** devices, size_t room, size_t* device_count);
  Status* (*CreateEp)(EpFactory*, const HardwareDevice* const* hardware,
                      const KeyValuePairs* const* metadata, size_t count, const SessionOptions*,
                      const Logger*, Ep** out);
  void (*ReleaseEp)(EpFactory*, Ep*);
  uint32_t (*GetVendorId)(const EpFactory*);
  const char* (*GetVersion)(const EpFactory*);
  Status* (*ValidateCompiledModelCompatibilityInfo)(EpFactory*, const HardwareDevice* const*, size_t,
                                                    const char* info, int32_t* verdict);
  Status* (*CreateAllocator)(EpFactory*, const MemoryInfo*, const KeyValuePairs* options,
                             AllocatorImpl** out);
  void (*ReleaseAllocator)(EpFactory*, AllocatorImpl*);
  Status* (*CreateDataTransfer)(EpFactory*, DataTransferImpl** out);
  bool (*IsStreamAware)(const EpFactory*);
  Status* (*CreateSyncStreamForDevice)(EpFactory*, const MemoryDevice*, const KeyValuePairs* options,
                                       SyncStreamImpl** out);
  void* later[24];  // 24 and newer
};

// Where an input or output of a kernel lies, if not in the provider's memory.
inline constexpr int32_t kCpuInput = -2;
inline constexpr int32_t kCpuOutput = -1;

enum AttributeType : int32_t { kIntAttribute = 1, kStringAttribute = 5 };

inline constexpr Slot<1, int32_t(const Status*)> GetErrorCode;
inline constexpr Slot<2, const char*(const Status*)> GetErrorMessage;
inline constexpr Slot<55, Status*(const TypeInfo*, const TensorInfo** out)> CastToTensorInfo;  // borrowed
inline constexpr Slot<69, Status*(int32_t allocator, int32_t memory, MemoryInfo** out)>
    CreateCpuMemoryInfo;
inline constexpr Slot<75, Status*(Allocator*, size_t bytes, void** out)> AllocatorAlloc;
inline constexpr Slot<76, Status*(Allocator*, void*)> AllocatorFree;
inline constexpr Slot<93, void(Status*)> ReleaseStatus;
inline constexpr Slot<98, void(TypeInfo*)> ReleaseTypeInfo;
inline constexpr Slot<132, void(Allocator*)> ReleaseAllocator;
inline constexpr Slot<193, Status*(const KernelContext*, void** handle)> GetStreamHandle;
inline constexpr Slot<211, Status*(const char* name, const void* data, int32_t length, int32_t type,
                                   OpAttr** out)>
    CreateOpAttr;
inline constexpr Slot<212, void(OpAttr*)> ReleaseOpAttr;
inline constexpr Slot<235, Status*(const KernelInfo*, size_t, TypeInfo** out)> GetOutputTypeInfo;
inline constexpr Slot<244, Status*(const KernelInfo*, char* name, size_t* size)> GetKernelNodeName;
inline constexpr Slot<247, Status*(const Logger*, int32_t severity, const char* message,
                                   const char* file, int32_t line, const char* function)>
    LogMessage;
inline constexpr Slot<253, Status*(const KernelContext*, const MemoryInfo*, Allocator** out)>
    GetAllocator;
// `size` is in bytes, then what it takes, without a 0 at the end.
inline constexpr Slot<272, Status*(const OpAttr*, int32_t type, void* room, size_t bytes, size_t* size)>
    ReadOpAttr;
inline constexpr Slot<289, Status*(const ValueInfo*, const char** out)> GetValueName;
inline constexpr Slot<290, Status*(const ValueInfo*, const TypeInfo** out)> GetValueType;  // borrowed
inline constexpr Slot<295, void(KeyValuePairs** out)> CreatePairs;
inline constexpr Slot<296, void(KeyValuePairs*, const char* key, const char* value)> AddPair;
inline constexpr Slot<297, const char*(const KeyValuePairs*, const char* key)> GetPair;
inline constexpr Slot<298, void(const KeyValuePairs*, const char* const** keys,
                                const char* const** values, size_t* count)>
    GetPairs;
inline constexpr Slot<300, void(KeyValuePairs*)> ReleasePairs;
inline constexpr Slot<307, int32_t(const HardwareDevice*)> HardwareType;
inline constexpr Slot<308, uint32_t(const HardwareDevice*)> HardwareVendorId;
inline constexpr Slot<318, Status*(const Value*, size_t* bytes)> GetTensorBytes;
inline constexpr Slot<320, Status*(const char* name, int32_t device_type, uint32_t vendor,
                                   int32_t device, int32_t memory_type, size_t alignment,
                                   int32_t allocator, MemoryInfo** out)>
    CreateMemoryInfo;
inline constexpr Slot<334, Status*(const Graph*, const char** out)> GetModelPath;
inline constexpr Slot<344, Status*(const Graph*, size_t*)> GetNodeCount;
inline constexpr Slot<345, Status*(const Graph*, const Node**, size_t)> GetNodes;
inline constexpr Slot<346, Status*(const Graph*, const Node** out)> GetParentNode;
inline constexpr Slot<349, Status*(const Node*, const char** out)> GetNodeName;
inline constexpr Slot<350, Status*(const Node*, const char** out)> GetNodeOperator;
inline constexpr Slot<351, Status*(const Node*, const char** out)> GetNodeDomain;
inline constexpr Slot<353, Status*(const Node*, size_t*)> GetNodeInputCount;
inline constexpr Slot<354, Status*(const Node*, const ValueInfo**, size_t)> GetNodeInputs;
inline constexpr Slot<355, Status*(const Node*, size_t*)> GetNodeOutputCount;
inline constexpr Slot<356, Status*(const Node*, const ValueInfo**, size_t)> GetNodeOutputs;
inline constexpr Slot<361, Status*(const Node*, const char* name, const OpAttr** out)> GetAttribute;
inline constexpr Slot<379, Status*(const SessionOptions*, KeyValuePairs** out)> GetSessionConfig;

// The tables within the table.
struct EpApi;
struct EditorApi;
inline constexpr Slot<291, const EditorApi*()> GetEditorApi;
inline constexpr Slot<317, const EpApi*()> GetEpApi;

template <int kIndex, class Signature>
struct EpSlot {
  Signature* operator()(const EpApi* api) const {
    return reinterpret_cast<Signature* const*>(api)[kIndex];
  }
};

inline constexpr EpSlot<0, Status*(EpFactory*, const HardwareDevice*, const KeyValuePairs* metadata,
                                   const KeyValuePairs* options, EpDevice** out)>
    CreateEpDevice;
inline constexpr EpSlot<2, Status*(GraphSupport*, const Node* const*, size_t, const NodeFusionOptions*)>
    AddNodesToFuse;
inline constexpr EpSlot<3, Status*(GraphSupport*, const Node*)> AddSingleNode;
inline constexpr EpSlot<5, Status*(EpDevice*, const MemoryInfo*)> AddAllocatorInfo;  // not copied
inline constexpr EpSlot<6, const MemoryDevice*(const MemoryInfo*)> DeviceOfMemory;
inline constexpr EpSlot<7, const MemoryDevice*(const Value*)> DeviceOfValue;
inline constexpr EpSlot<9, int32_t(const MemoryDevice*)> MemoryDeviceType;
inline constexpr EpSlot<11, uint32_t(const MemoryDevice*)> MemoryDeviceVendor;
inline constexpr EpSlot<12, uint32_t(const MemoryDevice*)> MemoryDeviceId;
inline constexpr EpSlot<13, const SyncStreamImpl*(const SyncStream*)> StreamImpl;
inline constexpr EpSlot<18, Status*(KernelRegistry** out)> CreateKernelRegistry;
inline constexpr EpSlot<19, void(KernelRegistry*)> ReleaseKernelRegistry;
inline constexpr EpSlot<20, Status*(KernelRegistry*, const KernelDef*, CreateKernelFunction*, void* state)>
    AddKernel;
inline constexpr EpSlot<21, Status*(KernelDefBuilder** out)> CreateBuilder;
inline constexpr EpSlot<22, void(KernelDefBuilder*)> ReleaseBuilder;
inline constexpr EpSlot<23, Status*(KernelDefBuilder*, const char*)> SetOperatorType;
inline constexpr EpSlot<24, Status*(KernelDefBuilder*, const char*)> SetDomain;
inline constexpr EpSlot<25, Status*(KernelDefBuilder*, int32_t first, int32_t last)> SetSinceVersion;
inline constexpr EpSlot<26, Status*(KernelDefBuilder*, const char*)> SetExecutionProvider;
inline constexpr EpSlot<27, Status*(KernelDefBuilder*, size_t, int32_t memory)> SetInputMemory;
inline constexpr EpSlot<28, Status*(KernelDefBuilder*, size_t, int32_t memory)> SetOutputMemory;
inline constexpr EpSlot<29, Status*(KernelDefBuilder*, const char* name, const DataType* const*, size_t)>
    AddTypeConstraint;
inline constexpr EpSlot<32, Status*(KernelDefBuilder*, KernelDef** out)> BuildKernelDef;
inline constexpr EpSlot<33, void(KernelDef*)> ReleaseKernelDef;
inline constexpr EpSlot<40, Status*(int32_t element_type, const DataType** out)> GetTensorDataType;
// Null if no kernel of the provider's registry fits.
inline constexpr EpSlot<41, Status*(GraphSupport*, const Node*, const KernelDef** out)> LookUpKernel;
// 25:
inline constexpr EpSlot<65, Status*(int32_t category, int32_t process, int32_t thread, const char* name,
                                    int64_t begin_us, int64_t duration_us, const char* const* keys,
                                    const char* const* values, size_t count, ProfilingEvent** out)>
    CreateProfilingEvent;
inline constexpr EpSlot<66, void(ProfilingEvent*)> ReleaseProfilingEvent;
inline constexpr EpSlot<72, Status*(ProfilingEvents*, const ProfilingEvent* const*, size_t)>
    AddProfilingEvents;

// Attributes are taken over by the node.
using CreateNodeFunction = Status*(const char* op_type, const char* domain, const char* name,
                                   const char* const* inputs, size_t input_count,
                                   const char* const* outputs, size_t output_count, OpAttr** attributes,
                                   size_t attribute_count, Node** out);
inline CreateNodeFunction* CreateNode(const EditorApi* api) {
  return reinterpret_cast<CreateNodeFunction* const*>(api)[6];
}

}  // namespace ort
