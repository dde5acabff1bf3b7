// A kernel as a node runs it, whatever kind it is.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "../run.h"
#include "factory.h"
#include "library.h"

namespace ortkit::provider {

// What a node is, as far as its kernel needs to know.
struct NodeShape {
  std::string name;
  int32_t input_count = 0;
  std::vector<int32_t> output_types;  // element types; 0: not told
};

class NodeKernel {
 public:
  // Null and why if the kernel cannot be the node's. Takes `release` over, also then.
  static std::unique_ptr<NodeKernel> Make(Ep* ep, const OrtkitKernel& kernel, const NodeShape& node,
                                          std::string* reason);
  ~NodeKernel();
  NodeKernel(const NodeKernel&) = delete;
  NodeKernel& operator=(const NodeKernel&) = delete;

  ort::Status* Run(ort::KernelContext* context);

  // For EPContext models: null if the kernel is a function of this process only.
  const OrtkitLibrary* library() const { return library_; }
  const std::string& op_type() const { return op_type_; }
  const std::string& label() const { return label_; }
  const std::vector<int32_t>& inputs() const { return inputs_; }
  const std::vector<int32_t>& outputs() const { return outputs_; }
  const Pairs& arguments() const { return arguments_; }
  const Ep& ep() const { return *ep_; }
  // Whether it is handed memory of this process.
  bool has_user() const { return user_ != nullptr; }

 private:
  friend class FunctionRun;
  NodeKernel() = default;
  bool Fill(const OrtkitKernel& kernel, const NodeShape& node, std::string* reason);
  bool FillMaps(const OrtkitKernel& kernel, const NodeShape& node, std::string* reason);
  bool FillLibraryOp(const OrtkitKernel& kernel, std::string* reason);
  ort::Status* RunOnce(ort::KernelContext* context);
  ort::Allocator* ScratchAllocator(ort::KernelContext* context);

  Ep* ep_ = nullptr;
  std::string label_;
  std::string op_type_;
  Pairs arguments_;
  OrtkitKernelFunction function_ = nullptr;  // null: the op of a manifest
  void* user_ = nullptr;
  void (*release_)(void*) = nullptr;
  void* released_ = nullptr;  // what it is called with
  bool is_python_ = false;
  bool has_memory_ = false;  // tensors may lie on a device
  bool has_streams_ = false;
  OrtkitLibrary* library_ = nullptr;
  Op op_ = {};
  std::vector<int32_t> inputs_;   // of the kernel's inputs, the node's
  std::vector<int32_t> outputs_;
  std::vector<int32_t> output_types_;  // of the kernel's outputs
  bool is_mapped_ = false;
  std::atomic<ort::Allocator*> scratch_{nullptr};
};

}  // namespace ortkit::provider
