// Shapes of an op's outputs before it runs, with every size known or named.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "shim.h"
#include "sizes.h"

namespace ortkit {
namespace {

constexpr size_t kNameBytes = 192;

struct Name {
  char text[kNameBytes];
};

// What one model tells of an op's sizes.
struct Known {
  int64_t sizes[ORTKIT_MAX_SYMBOLS];
  const char* names[ORTKIT_MAX_SYMBOLS];  // the model's own, where it has one; lives as long as the context
  Name invented[ORTKIT_MAX_SYMBOLS];
};

// A size or the model's name of it.
struct Dim {
  int64_t size;
  const char* name;
};

// One input's dims; `*rank` is -1 if its shape is not known, or is one that will be refused in a run.
ort::Status* ReadDims(const Op& op, const ort::ShapeContext* context, int32_t index, Dim* found,
                      int32_t* rank) {
  *rank = -1;
  const OrtkitTensor& tensor = op.spec->tensors[index];
  ort::TensorInfo* info = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetInputTypeShape(op.api)(context, index, &info));
  size_t count = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetRank(op.api)(info, &count));
  if (count != static_cast<size_t>(tensor.rank)) return nullptr;
  int64_t dims[ORTKIT_MAX_RANK];
  const char* names[ORTKIT_MAX_RANK] = {};
  ORTKIT_RETURN_IF_ERROR(ort::GetDimensions(op.api)(info, dims, count));
  ORTKIT_RETURN_IF_ERROR(ort::GetSymbolicDimensions(op.api)(info, names, count));
  for (size_t i = 0; i < count; ++i) found[i] = {dims[i], names[i] == nullptr ? "" : names[i]};
  *rank = tensor.rank;
  return nullptr;
}

void Learn(const OrtkitExtent& extent, const Dim& dim, Known* known) {
  if (dim.size >= 0) Solve(extent, dim.size, known->sizes);
  const bool is_symbol = extent.factor == 1 && extent.symbol_count == 1;
  if (!is_symbol || dim.name[0] == '\0') return;
  const char*& name = known->names[extent.symbols[0]];
  if (name == nullptr) name = dim.name;
}

// Twice, since a later input may tell what an earlier one needs.
ort::Status* ReadInputs(const Op& op, const ort::ShapeContext* context, Known* known) {
  for (int32_t i = 0; i < op.spec->symbol_count; ++i) {
    known->sizes[i] = kUnknown;
    known->names[i] = nullptr;
  }
  for (int32_t round = 0; round < 2; ++round) {
    for (int32_t i = 0; i < op.spec->input_count; ++i) {
      Dim dims[ORTKIT_MAX_RANK];
      int32_t rank = 0;
      ORTKIT_RETURN_IF_ERROR(ReadDims(op, context, i, dims, &rank));
      for (int32_t axis = 0; axis < rank; ++axis) Learn(op.spec->tensors[i].dims[axis], dims[axis], known);
    }
  }
  return nullptr;
}

// A name for a size that the model leaves nameless. The memory planner takes equal names for equal
// sizes, so none may occur twice: two nodes of one op type may differ. The counter is all that the
// shim changes after it was loaded.
void Invent(const Op& op, const char* stem, Name* name) {
  static std::atomic<uint32_t> count{0};
  snprintf(name->text, sizeof name->text, "%.100s.%.60s.%u", op.spec->op_type, stem,
           count.fetch_add(1, std::memory_order_relaxed));
}

// Whether a name is one factor, wherever it stands in a product.
bool IsFactor(const char* name) {
  for (; *name != '\0'; ++name) {
    const char c = *name;
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_word && c != '_' && c != '.' && c != ':') return false;
  }
  return true;
}

// Appends one factor. Returns false without room.
bool Append(const char* factor, Name* name, size_t* used) {
  const char* format = *used == 0 ? (IsFactor(factor) ? "%s" : "(%s)")
                                  : (IsFactor(factor) ? "*%s" : "*(%s)");
  const int written = snprintf(name->text + *used, sizeof name->text - *used, format, factor);
  *used += static_cast<size_t>(written);
  return *used < sizeof name->text;
}

