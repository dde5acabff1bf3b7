// One call of a kernel that is a function: what it sees, made and taken down.
#pragma once

#include <string>
#include <vector>

#include "kernel_run.h"

namespace ortkit::provider {

// An array that is on the stack unless it is long. Its elements are not set.
template <class T, size_t kFew>
class Array {
 public:
  explicit Array(size_t count) : data_(count <= kFew ? few_ : new T[count]) {}
  ~Array() {
    if (data_ != few_) delete[] data_;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T& operator[](size_t i) { return data_[i]; }
  T* data() { return data_; }

 private:
  T few_[kFew];
  T* data_;
};

// A kernel is handed the part that it may know.
class FunctionRun : public OrtkitKernelContext {
 public:
  FunctionRun(NodeKernel& kernel, ort::KernelContext* context);
  ~FunctionRun();

  ort::Status* Run();

  // The run that a kernel's context belongs to.
  static FunctionRun* Of(OrtkitKernelContext* context);
  const NodeKernel& kernel() const { return kernel_; }

 private:
  static int32_t MakeOutputOf(OrtkitKernelContext*, int32_t, const int64_t*, int32_t, OrtkitView*);
  static int32_t ParallelForOf(OrtkitKernelContext*, void (*)(void*, size_t), size_t, void*);
  static void* ScratchOf(OrtkitKernelContext*, size_t bytes);
  static int32_t FailOf(OrtkitKernelContext*, int32_t code, const char* reason);
  static int32_t MakeOutputsOf(OrtkitKernelContext*, const int64_t* signature, void** data);

  ort::Status* ReadInputs();
  ort::Status* ReadInput(size_t index);
  void WriteSignature();
  int32_t MakeOutput(int32_t index, const int64_t* dims, int32_t rank, OrtkitView* out, void** data);
  int32_t Note(ort::Status*);
  int32_t Note(int32_t code, std::string reason);
  OrtkitDLDevice DeviceOf(const ort::Value*) const;

  NodeKernel& kernel_;
  const ort::Api* api_;
  ort::KernelContext* context_;
  int32_t code_ = 0;
  std::string reason_;
  std::vector<void*> scratch_;
  Array<OrtkitView, 16> inputs_;
  Array<void*, 16> addresses_;    // only for Python
  std::vector<int64_t> signature_;  // only for Python
};

}  // namespace ortkit::provider
