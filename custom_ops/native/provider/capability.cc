// Which nodes a provider claims.
#include <deque>
#include <mutex>

#include "ep.h"
#include "graph.h"

struct OrtkitGroups {
  ortkit::provider::Ep* ep;
  ort::GraphSupport* support;
  bool is_nested;
  std::vector<const ort::Node*> claimed;
};

namespace ortkit::provider {
namespace {

constexpr size_t kRecorded = 64;

// The last errors that ONNX Runtime only logs.
struct Records {
  std::mutex mutex;
  std::deque<std::string> last;
  int64_t count = 0;
};

Records& TheRecords() {
  static Records& records = *new Records;
  return records;
}

ort::Status* AddGroup(OrtkitGroups* groups, const ort::Node* const* nodes, size_t count, bool drop) {
  const Runtime& runtime = groups->ep->runtime();
  const ort::NodeFusionOptions options = {runtime.filled(), drop};
  ORTKIT_RETURN_IF_FAILED(ort::AddNodesToFuse(runtime.ep)(groups->support, nodes, count, &options));
  groups->claimed.insert(groups->claimed.end(), nodes, nodes + count);
  return nullptr;
}

ort::Status* AddSingle(OrtkitGroups* groups, const ort::Node* node) {
  ORTKIT_RETURN_IF_FAILED(ort::AddSingleNode(groups->ep->runtime().ep)(groups->support, node));
  groups->claimed.push_back(node);
  return nullptr;
}

ort::Status* HasKernel(const OrtkitGroups* groups, const ort::Node* node, bool* has) {
  *has = false;
  if (groups->ep->definition->kernels.empty()) return nullptr;
  const ort::KernelDef* found = nullptr;
  ORTKIT_RETURN_IF_FAILED(ort::LookUpKernel(groups->ep->runtime().ep)(groups->support, node, &found));
  *has = found != nullptr;
  return nullptr;
}

// EPContext nodes of this provider, one group each.
ort::Status* ClaimContexts(OrtkitGroups* groups, const std::vector<const ort::Node*>& nodes) {
  Reader reader(groups->ep->api());
  for (const ort::Node* node : nodes) {
    if (!IsContextNode(&reader, node, groups->ep->definition->name)) continue;
    ORTKIT_RETURN_IF_FAILED(AddGroup(groups, &node, 1, false));
  }
  return reader.Take();
}

// Every node that an entry of the definition's kernels fits.
ort::Status* ClaimKernels(OrtkitGroups* groups, const std::vector<const ort::Node*>& nodes) {
  for (const ort::Node* node : nodes) {
    bool has = false;
    ORTKIT_RETURN_IF_FAILED(HasKernel(groups, node, &has));
    if (has) ORTKIT_RETURN_IF_FAILED(AddSingle(groups, node));
  }
  return nullptr;
}

ort::Status* Claim(OrtkitGroups* groups, const ort::Graph* graph,
                   const std::vector<const ort::Node*>& nodes) {
  const Ep& ep = *groups->ep;
  const OrtkitProvider& calls = ep.definition->calls;
  if (ep.definition->reads_contexts()) ORTKIT_RETURN_IF_FAILED(ClaimContexts(groups, nodes));
  if (calls.get_capability == nullptr) return ClaimKernels(groups, nodes);
  const OrtkitGraph view = {ep.api(), graph, groups->is_nested, ep.writes_context()};
  return Call(ep, "get_capability", [&](OrtkitError* error) {
    return calls.get_capability(calls.user, ep.user, &view, groups, error);
  });
}

// The graph's folder, "" for a model from memory.
std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (path.empty()) return "";
  return slash == std::string::npos ? "." : path.substr(0, slash + (slash == 0));
}

// ONNX Runtime goes on with other providers after an error here, but not after one of Compile: so a
// session that is strict compiles a group, which fails.
ort::Status* EndSession(OrtkitGroups* groups, const std::vector<const ort::Node*>& nodes) {
  for (const ort::Node* node : nodes) {
    bool is_claimed = false;
    for (const ort::Node* claimed : groups->claimed) is_claimed = is_claimed || claimed == node;
    if (!is_claimed) return AddGroup(groups, &node, 1, false);
  }
  return nullptr;
}

}  // namespace