// "2*batch*seq": its known part, then the names of the others. A name that does not fit must not be
// cut, as it would equal others.
void WriteProduct(const Op& op, const OrtkitExtent& extent, const Known& known, Name* name) {
  int64_t factor = extent.factor;
  bool has_room = true;
  for (int32_t i = 0; i < extent.symbol_count; ++i) {
    const int64_t size = known.sizes[extent.symbols[i]];
    if (size != kUnknown) has_room = has_room && !__builtin_mul_overflow(factor, size, &factor);
  }
  size_t used = 0;
  char number[24];
  snprintf(number, sizeof number, "%lld", static_cast<long long>(factor));
  if (factor != 1) has_room = has_room && Append(number, name, &used);
  for (int32_t i = 0; i < extent.symbol_count; ++i) {
    const int32_t symbol = extent.symbols[i];
    if (known.sizes[symbol] == kUnknown) has_room = has_room && Append(known.names[symbol], name, &used);
  }
  if (!has_room) Invent(op, "size", name);
}

bool IsEqual(const OrtkitExtent& a, const OrtkitExtent& b) {
  return a.factor == b.factor && a.symbol_count == b.symbol_count &&
         memcmp(a.symbols, b.symbols, a.symbol_count * sizeof *a.symbols) == 0;
}

// The name that an input has for the same size, or null.
ort::Status* FindName(const Op& op, const ort::ShapeContext* context, const OrtkitExtent& extent,
                      const char** name) {
  *name = nullptr;
  for (int32_t i = 0; i < op.spec->input_count; ++i) {
    Dim dims[ORTKIT_MAX_RANK];
    int32_t rank = 0;
    ORTKIT_RETURN_IF_ERROR(ReadDims(op, context, i, dims, &rank));
    for (int32_t axis = 0; axis < rank; ++axis) {
      if (dims[axis].name[0] == '\0' || !IsEqual(op.spec->tensors[i].dims[axis], extent)) continue;
      *name = dims[axis].name;
      return nullptr;
    }
  }
  return nullptr;
}

// Fills one output's shape into `info`; a size that is known has no name.
ort::Status* Describe(const Op& op, const ort::ShapeContext* context, const OrtkitTensor& tensor,
                      const Known& known, ort::TensorInfo* info) {
  int64_t dims[ORTKIT_MAX_RANK];
  const char* names[ORTKIT_MAX_RANK];
  Name products[ORTKIT_MAX_RANK];
  for (int32_t i = 0; i < tensor.rank; ++i) {
    const OrtkitExtent& extent = tensor.dims[i];
    dims[i] = SizeOf(extent, known.sizes);
    names[i] = "";
    if (dims[i] != kUnknown) continue;
    ORTKIT_RETURN_IF_ERROR(FindName(op, context, extent, &names[i]));
    if (names[i] != nullptr) continue;
    const bool is_symbol = extent.factor == 1 && extent.symbol_count == 1;
    names[i] = is_symbol ? known.names[extent.symbols[0]] : products[i].text;
    if (!is_symbol) WriteProduct(op, extent, known, &products[i]);
  }
  ORTKIT_RETURN_IF_ERROR(ort::SetElementType(op.api)(info, tensor.element_type));
  ORTKIT_RETURN_IF_ERROR(ort::SetDimensions(op.api)(info, dims, tensor.rank));
  return ort::SetSymbolicDimensions(op.api)(info, names, tensor.rank);
}

ort::Status* InferOne(const Op& op, ort::ShapeContext* context, int32_t index, const Known& known) {
  const OrtkitTensor& tensor = op.spec->tensors[op.spec->input_count + index];
  ort::TensorInfo* info = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::CreateTensorInfo(op.api)(&info));
  ort::Status* status = Describe(op, context, tensor, known, info);
  if (status == nullptr) status = ort::SetOutputTypeShape(op.api)(context, index, info);
  ort::ReleaseTensorInfo(op.api)(info);
  return status;
}

}  // namespace

ort::Status* InferOutputShape(const ort::CustomOp* custom_op, ort::ShapeContext* context) {
  const Op& op = *AsOp(custom_op);
  Known known;
  ORTKIT_RETURN_IF_ERROR(ReadInputs(op, context, &known));
  for (int32_t i = 0; i < op.spec->symbol_count; ++i) {
    if (known.sizes[i] != kUnknown || known.names[i] != nullptr) continue;
    Invent(op, op.spec->symbols[i], &known.invented[i]);
    known.names[i] = known.invented[i].text;
  }
  for (int32_t i = 0; i < op.spec->output_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(InferOne(op, context, i, known));
  }
  return nullptr;
}

}  // namespace ortkit
