// Reading ONNX Runtime's graphs.
#pragma once

#include <string>
#include <vector>

#include "text.h"

namespace ortkit::provider {

// Reads what a node and its graph say. A failure is kept and makes later reads do nothing, so that only
// the last needs to be looked at.
class Reader {
 public:
  explicit Reader(const ort::Api* api) : api_(api) {}
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::vector<const ort::Node*> Nodes(const ort::Graph*);
  std::string ModelPath(const ort::Graph*);
  bool IsNested(const ort::Graph*);
  std::string Name(const ort::Node*);
  std::string Operator(const ort::Node*);
  std::string Domain(const ort::Node*);
  std::vector<const ort::ValueInfo*> Inputs(const ort::Node*);
  std::vector<const ort::ValueInfo*> Outputs(const ort::Node*);
  // "" for null, an input that is absent.
  std::string Name(const ort::ValueInfo*);
  // ONNX TensorProto.DataType; 0 for what is no tensor.
  int32_t ElementType(const ort::ValueInfo*);
  int32_t ElementType(const ort::TypeInfo*);
  // A node without the attribute has the value that is given.
  std::string Text(const ort::Node*, const char* attribute);
  int64_t Number(const ort::Node*, const char* attribute, int64_t otherwise);
  // Bytes of a string attribute; 0 without it.
  size_t Size(const ort::Node*, const char* attribute);
  void Read(const ort::Node*, const char* attribute, void* room, size_t bytes);

  // The failure, which the caller owns from now on; null if there was none.
  ort::Status* Take();

 private:
  bool Do(ort::Status*);
  const ort::OpAttr* Find(const ort::Node*, const char* attribute);

  const ort::Api* api_;
  ort::Status* failure_ = nullptr;
};

// Whether a node is an EPContext node of this provider.
bool IsContextNode(Reader*, const ort::Node*, const std::string& provider);

}  // namespace ortkit::provider
