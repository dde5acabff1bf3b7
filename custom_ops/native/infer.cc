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

// A size or the model's name of it.
struct Dim {
  int64_t size;
  const char* name;
};

// How a node differs from its op; see InferShapes.
struct Node {
  const int32_t* places;
  const int32_t* wildcard_axes;

  int32_t Place(int32_t input) const { return places == nullptr ? input : places[input]; }
  int32_t Star(int32_t tensor) const { return wildcard_axes == nullptr ? 0 : wildcard_axes[tensor]; }
};

// The most axes of a tensor whose shape says "any number".
constexpr size_t kMostAxes = 64;

// What one model tells of an op's sizes.
struct Known {
  int64_t sizes[ORTKIT_MAX_SYMBOLS];
  const char* names[ORTKIT_MAX_SYMBOLS];  // the model's own, where it has one; lives as long as the context
  Name invented[ORTKIT_MAX_SYMBOLS];
  Dim star[kMostAxes];                    // the axes that the op has one for
  int32_t star_count;                     // -1: not known
};

// One input's dims where the op has one axis for any number of the node's: `found` gets the op's, `known`
// the node's.
ort::Status* ReadStar(const Op& op, const ort::TensorInfo* info, const OrtkitTensor& tensor, size_t axis,
                      Dim* found, int32_t* rank, Known* known) {
  const size_t others = tensor.rank - 1;
  if (!ort::HasShape(op.api)(info)) return nullptr;
  size_t count = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetRank(op.api)(info, &count));
  if (count < others || count - others > kMostAxes) return nullptr;
  int64_t dims[kMostAxes + ORTKIT_MAX_RANK];
  const char* names[kMostAxes + ORTKIT_MAX_RANK] = {};
  ORTKIT_RETURN_IF_ERROR(ort::GetDimensions(op.api)(info, dims, count));
  ORTKIT_RETURN_IF_ERROR(ort::GetSymbolicDimensions(op.api)(info, names, count));
  const size_t wildcard_axes = count - others;
  int64_t product = 1;
  for (size_t i = 0; i < count; ++i) {
    const Dim dim = {dims[i], names[i] == nullptr ? "" : names[i]};
    if (i < axis) found[i] = dim;
    if (i >= axis + wildcard_axes) found[i - wildcard_axes + 1] = dim;
    if (i < axis || i >= axis + wildcard_axes) continue;
    // The first input that tells a size or a name of it; a run compares them.
    const size_t at = i - axis;
    const bool is_first = known->star_count < 0 || at >= static_cast<size_t>(known->star_count);
    if (is_first || known->star[at].size < 0) known->star[at] = dim;
    const bool has_product = product >= 0 && dim.size >= 0;
    if (!has_product || __builtin_mul_overflow(product, dim.size, &product)) product = kUnknown;
  }
  known->star_count = static_cast<int32_t>(wildcard_axes);
  found[axis] = {product, ""};
  *rank = tensor.rank;
  return nullptr;
}

