// A node of an op under a name of its user's: what it has, which kernel runs it, and what that reads.
#pragma once

#include "names.h"
#include "run.h"

namespace ortkit {

// One set of element types as one runtime sees it, on the CPU or on CUDA. Lives until the process ends.
struct NamedOp {
  ort::CustomOp abi;  // first: ONNX Runtime hands back a pointer to this member
  const OrtkitNamedOp* spec;
  const ort::Api* api;
  uint64_t is_cuda;
};

inline const NamedOp* AsNamed(const ort::CustomOp* op) { return reinterpret_cast<const NamedOp*>(op); }

// The value of an attribute; a kernel reads it through its address, aligned as tensors are on CUDA.
union alignas(16) Number {
  int64_t integer;
  float real;
};

struct Node {
  const NamedOp* op;
  size_t input_count;
  Number attributes[ORTKIT_MAX_ATTRIBUTES];
  void* packed[ORTKIT_MAX_PACKS];  // constants as kernels want them, by the op's packs; null for what is none
};

// Memory that a run packs inputs into.
struct Scratch {
  void* memory[ORTKIT_MAX_PACKS];
  int32_t count = 0;

  ~Scratch();
};

// The sizes of the axes that a declaration calls any number.
struct Star {
  const int64_t* dims = nullptr;  // null: none was read yet
  size_t count = 0;
};

// A status that reads "<domain>::<name>: <reason>"; `format` takes `what`.
ort::Status* RefuseNode(const NamedOp& op, const char* format, const char* what);

// Whether a choice has a kernel for what the op runs on.
inline bool HasKernel(const NamedOp& op, const OrtkitChoice& choice) {
  return op.is_cuda ? choice.op->cuda != nullptr : choice.op->call != nullptr;
}

// Reads the attributes, and refuses values that no kernel was built for.
ort::Status* ReadNode(const NamedOp& op, const ort::KernelInfo* info, Node* node);

// Finds the first kernel for the inputs and sizes of a run, and reads the inputs for it.
ort::Status* ChooseAndRead(const Node& node, ort::KernelContext* context, Run* run, Star* star, int32_t* chosen);

// names_pack.cc: packs what is constant, for kernels on the CPU; `FreePacked` frees it.
ort::Status* PackConstants(Node* node, const ort::KernelInfo* info);
void FreePacked(Node* node);
// Whether a choice needs inputs packed that are no constants.
bool PacksInRun(const Node& node, const OrtkitChoice& choice);
// Puts packed inputs in the place of those that were read, packing what is no constant.
ort::Status* UsePacked(const Node& node, ort::KernelContext* context, const OrtkitChoice& choice, Run* run,
                       Scratch* scratch);

// Makes all outputs of the choice that was read.
ort::Status* MakeNamedOutputs(const Node& node, ort::KernelContext* context, int32_t chosen, const Star& star, Run* run);

// The op of a choice as messages and the parts below see it.
inline Op OpOf(const NamedOp& op, const OrtkitChoice& choice) { return {{}, choice.op, op.api, op.is_cuda != 0}; }

}  // namespace ortkit
