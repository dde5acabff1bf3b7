// Ops under names of their users': what ONNX Runtime is told of them, and a run on the CPU.
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
#include "names_node.h"

namespace ortkit {
namespace {

static_assert(sizeof(NamedOp) == sizeof(OrtkitStorage) && alignof(NamedOp) == alignof(OrtkitStorage), "names.h");

const char* GetName(const ort::CustomOp* op) { return AsNamed(op)->spec->name; }
size_t GetInputTypeCount(const ort::CustomOp* op) { return AsNamed(op)->spec->input_count; }
size_t GetOutputTypeCount(const ort::CustomOp* op) { return AsNamed(op)->spec->output_count; }
int32_t GetInputType(const ort::CustomOp* op, size_t index) { return AsNamed(op)->spec->input_types[index]; }
int32_t GetOutputType(const ort::CustomOp* op, size_t index) {
  return AsNamed(op)->spec->output_types[index];
}
int32_t GetInputKind(const ort::CustomOp* op, size_t index) { return AsNamed(op)->spec->input_kinds[index]; }
int32_t GetVersion(const ort::CustomOp* op) { return AsNamed(op)->spec->version; }

ort::Status* CreateNamed(const ort::CustomOp* custom_op, const ort::Api*, const ort::KernelInfo* info,
                         void** result) {
  const NamedOp& op = *AsNamed(custom_op);
  auto* node = static_cast<Node*>(aligned_alloc(alignof(Node), sizeof(Node)));
  if (node == nullptr) return RefuseNode(op, "%s", "out of memory");
  ort::Status* status = ReadNode(op, info, node);
  if (status == nullptr) status = PackConstants(node, info);
  if (status != nullptr) {
    FreePacked(node);
    free(node);
    return status;
  }
  *result = node;
  return nullptr;
}

void DestroyNamed(void* node) {
  FreePacked(static_cast<Node*>(node));
  free(node);
}

ort::Status* ComputeNamed(void* opaque, ort::KernelContext* context) {
  const auto& node = *static_cast<const Node*>(opaque);
  Run run;
  Star star;
  int32_t chosen = 0;
  ORTKIT_RETURN_IF_ERROR(ChooseAndRead(node, context, &run, &star, &chosen));
  ORTKIT_RETURN_IF_ERROR(MakeNamedOutputs(node, context, chosen, star, &run));
  const OrtkitChoice& choice = node.op->spec->choices[chosen];
  Scratch scratch;
  ORTKIT_RETURN_IF_ERROR(UsePacked(node, context, choice, &run, &scratch));
  return RunUnits(OpOf(*node.op, choice), context, &run);
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
    return InferShapes({{}, least.op, asked.api, false}, context, least.places, least.wildcard_axes);
  }
  return nullptr;
}

// Outputs from the second on may be left out; the kernel then writes into memory of its own.
ort::CustomOp Describe(const OrtkitNamedOp& spec) {
  ort::CustomOp abi = DescribeAlike(spec.may_inplace);
  abi.GetName = GetName;
  abi.GetInputType = GetInputType;
  abi.GetInputTypeCount = GetInputTypeCount;
  abi.GetOutputType = GetOutputType;
  abi.GetOutputTypeCount = GetOutputTypeCount;
  abi.KernelDestroy = DestroyNamed;
  abi.GetInputCharacteristic = GetInputKind;
  abi.CreateKernelV2 = CreateNamed;
  abi.KernelComputeV2 = ComputeNamed;
  abi.InferOutputShape = InferNamed;
  abi.GetStartVersion = GetVersion;
  return abi;
}

// "<domain>::<name><suffix>", which a session's options note as they do the fused ops.
ort::Status* Note(const ort::Api* api, ort::SessionOptions* options, const OrtkitNamedOp& spec, const char* suffix,
                  const char* text) {
  char key[512];
  snprintf(key, sizeof key, "%s::%s%s", spec.domain, spec.name, suffix);
  return ort::AddSessionConfigEntry(api)(options, key, text);
}

ort::Status* NoteLeftOut(const ort::Api* api, ort::SessionOptions* options, const OrtkitNamedOp& spec, const char* why) {
  char text[256];
  snprintf(text, sizeof text, "%s of its kernel for CUDA", why);
  return Note(api, options, spec, "@left_out", text);
}

// What a library adds to one session's options, domain by domain.
struct Adding {
  const ort::Api* api;
  ort::SessionOptions* options;
  bool is_cuda;  // the session gets kernels for CUDA too
  ort::OpDomain* domain;
  bool is_any;   // some op of the name in hand was added
};

NamedOp* NamedAt(int32_t entry, int32_t index, bool is_cuda) {
  const int32_t place = 2 * (entry * ortkit_names.op_count + index) + (is_cuda ? 1 : 0);
  return reinterpret_cast<NamedOp*>(&ortkit_names.storage[place]);
}

bool HasAny(const NamedOp& op) {
  for (int32_t i = 0; i < op.spec->choice_count; ++i) {
    if (HasKernel(op, op.spec->choices[i])) return true;
  }
  return false;
}

ort::Status* AddOne(Adding* adding, const NamedOp& op) {
  if (!HasAny(op)) return nullptr;
  char why[160];
  if (op.is_cuda && !ortkit_names.cuda->CanRun(*op.spec, why, sizeof why)) {
    return NoteLeftOut(adding->api, adding->options, *op.spec, why);
  }
  adding->is_any = true;
  return ort::CustomOpDomainAdd(adding->api)(adding->domain, &op.abi);
}

}  // namespace

