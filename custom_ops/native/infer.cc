// Shapes of an op's outputs before it runs, with every size known or named.
#include <atomic>
#include <cstdio>

#include "shim.h"

namespace ortkit {
namespace {

constexpr size_t kTextBytes = 192;

// What is known about one symbol of the op in one model: a size, or the model's own name for it.
struct Known {
  int64_t size = -1;
  const char* name = nullptr;
};

ort::Status* ReadInput(const Op& op, const ort::ShapeContext* context, int32_t index, Known* known) {
  const OrtkitTensor& tensor = op.spec->tensors[index];
  ort::TensorInfo* info = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetInputTypeShape(op.api)(context, index, &info));
  size_t rank = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetRank(op.api)(info, &rank));
  // A shape that is not known has rank 0 here; one that is wrong is refused when the op runs.
  if (rank != static_cast<size_t>(tensor.rank)) return nullptr;
  int64_t dims[ORTKIT_MAX_RANK];
  const char* names[ORTKIT_MAX_RANK] = {};
  ORTKIT_RETURN_IF_ERROR(ort::GetDimensions(op.api)(info, dims, rank));
  ORTKIT_RETURN_IF_ERROR(ort::GetSymbolicDimensions(op.api)(info, names, rank));
  for (size_t i = 0; i < rank; ++i) {
    const OrtkitExtent& extent = tensor.dims[i];
    if (extent.symbol_count != 1) continue;
    Known& symbol = known[extent.symbols[0]];
    if (dims[i] >= 0 && extent.factor > 0 && dims[i] % extent.factor == 0) {
      symbol.size = dims[i] / extent.factor;
    }
    const bool is_named = extent.factor == 1 && names[i] != nullptr && names[i][0] != '\0';
    if (symbol.name == nullptr && is_named) symbol.name = names[i];
  }
  return nullptr;
}

// Names a size that the model leaves nameless. The memory planner takes equal names for equal sizes,
// so the name must not occur twice: two nodes of one op type may have different sizes.
void Invent(const Op& op, int64_t symbol, char* text, size_t capacity) {
  static std::atomic<uint32_t> count{0};
  snprintf(text, capacity, "%s.%s.%u", op.spec->op_type, op.spec->symbols[symbol],
           count.fetch_add(1, std::memory_order_relaxed));
}

// Writes a size: its number, or -1 and a name, which is a product where there are several symbols.
int64_t DescribeDim(const OrtkitExtent& extent, const Known* known, char* text, const char** name) {
  int64_t factor = extent.factor;
  int32_t unknown = 0;
  for (int32_t i = 0; i < extent.symbol_count; ++i) {
    const Known& symbol = known[extent.symbols[i]];
    if (symbol.size >= 0) factor *= symbol.size;
    else ++unknown;
  }
  *name = "";
  if (unknown == 0 || factor == 0) return factor;
  size_t used = 0;
  if (factor != 1) used += snprintf(text, kTextBytes, "%lld", static_cast<long long>(factor));
  for (int32_t i = 0; i < extent.symbol_count && used < kTextBytes; ++i) {
    const Known& symbol = known[extent.symbols[i]];
    if (symbol.size >= 0) continue;
    used += snprintf(text + used, kTextBytes - used, used == 0 ? "%s" : "*%s", symbol.name);
  }
  *name = text;
  return -1;
}

ort::Status* Describe(const Op& op, const OrtkitTensor& tensor, const Known* known,
                      ort::TensorInfo* info) {
  int64_t dims[ORTKIT_MAX_RANK];
  const char* names[ORTKIT_MAX_RANK];
  char texts[ORTKIT_MAX_RANK][kTextBytes];
  for (int32_t i = 0; i < tensor.rank; ++i) {
    dims[i] = DescribeDim(tensor.dims[i], known, texts[i], &names[i]);
  }
  ORTKIT_RETURN_IF_ERROR(ort::SetElementType(op.api)(info, tensor.element_type));
  ORTKIT_RETURN_IF_ERROR(ort::SetDimensions(op.api)(info, dims, tensor.rank));
  return ort::SetSymbolicDimensions(op.api)(info, names, tensor.rank);
}

ort::Status* InferOne(const Op& op, ort::ShapeContext* context, int32_t index, const Known* known) {
  ort::TensorInfo* info = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::CreateTensorInfo(op.api)(&info));
  ort::Status* status = Describe(op, op.spec->tensors[op.spec->input_count + index], known, info);
  if (status == nullptr) status = ort::SetOutputTypeShape(op.api)(context, index, info);
  ort::ReleaseTensorInfo(op.api)(info);
  return status;
}

}  // namespace

ort::Status* InferOutputShape(const ort::CustomOp* custom_op, ort::ShapeContext* context) {
  const Op& op = *AsOp(custom_op);
  Known known[ORTKIT_MAX_SYMBOLS];
  for (int32_t i = 0; i < op.spec->input_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(ReadInput(op, context, i, known));
  }
  char invented[ORTKIT_MAX_SYMBOLS][160];
  for (int32_t i = 0; i < op.spec->symbol_count; ++i) {
    if (known[i].size >= 0 || known[i].name != nullptr) continue;
    Invent(op, i, invented[i], sizeof invented[i]);
    known[i].name = invented[i];
  }
  for (int32_t i = 0; i < op.spec->output_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(InferOne(op, context, i, known));
  }
  return nullptr;
}

}  // namespace ortkit
