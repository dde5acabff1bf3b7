// The part of ONNX Runtime's C ABI that the shim uses, written from its public description.
//
// OrtApi is one flat, append-only table of function pointers; a slot keeps its number and its
// signature in every later version. Only the slots named here are ever read. All of them exist since
// API version 24 (ONNX Runtime 1.24). tests/native/test_abi.py calls each of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

inline constexpr uint32_t kApiVersion = 24;

enum ErrorCode : int32_t { kFail = 1, kInvalidArgument = 2 };

struct Status;              // a failure; null is success
struct SessionOptions;
struct OpDomain;
struct KernelInfo;
struct KernelContext;
struct ShapeContext;
struct Value;
struct TensorInfo;          // element type and shape
struct Api;                 // the table

struct ApiBase {
  const Api* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// One entry of the table: `kSlot(api)` is the function.
template <int kIndex, class Signature>
struct Slot {
  Signature* operator()(const Api* api) const {
    return reinterpret_cast<Signature* const*>(api)[kIndex];
  }
};

struct CustomOp;
using ParallelBody = void(void* user, size_t index);

inline constexpr Slot<0, Status*(int32_t code, const char* message)> CreateStatus;
inline constexpr Slot<26, Status*(const char* name, OpDomain** out)> CreateCustomOpDomain;
inline constexpr Slot<27, Status*(OpDomain*, const CustomOp*)> CustomOpDomainAdd;
inline constexpr Slot<28, Status*(SessionOptions*, OpDomain*)> AddCustomOpDomain;
inline constexpr Slot<51, Status*(Value*, void** data)> GetTensorMutableData;
inline constexpr Slot<57, Status*(TensorInfo** out)> CreateTensorInfo;
inline constexpr Slot<58, Status*(TensorInfo*, int32_t element_type)> SetElementType;
inline constexpr Slot<59, Status*(TensorInfo*, const int64_t*, size_t)> SetDimensions;
inline constexpr Slot<60, Status*(const TensorInfo*, int32_t* element_type)> GetElementType;
inline constexpr Slot<61, Status*(const TensorInfo*, size_t* rank)> GetRank;
inline constexpr Slot<62, Status*(const TensorInfo*, int64_t*, size_t)> GetDimensions;
// Unnamed sizes answer "", unknown ones -1 in GetDimensions.
inline constexpr Slot<63, Status*(const TensorInfo*, const char**, size_t)> GetSymbolicDimensions;
inline constexpr Slot<85, Status*(const KernelInfo*, const char* name, float* out)> GetFloatAttribute;
inline constexpr Slot<86, Status*(const KernelInfo*, const char* name, int64_t* out)> GetIntegerAttribute;
inline constexpr Slot<90, Status*(const KernelContext*, size_t, const Value**)> GetInput;
inline constexpr Slot<91, Status*(KernelContext*, size_t, const int64_t*, size_t, Value**)> GetOutput;
inline constexpr Slot<99, void(TensorInfo*)> ReleaseTensorInfo;
inline constexpr Slot<130, Status*(SessionOptions*, const char* key, const char* value)>
    AddSessionConfigEntry;
inline constexpr Slot<230, Status*(const KernelInfo*, size_t*)> GetInputCount;
inline constexpr Slot<231, Status*(const KernelInfo*, size_t*)> GetOutputCount;
inline constexpr Slot<237, Status*(const SessionOptions*, const char* key, int32_t* has)>
    HasSessionConfigEntry;
// `size` is the room for the value and its 0, then what it takes.
inline constexpr Slot<238, Status*(const SessionOptions*, const char* key, char* value, size_t* size)>
    GetSessionConfigEntry;
// The value belongs to the session.
inline constexpr Slot<249, Status*(const KernelInfo*, size_t, int32_t* is_constant, const Value**)>
    GetConstantInput;
inline constexpr Slot<267, Status*(const ShapeContext*, size_t*)> GetShapeInputCount;
// The answer belongs to the context.
inline constexpr Slot<268, Status*(const ShapeContext*, size_t, TensorInfo**)> GetInputTypeShape;
inline constexpr Slot<270, Status*(const ShapeContext*, size_t, const TensorInfo*)> SetOutputTypeShape;
inline constexpr Slot<271, Status*(TensorInfo*, const char**, size_t)> SetSymbolicDimensions;
inline constexpr Slot<274, Status*(const KernelContext*, ParallelBody*, size_t total, size_t batches,
                                   void* user)> ParallelFor;
inline constexpr Slot<378, Status*(const Value*, const void** data)> GetTensorData;
// Borrowed dims, valid as long as the value.
inline constexpr Slot<390, bool(const TensorInfo*)> HasShape;
inline constexpr Slot<414, Status*(const Value*, int32_t* element_type, const int64_t** dims,
                                   size_t* rank)> GetTypeAndShapeReference;

// One op's description, read by ONNX Runtime through these pointers in this order.
struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const Api*, const KernelInfo*);  // only before version 16
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);               // null: CPU
  int32_t (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const CustomOp*);
  int32_t (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);                           // only before version 16
  void (*KernelDestroy)(void*);
  int32_t (*GetInputCharacteristic)(const CustomOp*, size_t);             // 0: required
  int32_t (*GetOutputCharacteristic)(const CustomOp*, size_t);
  int32_t (*GetInputMemoryType)(const CustomOp*, size_t);                 // 0: the device's
  int32_t (*GetVariadicInputMinArity)(const CustomOp*);
  int32_t (*GetVariadicInputHomogeneity)(const CustomOp*);
  int32_t (*GetVariadicOutputMinArity)(const CustomOp*);
  int32_t (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const Api*, const KernelInfo*, void** kernel);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  Status* (*InferOutputShape)(const CustomOp*, ShapeContext*);
  int32_t (*GetStartVersion)(const CustomOp*);
  int32_t (*GetEndVersion)(const CustomOp*);
  size_t (*GetMayInplace)(int32_t** inputs, int32_t** outputs);
  void (*ReleaseMayInplace)(int32_t*, int32_t*);
  size_t (*GetAliasMap)(int32_t** inputs, int32_t** outputs);
  void (*ReleaseAliasMap)(int32_t*, int32_t*);
};
static_assert(sizeof(void*) == 8 && sizeof(CustomOp) == 208, "64-bit layout of OrtCustomOp");

}  // namespace ort
