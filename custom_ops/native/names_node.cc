// Which kernel runs a node of an op under a name of its user's, and what that reads and makes.
#include "names_node.h"

#include <cstdio>
#include <cstring>

#include "cuda_ort.h"

namespace ortkit {
namespace {

// How many axes a tensor may have, where the kernel does not say.
constexpr int32_t kMostAxes = 64;

// Reads an attribute. Returns whether the node has it, of this type.
bool Has(const NamedOp& op, const ort::KernelInfo* info, const char* name, bool is_float, Number* value) {
  ort::Status* failure = is_float ? ort::GetFloatAttribute(op.api)(info, name, &value->real)
                                  : ort::GetIntegerAttribute(op.api)(info, name, &value->integer);
  if (failure == nullptr) return true;
  ort::ReleaseStatus(op.api)(failure);
  return false;
}

// Reads an attribute, or its default.
ort::Status* ReadAttribute(const NamedOp& op, const ort::KernelInfo* info, int32_t index, Number* value) {
  const OrtkitAttribute& attribute = op.spec->attributes[index];
  const bool is_float = attribute.is_float != 0;
  if (Has(op, info, attribute.name, is_float, value)) return nullptr;
  Number other;
  if (Has(op, info, attribute.name, !is_float, &other)) {
    return RefuseNode(op, is_float ? "the attribute %s is an integer, expected a float"
                                   : "the attribute %s is a float, expected an integer", attribute.name);
  }
  if (attribute.is_needed) return RefuseNode(op, "the attribute %s is missing", attribute.name);
  if (is_float) {
    value->real = attribute.real;
  } else {
    value->integer = attribute.integer;
  }
  return nullptr;
}

// Whether the attributes have the values that a kernel was built for.
bool HasFixed(const Node& node, const OrtkitChoice& choice) {
  for (int32_t i = 0; i < choice.fixed_count; ++i) {
    const OrtkitFixed& fixed = choice.fixed[i];
    const Number& value = node.attributes[fixed.attribute];
    const bool is_float = node.op->spec->attributes[fixed.attribute].is_float != 0;
    if (is_float ? value.real != fixed.real : value.integer != fixed.integer) return false;
  }
  return true;
}

// Which inputs a node has in this run.
struct Inputs {
  const ort::Value* values[ORTKIT_MAX_TENSORS];
};

ort::Status* ReadValues(const Node& node, ort::KernelContext* context, Inputs* inputs) {
  for (size_t i = 0; i < node.input_count && i < ORTKIT_MAX_TENSORS; ++i) {
    ORTKIT_RETURN_IF_ERROR(ort::GetInput(node.op->api)(context, i, &inputs->values[i]));
  }
  return nullptr;
}

bool IsFor(const OrtkitChoice& choice, const Node& node, const Inputs& inputs) {
  if (node.input_count > static_cast<size_t>(choice.input_count)) return false;
  for (int32_t i = 0; i < choice.input_count; ++i) {
    const bool is_present = static_cast<size_t>(i) < node.input_count && inputs.values[i] != nullptr;
    if (is_present != (choice.is_present[i] != 0)) return false;
  }
  return HasFixed(node, choice);
}

// Makes the axes from `axis` on, `count` of them, one of the product of their sizes.
bool Collapse(const int64_t* dims, size_t rank, size_t axis, size_t count, int64_t* collapsed) {
  int64_t product = 1;
  bool has_room = true, is_empty = false;
  for (size_t i = axis; i < axis + count; ++i) {
    is_empty = is_empty || dims[i] == 0;
    has_room = has_room && !__builtin_mul_overflow(product, dims[i], &product);
  }
  for (size_t i = 0; i < axis; ++i) collapsed[i] = dims[i];
  collapsed[axis] = is_empty ? 0 : product;
  for (size_t i = axis + count; i < rank; ++i) collapsed[i - count + 1] = dims[i];
  return is_empty || has_room;
}

// Reads one input of a node as the kernel sees it.
ort::Status* ReadNamedInput(const Op& op, const OrtkitTensor& tensor, int32_t star, const ort::Value* value,
                            Star* found, const int64_t** dims, int64_t* collapsed, char** data) {
  int32_t type = 0;
  size_t rank = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetTypeAndShapeReference(op.api)(value, &type, dims, &rank));
  if (type != tensor.element_type) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has element type %d, expected %d", tensor.name,
                  type, tensor.element_type);
  }
  const size_t least = static_cast<size_t>(tensor.rank) - (star != 0);
  if (star == 0 ? rank != least : rank < least || rank > kMostAxes) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has rank %zu, expected %zu%s", tensor.name, rank,
                  least, star == 0 ? "" : " or more");
  }
  if (star != 0) {
    const size_t axis = star - 1, count = rank - least;
    const int64_t* run = *dims + axis;
    if (found->dims == nullptr) *found = {run, count};
    if (count != found->count || memcmp(run, found->dims, count * sizeof *run) != 0) {
      return Refuse(op, ort::kInvalidArgument, "input '%s' has other sizes than an input before it",
                    tensor.name);
    }
    if (!Collapse(*dims, rank, axis, count, collapsed)) {
      return Refuse(op, ort::kInvalidArgument, "input '%s' exceeds 63 bits", tensor.name);
    }
    *dims = collapsed;
  }
  const void* address = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorData(op.api)(value, &address));
  *data = static_cast<char*>(const_cast<void*>(address));  // kernels only read it
  return nullptr;
}

