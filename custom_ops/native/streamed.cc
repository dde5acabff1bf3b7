// Kernels for the CPU that stream their constants from memory in each run: their nodes hold copies in huge pages.
#include <cstdlib>

#include "constants.h"
#include "run.h"

namespace ortkit {
namespace {

// Of smaller constants a page of 2 MiB would be a waste.
constexpr int64_t kLeastBytes = 256 << 10;
// From here on ONNX Runtime's types have less than a byte for an element.
constexpr int32_t kFirstNarrowType = 21;

struct Streamed {
  const Op* op;
  const Copy* copies[ORTKIT_MAX_TENSORS];  // of inputs; null: as the runtime has it
};

// Bytes of a tensor; 0 if they are not whole or exceed 63 bits.
int64_t BytesOf(int32_t type, const int64_t* dims, size_t rank) {
  if (type >= kFirstNarrowType) return 0;
  int64_t bytes = ElementBytes(type);
  for (size_t i = 0; i < rank; ++i) {
    if (__builtin_mul_overflow(bytes, dims[i], &bytes)) return 0;
  }
  return bytes;
}

ort::Status* CopyConstant(const Op& op, const ort::KernelInfo* info, int32_t index, const Copy** copy) {
  int32_t is_constant = 0;
  const ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetConstantInput(op.api)(info, index, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) return nullptr;
  int32_t type = 0;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  const void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTypeAndShapeReference(op.api)(value, &type, &dims, &rank));
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorData(op.api)(value, &data));
  const int64_t bytes = BytesOf(type, dims, rank);
  if (bytes >= kLeastBytes) *copy = HoldCopy(data, static_cast<size_t>(bytes));
  return nullptr;
}

}  // namespace

ort::Status* CreateStreamed(const ort::CustomOp* custom_op, const ort::Api*, const ort::KernelInfo* info,
                            void** kernel) {
  const Op& op = *AsOp(custom_op);
  ORTKIT_RETURN_IF_ERROR(CheckCounts(op, info));
  auto* made = static_cast<Streamed*>(calloc(1, sizeof(Streamed)));
  if (made == nullptr) return Refuse(op, ort::kFail, "there is no memory for its node");
  made->op = &op;
  for (int32_t i = 0; i < op.spec->input_count; ++i) {
    if (ort::Status* status = CopyConstant(op, info, i, &made->copies[i])) {
      DestroyStreamed(made);
      return status;
    }
  }
  *kernel = made;
  return nullptr;
}

ort::Status* ComputeStreamed(void* kernel, ort::KernelContext* context) {
  const Streamed& streamed = *static_cast<const Streamed*>(kernel);
  const Op& op = *streamed.op;
  Run run;
  ORTKIT_RETURN_IF_ERROR(ReadInputs(op, context, &run));
  for (int32_t i = 0; i < op.spec->input_count; ++i) {
    if (streamed.copies[i] != nullptr) run.data[i] = MemoryOf(streamed.copies[i]);
  }
  ORTKIT_RETURN_IF_ERROR(MakeOutputs(op, context, &run));
  return RunUnits(op, context, &run);
}

void DestroyStreamed(void* kernel) {
  auto* streamed = static_cast<Streamed*>(kernel);
  for (const Copy* copy : streamed->copies) {
    if (copy != nullptr) ReleaseCopy(copy);
  }
  free(streamed);
}

}  // namespace ortkit
