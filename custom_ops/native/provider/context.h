// Groups as EPContext nodes: written when a session compiles ahead of time, run when one loads them.
//
// Attributes, as ONNX Runtime's users expect them (docs: "EP context design"): of each library's first
// node main_context is 1 and ep_cache_context holds it (embed_mode 1) or names a file beside the model
// (embed_mode 0), which ends in 12 digits of its hash and ".so"; the other nodes name it by partition_name, the SHA-256 of the library's content.
// ep_sdk_version and hardware_architecture say what the kernels need, notes which op of the library runs:
// lines of key=value.
#pragma once

#include "compile.h"

namespace ortkit::provider {

struct ContextNode {
  const ort::Node* node;
  const ort::Node* fused;  // what runs it, with inputs and outputs in an order of its own
  NodeShape shape;
  std::unique_ptr<NodeKernel>* made;
};

// The EPContext node of a group.
ort::Status* WriteContext(Ep* ep, const ort::Node* fused, const NodeKernel& kernel, ort::Node** out);

// The kernels of EPContext nodes. A library that a model brings is loaded if it is trusted (trust.h), or
// with the option trust=1.
ort::Status* ReadContexts(Ep* ep, const std::vector<ContextNode>& nodes);

}  // namespace ortkit::provider
