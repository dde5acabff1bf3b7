// A small ONNX Runtime that holds nothing but the slots that the shim uses, for tests of the shim in
// C++: under sanitizers, with every call failing in turn, and two runtimes in one process.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda_ort.h"
#include "ort_abi.h"

namespace ort {

struct Status {
  int32_t code;
  std::string text;
};

struct OpDomain {
  std::string name;
  std::vector<const CustomOp*> ops;
};

struct SessionOptions {
  std::map<std::string, std::string> config;
  std::vector<OpDomain*> domains;
};

struct Value;

struct KernelInfo {
  size_t inputs;
  size_t outputs;
  int32_t device = 0;
  std::map<std::string, float> reals = {};        // attributes
  std::map<std::string, int64_t> integers = {};
  std::map<size_t, const Value*> constants = {};  // inputs
};

struct MemoryInfo {
  int32_t device;
};

// A handle to a device's allocator.
struct Allocator {
  MemoryInfo memory;
};

// Shape and element type; -1 is a size that is not known, perhaps by its name.
struct TensorInfo {
  int32_t type = 0;
  std::vector<int64_t> dims;
  std::vector<std::string> names;
};

struct ShapeContext {
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
};

// A tensor with memory of exactly its size, so that a sanitizer sees each byte beyond it.
struct Value {
  Value(int32_t type, std::vector<int64_t> dims, size_t element_bytes);
  Value(int32_t type, std::vector<int64_t> dims, void* given);  // memory of someone else's
  ~Value();
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;

  template <class T>
  T* as() { return reinterpret_cast<T*>(data); }

  int32_t type;
  std::vector<int64_t> dims;
  size_t count;
  char* data;
  bool is_given = false;
};

struct KernelContext {
  std::vector<Value*> inputs;            // null: absent
  std::vector<int32_t> output_types;     // ONNX TensorProto.DataType
  std::vector<Value*> outputs;           // made when asked for, or given: in-place
  int threads = 1;
  std::atomic<int> parallel_calls{0};
  void* stream = nullptr;                // of a run on CUDA
  void* blas = nullptr;                  // its cuBLAS handle; null: there is none

  ~KernelContext();
};

}  // namespace ort

namespace fake {

constexpr int kRuntimes = 8;

// The base that runtime number `index` (below kRuntimes) hands to a library.
const ort::ApiBase* Base(int index = 0);
const ort::Api* Table(int index = 0);
// A runtime that answers only versions up to 23.
const ort::ApiBase* OldBase();

// Statuses that are not released yet.
int LiveStatuses();
// Returns code and text, and releases.
std::string Take(ort::Status* status);

// Allocators' handles and scratch memory that are not released yet.
int LiveAllocators();
int LiveScratch();
// Whether the runtimes have the provider for CUDA; they do.
void HaveCuda(bool has);

// From now on the `count`-th call that can fail does (0: the next one); -1: none. Per thread.
void FailAt(int count);
// Whether FailAt's failure has come when memory was given back, where nothing can be done about it.
bool HasFailedToFree();
// Whether FailAt's failure has happened.
bool HasFailed();

size_t ElementBytes(int32_t type);
// Releases every domain that was ever created: the shim never does.
void ReleaseDomains();

}  // namespace fake
