// Ops under names of their users': which kernel runs a node, and a run of it.
//
// Unlike a fused op, such an op has nodes of any number of axes where its declaration says so, inputs
// that may be absent, and attributes. A kernel sees none of that: axes that are any number are one, of
// the product of their sizes; absent inputs are another kernel; an attribute is an input of one number.
#include "names.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cuda_ort.h"
#include "run.h"

namespace ortkit {
namespace {

// How many axes a tensor may have, where the kernel does not say.
constexpr int32_t kMostAxes = 64;

struct NamedOp {
  ort::CustomOp abi;  // first: ONNX Runtime hands back a pointer to this member
  const OrtkitNamedOp* spec;
  const ort::Api* api;
  uint64_t unused;
};

static_assert(sizeof(NamedOp) == sizeof(OrtkitRoom) && alignof(NamedOp) == alignof(OrtkitRoom), "names.h");

// The value of an attribute; a kernel reads it through its address.
union Number {
  int64_t integer;
  float real;
};

// What a node's kernel holds.
struct NamedKernel {
  const NamedOp* op;
  size_t input_count;
  Number attributes[ORTKIT_MAX_ATTRIBUTES];
};

// The sizes of the axes that a declaration calls any number.
struct Star {
  const int64_t* dims = nullptr;  // null: none was read yet
  size_t count = 0;
};

const NamedOp* AsNamed(const ort::CustomOp* op) { return reinterpret_cast<const NamedOp*>(op); }

const char* GetName(const ort::CustomOp* op) { return AsNamed(op)->spec->name; }
const char* GetExecutionProviderType(const ort::CustomOp*) { return nullptr; }
size_t GetInputTypeCount(const ort::CustomOp* op) { return AsNamed(op)->spec->input_count; }
size_t GetOutputTypeCount(const ort::CustomOp* op) { return AsNamed(op)->spec->output_count; }
int32_t GetInputType(const ort::CustomOp* op, size_t index) { return AsNamed(op)->spec->input_types[index]; }
int32_t GetOutputType(const ort::CustomOp* op, size_t index) {
  return AsNamed(op)->spec->output_types[index];
}
int32_t GetInputKind(const ort::CustomOp* op, size_t index) { return AsNamed(op)->spec->input_kinds[index]; }
int32_t ZeroAt(const ort::CustomOp*, size_t) { return 0; }
// Outputs from the second on may be left out; the kernel then writes into memory of its own.
int32_t One(const ort::CustomOp*) { return 1; }
int32_t GetVersion(const ort::CustomOp* op) { return AsNamed(op)->spec->version; }
int32_t AnyVersion(const ort::CustomOp*) { return INT32_MAX; }
void KeepPairs(int32_t*, int32_t*) {}  // they are static

ort::Status* RefuseNode(const NamedOp& op, const char* format, const char* what) {
  char reason[256];
  snprintf(reason, sizeof reason, format, what);
  char text[512];
  snprintf(text, sizeof text, "%s::%s: %s", op.spec->domain, op.spec->name, reason);
  return ort::CreateStatus(op.api)(ort::kInvalidArgument, text);
}

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
bool HasFixed(const NamedKernel& kernel, const OrtkitChoice& choice) {
  for (int32_t i = 0; i < choice.fixed_count; ++i) {
    const OrtkitFixed& fixed = choice.fixed[i];
    const Number& value = kernel.attributes[fixed.attribute];
    const bool is_float = kernel.op->spec->attributes[fixed.attribute].is_float != 0;
    if (is_float ? value.real != fixed.real : value.integer != fixed.integer) return false;
  }
  return true;
}

ort::Status* CreateNamed(const ort::CustomOp* custom_op, const ort::Api*, const ort::KernelInfo* info,
                         void** result) {
  const NamedOp& op = *AsNamed(custom_op);
  NamedKernel kernel = {&op, 0, {}};
  ORTKIT_RETURN_IF_ERROR(ort::GetInputCount(op.api)(info, &kernel.input_count));
  for (int32_t i = 0; i < op.spec->attribute_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(ReadAttribute(op, info, i, &kernel.attributes[i]));
  }
  bool is_built = false;
  for (int32_t i = 0; i < op.spec->choice_count; ++i) is_built = is_built || HasFixed(kernel, op.spec->choices[i]);
  if (!is_built) return RefuseNode(op, "%s", "this library has no kernel for the values of its attributes");
  auto* kept = static_cast<NamedKernel*>(malloc(sizeof kernel));
  if (kept == nullptr) return RefuseNode(op, "%s", "out of memory");
  *kept = kernel;
  *result = kept;
  return nullptr;
}

void DestroyNamed(void* kernel) { free(kernel); }

// Which inputs a node has in this run.
struct Inputs {
  const ort::Value* values[ORTKIT_MAX_TENSORS];
};

ort::Status* ReadValues(const NamedKernel& kernel, ort::KernelContext* context, Inputs* inputs) {
  for (size_t i = 0; i < kernel.input_count && i < ORTKIT_MAX_TENSORS; ++i) {
    ORTKIT_RETURN_IF_ERROR(ort::GetInput(kernel.op->api)(context, i, &inputs->values[i]));
  }
  return nullptr;
}

bool IsFor(const OrtkitChoice& choice, const NamedKernel& kernel, const Inputs& inputs) {
  if (kernel.input_count > static_cast<size_t>(choice.input_count)) return false;
  for (int32_t i = 0; i < choice.input_count; ++i) {
    const bool is_there = static_cast<size_t>(i) < kernel.input_count && inputs.values[i] != nullptr;
    if (is_there != (choice.is_there[i] != 0)) return false;
  }
  return HasFixed(kernel, choice);
}

const OrtkitChoice* Choose(const NamedKernel& kernel, const Inputs& inputs) {
  const OrtkitNamedOp& spec = *kernel.op->spec;
  for (int32_t i = 0; i < spec.choice_count; ++i) {
    if (IsFor(spec.choices[i], kernel, inputs)) return &spec.choices[i];
  }
  return nullptr;
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

ort::Status* ReadNamedInputs(const Op& op, const NamedKernel& kernel, const OrtkitChoice& choice,
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
      run->data[i] = reinterpret_cast<char*>(const_cast<Number*>(&kernel.attributes[-1 - place]));
      continue;
    }
    ORTKIT_RETURN_IF_ERROR(ReadNamedInput(op, spec.tensors[i], choice.stars[i], inputs.values[place], star,
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

ort::Status* ComputeNamed(void* opaque, ort::KernelContext* context) {
  const auto& kernel = *static_cast<const NamedKernel*>(opaque);
  Inputs inputs;
  ORTKIT_RETURN_IF_ERROR(ReadValues(kernel, context, &inputs));
  const OrtkitChoice* choice = Choose(kernel, inputs);
  if (choice == nullptr) {
    return RefuseNode(*kernel.op, "%s", "this library has no kernel for the inputs that the node has");
  }
  const Op op = {{}, choice->op, kernel.op->api, false};
  CpuRun run;
  Star star;
  ORTKIT_RETURN_IF_ERROR(ReadNamedInputs(op, kernel, *choice, inputs, &run, &star));
  for (int32_t i = 0; i < choice->op->output_count; ++i) {
    const int32_t axis = choice->stars[choice->op->input_count + i];
    ORTKIT_RETURN_IF_ERROR(MakeNamedOutput(op, context, i, axis, star, &run));
  }
  return RunUnits(op, context, &run);
}

// Whether a node's inputs have an op's element types; those of an optional one that is absent are 0.
ort::Status* HasTypes(const ort::Api* api, const OrtkitNamedOp& spec, const ort::ShapeContext* context, bool* has) {
  size_t count = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetShapeInputCount(api)(context, &count));
  *has = true;
  for (size_t i = 0; i < count; ++i) {
    ort::TensorInfo* info = nullptr;
    ORTKIT_RETURN_IF_ERROR(ort::GetInputTypeShape(api)(context, i, &info));
    int32_t type = 0;
    ORTKIT_RETURN_IF_ERROR(ort::GetElementType(api)(info, &type));
    const size_t last = spec.input_count - 1;
    *has = *has && (type == 0 || type == spec.input_types[i < last ? i : last]);
  }
  return nullptr;
}

// The runtime asks one op of a name, whichever it is, so the one with the node's types is looked for.
ort::Status* InferNamed(const ort::CustomOp* custom_op, ort::ShapeContext* context) {
  const NamedOp& asked = *AsNamed(custom_op);
  for (int32_t i = 0; i < ortkit_names.op_count; ++i) {
    const OrtkitNamedOp& spec = ortkit_names.ops[i];
    if (strcmp(spec.domain, asked.spec->domain) != 0 || strcmp(spec.name, asked.spec->name) != 0) continue;
    bool has = false;
    ORTKIT_RETURN_IF_ERROR(HasTypes(asked.api, spec, context, &has));
    if (!has) continue;
    const OrtkitChoice& least = spec.choices[spec.choice_count - 1];
    return InferShapes({{}, least.op, asked.api, false}, context, least.places, least.stars);
  }
  return nullptr;
}

ort::CustomOp Describe(const OrtkitNamedOp& spec) {
  ort::CustomOp abi = {};
  abi.version = ort::kApiVersion;
  abi.GetName = GetName;
  abi.GetExecutionProviderType = GetExecutionProviderType;
  abi.GetInputType = GetInputType;
  abi.GetInputTypeCount = GetInputTypeCount;
  abi.GetOutputType = GetOutputType;
  abi.GetOutputTypeCount = GetOutputTypeCount;
  abi.KernelDestroy = DestroyNamed;
  abi.GetInputCharacteristic = GetInputKind;
  abi.GetOutputCharacteristic = ZeroAt;
  abi.GetInputMemoryType = ZeroAt;
  abi.GetVariadicInputMinArity = One;
  abi.GetVariadicInputHomogeneity = One;
  abi.GetVariadicOutputMinArity = One;
  abi.GetVariadicOutputHomogeneity = One;
  abi.CreateKernelV2 = CreateNamed;
  abi.KernelComputeV2 = ComputeNamed;
  abi.InferOutputShape = InferNamed;
  abi.GetStartVersion = GetVersion;
  abi.GetEndVersion = AnyVersion;
  abi.GetMayInplace = spec.may_inplace;
  abi.ReleaseMayInplace = KeepPairs;
  return abi;
}

// "<domain>::<name>", which a session's options note as they do the fused ops.
ort::Status* Note(const ort::Api* api, ort::SessionOptions* options, const OrtkitNamedOp& spec) {
  char key[512];
  snprintf(key, sizeof key, "%s::%s", spec.domain, spec.name);
  return ort::AddSessionConfigEntry(api)(options, key, "registered");
}

}  // namespace

void MakeNames(const ort::Api* api, int32_t entry) {
  for (int32_t i = 0; i < ortkit_names.op_count; ++i) {
    const OrtkitNamedOp& spec = ortkit_names.ops[i];
    OrtkitRoom* room = &ortkit_names.rooms[entry * ortkit_names.op_count + i];
    new (room) NamedOp{Describe(spec), &spec, api, 0};
  }
}

// Ops of one domain stand in a row, in it those of one name. ONNX Runtime takes a domain once in a session, so two libraries with
// ops of one domain do not go together; it says so itself.
ort::Status* AddNames(const ort::Api* api, ort::SessionOptions* options, int32_t entry) {
  ort::OpDomain* domain = nullptr;
  for (int32_t i = 0; i < ortkit_names.op_count; ++i) {
    const OrtkitNamedOp& spec = ortkit_names.ops[i];
    if (i == 0 || strcmp(spec.domain, ortkit_names.ops[i - 1].domain) != 0) {
      ORTKIT_RETURN_IF_ERROR(ort::CreateCustomOpDomain(api)(spec.domain, &domain));
    }
    const OrtkitRoom* room = &ortkit_names.rooms[entry * ortkit_names.op_count + i];
    ORTKIT_RETURN_IF_ERROR(ort::CustomOpDomainAdd(api)(domain, &reinterpret_cast<const NamedOp*>(room)->abi));
    const bool is_last = i + 1 == ortkit_names.op_count;
    if (is_last || strcmp(spec.name, ortkit_names.ops[i + 1].name) != 0) {
      ORTKIT_RETURN_IF_ERROR(Note(api, options, spec));
    }
    if (is_last || strcmp(spec.domain, ortkit_names.ops[i + 1].domain) != 0) {
      ORTKIT_RETURN_IF_ERROR(ort::AddCustomOpDomain(api)(options, domain));
    }
  }
  return nullptr;
}

}  // namespace ortkit
