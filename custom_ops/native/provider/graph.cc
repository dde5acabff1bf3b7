#include "graph.h"

namespace ortkit::provider {

Reader::~Reader() {
  if (failure_ != nullptr) ort::ReleaseStatus(api_)(failure_);
}

ort::Status* Reader::Take() {
  ort::Status* failure = failure_;
  failure_ = nullptr;
  return failure;
}

bool Reader::Do(ort::Status* status) {
  if (status == nullptr) return failure_ == nullptr;
  if (failure_ == nullptr) {
    failure_ = status;
  } else {
    ort::ReleaseStatus(api_)(status);
  }
  return false;
}

std::vector<const ort::Node*> Reader::Nodes(const ort::Graph* graph) {
  size_t count = 0;
  if (!Do(ort::GetNodeCount(api_)(graph, &count))) return {};
  std::vector<const ort::Node*> nodes(count);
  if (!Do(ort::GetNodes(api_)(graph, nodes.data(), count))) return {};
  return nodes;
}

std::string Reader::ModelPath(const ort::Graph* graph) {
  const char* path = nullptr;
  const bool is_read = Do(ort::GetModelPath(api_)(graph, &path));
  return is_read && path != nullptr ? path : "";
}

bool Reader::IsNested(const ort::Graph* graph) {
  const ort::Node* parent = nullptr;
  return Do(ort::GetParentNode(api_)(graph, &parent)) && parent != nullptr;
}

std::string Reader::Name(const ort::Node* node) {
  const char* text = nullptr;
  return Do(ort::GetNodeName(api_)(node, &text)) ? text : "";
}

std::string Reader::Operator(const ort::Node* node) {
  const char* text = nullptr;
  return Do(ort::GetNodeOperator(api_)(node, &text)) ? text : "";
}

std::string Reader::Domain(const ort::Node* node) {
  const char* text = nullptr;
  return Do(ort::GetNodeDomain(api_)(node, &text)) ? text : "";
}

std::vector<const ort::ValueInfo*> Reader::Inputs(const ort::Node* node) {
  size_t count = 0;
  if (!Do(ort::GetNodeInputCount(api_)(node, &count))) return {};
  std::vector<const ort::ValueInfo*> values(count);
  if (!Do(ort::GetNodeInputs(api_)(node, values.data(), count))) return {};
  return values;
}

std::vector<const ort::ValueInfo*> Reader::Outputs(const ort::Node* node) {
  size_t count = 0;
  if (!Do(ort::GetNodeOutputCount(api_)(node, &count))) return {};
  std::vector<const ort::ValueInfo*> values(count);
  if (!Do(ort::GetNodeOutputs(api_)(node, values.data(), count))) return {};
  return values;
}

std::string Reader::Name(const ort::ValueInfo* value) {
  const char* text = nullptr;
  return value != nullptr && Do(ort::GetValueName(api_)(value, &text)) ? text : "";
}

int32_t Reader::ElementType(const ort::ValueInfo* value) {
  const ort::TypeInfo* type = nullptr;
  if (value == nullptr || !Do(ort::GetValueType(api_)(value, &type))) return 0;
  return ElementType(type);
}

int32_t Reader::ElementType(const ort::TypeInfo* type) {
  const ort::TensorInfo* tensor = nullptr;
  int32_t element_type = 0;
  if (type == nullptr || !Do(ort::CastToTensorInfo(api_)(type, &tensor)) || tensor == nullptr) return 0;
  return Do(ort::GetElementType(api_)(tensor, &element_type)) ? element_type : 0;
}

const ort::OpAttr* Reader::Find(const ort::Node* node, const char* attribute) {
  const ort::OpAttr* found = nullptr;
  ort::Status* status = ort::GetAttribute(api_)(node, attribute, &found);
  if (status == nullptr) return found;
  ort::ReleaseStatus(api_)(status);  // there is none of the name
  return nullptr;
}

std::string Reader::Text(const ort::Node* node, const char* attribute) {
  std::string text(Size(node, attribute), '\0');
  Read(node, attribute, text.data(), text.size());
  return text;
}

int64_t Reader::Number(const ort::Node* node, const char* attribute, int64_t otherwise) {
  const ort::OpAttr* found = Find(node, attribute);
  if (found == nullptr) return otherwise;
  int64_t value = otherwise;
  size_t size = 0;
  Do(ort::ReadOpAttr(api_)(found, ort::kIntAttribute, &value, sizeof value, &size));
  return value;
}

size_t Reader::Size(const ort::Node* node, const char* attribute) {
  const ort::OpAttr* found = Find(node, attribute);
  if (found == nullptr) return 0;
  size_t size = 0;
  // Without room it says how much is needed, and that there is none.
  ort::Status* status = ort::ReadOpAttr(api_)(found, ort::kStringAttribute, nullptr, 0, &size);
  if (status != nullptr) ort::ReleaseStatus(api_)(status);
  return size;
}

void Reader::Read(const ort::Node* node, const char* attribute, void* room, size_t bytes) {
  const ort::OpAttr* found = Find(node, attribute);
  if (found == nullptr || bytes == 0) return;
  size_t size = 0;
  Do(ort::ReadOpAttr(api_)(found, ort::kStringAttribute, room, bytes, &size));
}

bool IsContextNode(Reader* reader, const ort::Node* node, const std::string& provider) {
  return reader->Operator(node) == "EPContext" && reader->Domain(node) == "com.microsoft" &&
         reader->Text(node, "source") == provider;
}

}  // namespace ortkit::provider
