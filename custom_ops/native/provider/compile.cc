// From claimed groups to what ONNX Runtime runs.
#include "compile.h"

#include "context.h"
#include "ep.h"
#include "graph.h"

namespace ortkit::provider {
namespace {

struct NodeInfo {
  ort::NodeComputeInfo abi;  // first
  std::unique_ptr<NodeKernel> kernel;
};

NodeInfo* AsNode(ort::NodeComputeInfo* abi) { return reinterpret_cast<NodeInfo*>(abi); }

ort::Status* CreateState(ort::NodeComputeInfo* abi, ort::ComputeContext*, void** state) {
  *state = AsNode(abi)->kernel.get();
  return nullptr;
}
ort::Status* Compute(ort::NodeComputeInfo*, void* state, ort::KernelContext* context) {
  return static_cast<NodeKernel*>(state)->Run(context);
}
void ReleaseState(ort::NodeComputeInfo*, void*) {}  // it is the node's

ort::NodeComputeInfo* MakeInfo(const Ep& ep, std::unique_ptr<NodeKernel> kernel) {
  auto* info = new NodeInfo{{}, std::move(kernel)};
  info->abi.version = ep.runtime().filled();
  info->abi.CreateState = CreateState;
  info->abi.Compute = Compute;
  info->abi.ReleaseState = ReleaseState;
  return &info->abi;
}

ort::Status* ReadShape(const Ep& ep, const ort::Node* node, NodeShape* shape) {
  Reader reader(ep.api());
  shape->name = reader.Name(node);
  shape->input_count = static_cast<int32_t>(reader.Inputs(node).size());
  for (const ort::ValueInfo* output : reader.Outputs(node)) {
    shape->output_types.push_back(reader.ElementType(output));
  }
  return reader.Take();
}

// The kernels of groups that the provider's callback compiles.
ort::Status* CompileGroups(Ep* ep, const std::vector<const void*>& graphs,
                           const std::vector<const void*>& nodes, OrtkitKernels* kernels) {
  const OrtkitProvider& calls = ep->definition->calls;
  if (calls.compile == nullptr) return ep->Refuse(ort::kFail, "a group was claimed and there is no compile");
  const OrtkitCompile request = {ep->api(), static_cast<int32_t>(nodes.size()), ep->writes_context(),
                                 graphs.data(), nodes.data()};
  ORTKIT_RETURN_IF_FAILED(Call(*ep, "compile", [&](OrtkitError* error) {
    return calls.compile(calls.user, ep->user, &request, kernels, error);
  }));
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (kernels->made[i] == nullptr) {
      return ep->Refuse(ort::kFail, "compile made no kernel for " + kernels->shapes[i].name);
    }
  }
  return nullptr;
}

ort::Status* WriteContexts(Ep* ep, const ort::Node* const* fused, size_t count,
                           const std::vector<std::unique_ptr<NodeKernel>>& made,
                           ort::Node** context_nodes) {
  for (size_t i = 0; i < count; ++i) {
    ORTKIT_RETURN_IF_FAILED(WriteContext(ep, fused[i], *made[i], &context_nodes[i]));
  }
  return nullptr;
}

}  // namespace

ort::Status* Compile(ort::Ep* abi, const ort::Graph** graphs, const ort::Node** fused, size_t count,
                     ort::NodeComputeInfo** infos, ort::Node** context_nodes) {
  Ep* ep = AsEp(abi);
  if (!ep->fatal.empty()) return Fail(ep->api(), ort::kFail, ep->fatal);
  std::vector<std::unique_ptr<NodeKernel>> made(count);
  std::vector<ContextNode> contexts;
  std::vector<size_t> places;  // of the groups that the callback compiles
  std::vector<const void*> group_graphs;
  std::vector<const void*> group_nodes;
  OrtkitKernels kernels = {ep, {}, {}};
  for (size_t i = 0; i < count; ++i) {
    Reader reader(ep->api());
    const std::vector<const ort::Node*> nodes = reader.Nodes(graphs[i]);
    const bool is_context = ep->definition->reads_contexts() && nodes.size() == 1 &&
                            IsContextNode(&reader, nodes[0], ep->definition->name);
    ORTKIT_RETURN_IF_FAILED(reader.Take());
    NodeShape shape;
    ORTKIT_RETURN_IF_FAILED(ReadShape(*ep, fused[i], &shape));
    if (is_context) {
      contexts.push_back({nodes[0], fused[i], std::move(shape), &made[i]});
      continue;
    }
    places.push_back(i);
    group_graphs.push_back(graphs[i]);
    group_nodes.push_back(fused[i]);
    kernels.shapes.push_back(std::move(shape));
  }
  ORTKIT_RETURN_IF_FAILED(ReadContexts(ep, contexts));
  kernels.made.resize(places.size());
  if (!places.empty()) ORTKIT_RETURN_IF_FAILED(CompileGroups(ep, group_graphs, group_nodes, &kernels));
  for (size_t i = 0; i < places.size(); ++i) made[places[i]] = std::move(kernels.made[i]);
  if (ep->writes_context() && context_nodes != nullptr) {
    ORTKIT_RETURN_IF_FAILED(WriteContexts(ep, fused, count, made, context_nodes));
  }
  for (size_t i = 0; i < count; ++i) infos[i] = MakeInfo(*ep, std::move(made[i]));
  return nullptr;
}

void ReleaseNodeComputeInfos(ort::Ep*, ort::NodeComputeInfo** infos, size_t count) {
  for (size_t i = 0; i < count; ++i) delete AsNode(infos[i]);
}

}  // namespace ortkit::provider

extern "C" int32_t ortkit_provider_set_kernel(OrtkitKernels* kernels, int32_t index,
                                              const OrtkitKernel* kernel, OrtkitError* error) {
  using namespace ortkit::provider;
  if (index < 0 || static_cast<size_t>(index) >= kernels->shapes.size()) {
    const size_t count = kernels->shapes.size();
    ortkit_provider_error(error, Format("there is no group %d, they are %zu", index, count).c_str());
    return ort::kInvalidArgument;
  }
  if (kernel->size < sizeof(OrtkitKernel)) {
    const size_t size = sizeof *kernel;
    ortkit_provider_error(error,
                          Format("the kernel has %u bytes, expected %zu", kernel->size, size).c_str());
    return ort::kInvalidArgument;
  }
  std::string reason;
  kernels->made[index] = NodeKernel::Make(kernels->ep, *kernel, kernels->shapes[index], &reason);
  if (kernels->made[index] != nullptr) return 0;
  ortkit_provider_error(error, reason.c_str());
  return ort::kInvalidArgument;
}