// One input's dims; `*rank` is -1 if its shape is not known, or is one that will be refused in a run.
ort::Status* ReadDims(const Op& op, const ort::ShapeContext* context, const Node& node, int32_t index,
                      Dim* found, int32_t* rank, Known* known) {
  *rank = -1;
  const OrtkitTensor& tensor = op.spec->tensors[index];
  const int32_t place = node.Place(index);
  if (place < 0) return nullptr;
  ort::TensorInfo* info = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetInputTypeShape(op.api)(context, place, &info));
  if (const int32_t star = node.Star(index)) return ReadStar(op, info, tensor, star - 1, found, rank, known);
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
ort::Status* ReadInputs(const Op& op, const ort::ShapeContext* context, const Node& node, Known* known) {
  known->star_count = -1;
  for (int32_t i = 0; i < op.spec->symbol_count; ++i) {
    known->sizes[i] = kUnknown;
    known->names[i] = nullptr;
  }
  for (int32_t round = 0; round < 2; ++round) {
    for (int32_t i = 0; i < op.spec->input_count; ++i) {
      Dim dims[ORTKIT_MAX_RANK];
      int32_t rank = 0;
      ORTKIT_RETURN_IF_ERROR(ReadDims(op, context, node, i, dims, &rank, known));
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
ort::Status* FindName(const Op& op, const ort::ShapeContext* context, const Node& node,
                      const OrtkitExtent& extent, Known* known, const char** name) {
  *name = nullptr;
  for (int32_t i = 0; i < op.spec->input_count; ++i) {
    Dim dims[ORTKIT_MAX_RANK];
    int32_t rank = 0;
    ORTKIT_RETURN_IF_ERROR(ReadDims(op, context, node, i, dims, &rank, known));
    for (int32_t axis = 0; axis < rank; ++axis) {
      if (dims[axis].name[0] == '\0' || !IsEqual(op.spec->tensors[i].dims[axis], extent)) continue;
      *name = dims[axis].name;
      return nullptr;
    }
  }
  return nullptr;
}

// One axis of an output: a size that is known has no name.
ort::Status* DescribeAxis(const Op& op, const ort::ShapeContext* context, const Node& node,
                          const OrtkitExtent& extent, Known* known, int64_t* size, const char** name,
                          Name* product) {
  *size = SizeOf(extent, known->sizes);
  *name = "";
  if (*size != kUnknown) return nullptr;
  ORTKIT_RETURN_IF_ERROR(FindName(op, context, node, extent, known, name));
  if (*name != nullptr) return nullptr;
  const bool is_symbol = extent.factor == 1 && extent.symbol_count == 1;
  *name = is_symbol ? known->names[extent.symbols[0]] : product->text;
  if (!is_symbol) WriteProduct(op, extent, *known, product);
  return nullptr;
}

// Fills one output's shape into `info`.
ort::Status* Describe(const Op& op, const ort::ShapeContext* context, const Node& node, int32_t place,
                      Known* known, ort::TensorInfo* info) {
  const OrtkitTensor& tensor = op.spec->tensors[place];
  int64_t dims[ORTKIT_MAX_RANK + kMostAxes];
  const char* names[ORTKIT_MAX_RANK + kMostAxes];
  Name products[ORTKIT_MAX_RANK];
  size_t rank = 0;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (node.Star(place) == i + 1) {
      for (int32_t axis = 0; axis < known->star_count; ++axis, ++rank) {
        const Dim& dim = known->star[axis];
        dims[rank] = dim.size;
        names[rank] = dim.size < 0 ? dim.name : "";
      }
      continue;
    }
    ORTKIT_RETURN_IF_ERROR(
        DescribeAxis(op, context, node, tensor.dims[i], known, &dims[rank], &names[rank], &products[i]));
    ++rank;
  }
  ORTKIT_RETURN_IF_ERROR(ort::SetElementType(op.api)(info, tensor.element_type));
  ORTKIT_RETURN_IF_ERROR(ort::SetDimensions(op.api)(info, dims, rank));
  return ort::SetSymbolicDimensions(op.api)(info, names, rank);
}

ort::Status* InferOne(const Op& op, ort::ShapeContext* context, const Node& node, int32_t index, Known* known) {
  const int32_t place = op.spec->input_count + index;
  if (node.Star(place) != 0 && known->star_count < 0) return nullptr;  // nobody knows how many axes
  ort::TensorInfo* info = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::CreateTensorInfo(op.api)(&info));
  ort::Status* status = Describe(op, context, node, place, known, info);
  if (status == nullptr) status = ort::SetOutputTypeShape(op.api)(context, index, info);
  ort::ReleaseTensorInfo(op.api)(info);
  return status;
}

}  // namespace

ort::Status* InferShapes(const Op& op, ort::ShapeContext* context, const int32_t* places,
                         const int32_t* wildcard_axes) {
  const Node node = {places, wildcard_axes};
  Known known;
  ORTKIT_RETURN_IF_ERROR(ReadInputs(op, context, node, &known));
  for (int32_t i = 0; i < op.spec->symbol_count; ++i) {
    if (known.sizes[i] != kUnknown || known.names[i] != nullptr) continue;
    Invent(op, op.spec->symbols[i], &known.invented[i]);
    known.names[i] = known.invented[i].text;
  }
  for (int32_t i = 0; i < op.spec->output_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(InferOne(op, context, node, i, &known));
  }
  return nullptr;
}

ort::Status* InferOutputShape(const ort::CustomOp* custom_op, ort::ShapeContext* context) {
  return InferShapes(*AsOp(custom_op), context, nullptr, nullptr);
}

}  // namespace ortkit