ort::Status* ReadNamedInputs(const Op& op, const Node& node, const OrtkitChoice& choice,
                             const Inputs& inputs, Run* run, Star* star) {
  const OrtkitOp& spec = *op.spec;
  run->spec = &spec;
  run->has_output = false;
  const int64_t* dims[ORTKIT_MAX_TENSORS];
  int64_t collapsed[ORTKIT_MAX_TENSORS][ORTKIT_MAX_RANK];
  for (int32_t i = 0; i < spec.symbol_count; ++i) run->symbols[i] = kUnknown;
  bool is_plain = true;
  for (int32_t i = 0; i < spec.input_count; ++i) {
    const int32_t place = choice.places[i];
    if (place < 0) {
      dims[i] = nullptr;  // one number
      run->data[i] = reinterpret_cast<char*>(const_cast<Number*>(&node.attributes[-1 - place]));
      continue;
    }
    ORTKIT_RETURN_IF_ERROR(ReadNamedInput(op, spec.tensors[i], choice.wildcard_axes[i], inputs.values[place], star,
                                          &dims[i], collapsed[i], &run->data[i]));
    is_plain = is_plain && ReadPlainDims(spec.tensors[i], dims[i], run->symbols);
  }
  return is_plain ? nullptr : ReadCarefully(op, dims, run);
}

ort::Status* MakeNamedOutput(const Op& op, ort::KernelContext* context, int32_t index, int32_t star_axis,
                             const Star& star, Run* run) {
  const int32_t place = op.spec->input_count + index;
  const OrtkitTensor& tensor = op.spec->tensors[place];
  int64_t dims[ORTKIT_MAX_RANK + kMostAxes];
  size_t rank = 0;
  bool is_empty = false;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (star_axis == i + 1) {
      for (size_t axis = 0; axis < star.count; ++axis) dims[rank++] = star.dims[axis];
    } else {
      dims[rank++] = SizeOf(tensor.dims[i], run->symbols);
    }
  }
  for (size_t i = 0; i < rank; ++i) {
    is_empty = is_empty || dims[i] == 0;
    if (dims[i] == kUnknown) {
      return Refuse(op, ort::kInvalidArgument, "the size of output '%s' in dim %zu exceeds 63 bits",
                    tensor.name, i);
    }
  }
  ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetOutput(op.api)(context, index, dims, rank, &value));
  void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorMutableData(op.api)(value, &data));
  run->data[place] = static_cast<char*>(data);
  run->has_output = run->has_output || !is_empty;
  return nullptr;
}

// Whether the sizes are those that a kernel is for.
bool HoldAll(const OrtkitChoice& choice, const Run& run) {
  for (int32_t i = 0; i < choice.condition_count; ++i) {
    const OrtkitCondition& condition = choice.conditions[i];
    const int64_t size = SizeOf(condition.extent, run.symbols);
    if (size == kUnknown || size > condition.at_most || size % condition.divisible_by != 0) return false;
  }
  return true;
}

}  // namespace

ort::Status* RefuseNode(const NamedOp& op, const char* format, const char* what) {
  char reason[256];
  snprintf(reason, sizeof reason, format, what);
  char text[512];
  snprintf(text, sizeof text, "%s::%s: %s", op.spec->domain, op.spec->name, reason);
  return ort::CreateStatus(op.api)(ort::kInvalidArgument, text);
}

ort::Status* ReadNode(const NamedOp& op, const ort::KernelInfo* info, Node* node) {
  *node = {&op, 0, {}, {}};
  ORTKIT_RETURN_IF_ERROR(ort::GetInputCount(op.api)(info, &node->input_count));
  for (int32_t i = 0; i < op.spec->attribute_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(ReadAttribute(op, info, i, &node->attributes[i]));
  }
  for (int32_t i = 0; i < op.spec->choice_count; ++i) {
    if (HasKernel(op, op.spec->choices[i]) && HasFixed(*node, op.spec->choices[i])) return nullptr;
  }
  return RefuseNode(op, "%s", "this library has no kernel for the values of its attributes");
}

ort::Status* ChooseAndRead(const Node& node, ort::KernelContext* context, Run* run, Star* star, int32_t* chosen) {
  const NamedOp& op = *node.op;
  Inputs inputs;
  ORTKIT_RETURN_IF_ERROR(ReadValues(node, context, &inputs));
  bool is_any = false;
  // First those that nothing is packed for in the run.
  for (int32_t packs_in_run = 0; packs_in_run < 2; ++packs_in_run) {
    for (int32_t i = 0; i < op.spec->choice_count; ++i) {
      const OrtkitChoice& choice = op.spec->choices[i];
      if (!HasKernel(op, choice) || PacksInRun(node, choice) != (packs_in_run != 0)) continue;
      if (!IsFor(choice, node, inputs)) continue;
      is_any = true;
      *star = {};
      ORTKIT_RETURN_IF_ERROR(ReadNamedInputs(OpOf(op, choice), node, choice, inputs, run, star));
      if (!HoldAll(choice, *run)) continue;
      *chosen = i;
      return nullptr;
    }
  }
  return RefuseNode(op, "this library has no kernel for the %s",
                    is_any ? "sizes of the node's inputs" : "inputs that the node has");
}

ort::Status* MakeNamedOutputs(const Node& node, ort::KernelContext* context, int32_t chosen, const Star& star, Run* run) {
  const OrtkitChoice& choice = node.op->spec->choices[chosen];
  const Op op = OpOf(*node.op, choice);
  for (int32_t i = 0; i < choice.op->output_count; ++i) {
    const int32_t axis = choice.wildcard_axes[choice.op->input_count + i];
    ORTKIT_RETURN_IF_ERROR(MakeNamedOutput(op, context, i, axis, star, run));
  }
  return nullptr;
}

}  // namespace ortkit