void MakeNames(const ort::Api* api, int32_t entry) {
  for (int32_t i = 0; i < ortkit_names.op_count; ++i) {
    const OrtkitNamedOp& spec = ortkit_names.ops[i];
    new (NamedAt(entry, i, false)) NamedOp{Describe(spec), &spec, api, 0};
    ort::CustomOp abi = Describe(spec);
    if (ortkit_names.cuda != nullptr) ortkit_names.cuda->Describe(&abi);
    new (NamedAt(entry, i, true)) NamedOp{abi, &spec, api, 1};
  }
}

// Ops of one domain stand in a row, in it those of one name. ONNX Runtime takes a domain once in a session, so two libraries with
// ops of one domain do not go together; it says so itself.
ort::Status* AddNames(const ort::Api* api, ort::SessionOptions* options, int32_t entry) {
  Adding adding = {api, options, false, nullptr, false};
  if (ortkit_names.cuda != nullptr) ORTKIT_RETURN_IF_ERROR(IsForCuda(api, options, &adding.is_cuda));
  for (int32_t i = 0; i < ortkit_names.op_count; ++i) {
    const OrtkitNamedOp& spec = ortkit_names.ops[i];
    if (i == 0 || strcmp(spec.domain, ortkit_names.ops[i - 1].domain) != 0) {
      ORTKIT_RETURN_IF_ERROR(ort::CreateCustomOpDomain(api)(spec.domain, &adding.domain));
    }
    ORTKIT_RETURN_IF_ERROR(AddOne(&adding, *NamedAt(entry, i, false)));
    if (adding.is_cuda) ORTKIT_RETURN_IF_ERROR(AddOne(&adding, *NamedAt(entry, i, true)));
    const bool is_last = i + 1 == ortkit_names.op_count;
    const bool is_new_domain = is_last || strcmp(spec.domain, ortkit_names.ops[i + 1].domain) != 0;
    if (is_new_domain || strcmp(spec.name, ortkit_names.ops[i + 1].name) != 0) {
      if (adding.is_any) ORTKIT_RETURN_IF_ERROR(Note(api, options, spec, "", "registered"));
      adding.is_any = false;
    }
    if (is_new_domain) ORTKIT_RETURN_IF_ERROR(ort::AddCustomOpDomain(api)(options, adding.domain));
  }
  return nullptr;
}

}  // namespace ortkit
