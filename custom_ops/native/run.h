// One run of one op: what its kernel gets, whatever it runs on.
#pragma once

#include "shim.h"
#include "sizes.h"

namespace ortkit {

struct Run {
  const OrtkitOp* spec;
  int64_t symbols[ORTKIT_MAX_SYMBOLS];
  char* data[ORTKIT_MAX_TENSORS];  // inputs, then outputs
  bool has_output;                 // some output has an element
};

// Checks the inputs and tells the symbols from them, then makes the outputs. Tensors without elements
// may have no address.
ort::Status* ReadInputs(const Op& op, ort::KernelContext* context, Run* run);
ort::Status* MakeOutputs(const Op& op, ort::KernelContext* context, Run* run);

}  // namespace ortkit