void Record(const std::string& error) {
  Records& records = TheRecords();
  const std::lock_guard<std::mutex> lock(records.mutex);
  records.last.push_back(error);
  ++records.count;
  if (records.last.size() > kRecorded) records.last.pop_front();
}

ort::Status* GetCapability(ort::Ep* abi, const ort::Graph* graph, ort::GraphSupport* support) {
  Ep* ep = AsEp(abi);
  if (!ep->fatal.empty()) return nullptr;
  Reader reader(ep->api());
  const std::vector<const ort::Node*> nodes = reader.Nodes(graph);
  OrtkitGroups groups = {ep, support, reader.IsNested(graph), {}};
  ep->model_folder = FolderOf(reader.ModelPath(graph));
  ort::Status* status = reader.Take();
  if (status == nullptr) status = Claim(&groups, graph, nodes);
  if (status == nullptr) return nullptr;
  const int32_t code = ort::GetErrorCode(ep->api())(status);
  const std::string message = TakeMessage(ep->api(), status);
  Record(message);
  if (!ep->is_strict()) return Fail(ep->api(), code, message);
  ep->fatal = message;
  return EndSession(&groups, nodes);
}

}  // namespace ortkit::provider

extern "C" {

using ortkit::provider::TakeMessage;

namespace {

int32_t Tell(const OrtkitGroups* groups, ort::Status* status, OrtkitError* error) {
  if (status == nullptr) return 0;
  const int32_t code = ort::GetErrorCode(groups->ep->api())(status);
  ortkit_provider_error(error, TakeMessage(groups->ep->api(), status).c_str());
  return code;
}

}  // namespace

int32_t ortkit_provider_add_group(OrtkitGroups* groups, const void* const* nodes, size_t count,
                                  int32_t drop_constant_initializers, OrtkitError* error) {
  if (count == 0) {
    ortkit_provider_error(error, "a group has no nodes");
    return ort::kInvalidArgument;
  }
  if (groups->ep->definition->calls.compile == nullptr) {
    ortkit_provider_error(error, "the provider claims a group and has no compile");
    return ort::kInvalidArgument;
  }
  if (groups->is_nested && groups->ep->writes_context()) {
    ortkit_provider_error(error, "an EPContext model cannot hold groups of a subgraph");
    return ort::kInvalidArgument;
  }
  std::vector<const ort::Node*> list(count);
  for (size_t i = 0; i < count; ++i) list[i] = static_cast<const ort::Node*>(nodes[i]);
  const bool drop = drop_constant_initializers != 0;
  return Tell(groups, ortkit::provider::AddGroup(groups, list.data(), count, drop), error);
}

int32_t ortkit_provider_add_single(OrtkitGroups* groups, const void* node, OrtkitError* error) {
  if (groups->ep->definition->kernels.empty()) {
    ortkit_provider_error(error, "the provider claims a single node and has no kernels");
    return ort::kInvalidArgument;
  }
  const auto* one = static_cast<const ort::Node*>(node);
  return Tell(groups, ortkit::provider::AddSingle(groups, one), error);
}

int32_t ortkit_provider_has_kernel(OrtkitGroups* groups, const void* node, OrtkitError* error) {
  bool has = false;
  const auto* one = static_cast<const ort::Node*>(node);
  const int32_t code = Tell(groups, ortkit::provider::HasKernel(groups, one, &has), error);
  return code == 0 ? has : -1;
}

int64_t ortkit_provider_recorded_count(void) {
  ortkit::provider::Records& records = ortkit::provider::TheRecords();
  const std::lock_guard<std::mutex> lock(records.mutex);
  return records.count;
}

int32_t ortkit_provider_recorded(int64_t index, OrtkitError* text) {
  ortkit::provider::Records& records = ortkit::provider::TheRecords();
  const std::lock_guard<std::mutex> lock(records.mutex);
  const int64_t first = records.count - static_cast<int64_t>(records.last.size());
  if (index < first || index >= records.count) return ort::kInvalidArgument;
  ortkit_provider_error(text, records.last[index - first].c_str());
  return 0;
}

}  // extern "C"
