// Stands in for ONNX Runtime's header of this name: what the C++ of docs/guides/deploy.md uses.
#pragma once

#include <memory>
#include <stdexcept>
#include <vector>

#include "onnxruntime_c_api.h"

namespace Ort {

inline const OrtApi& Api() {
  static const OrtApi* api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  return *api;
}

inline void Check(OrtStatus* status) {
  if (status != nullptr) throw std::runtime_error(Api().GetErrorMessage(status));
}

// Owns what one function of the table releases.
template <class T, void (*OrtApi::*kRelease)(T*)>
class Owner {
 public:
  explicit Owner(T* held = nullptr) : held_(held) {}
  operator T*() const { return held_.get(); }

 protected:
  struct Release {
    void operator()(T* held) const { (Api().*kRelease)(held); }
  };
  std::unique_ptr<T, Release> held_;
};

struct Env : Owner<OrtEnv, &OrtApi::ReleaseEnv> {
  Env(OrtLoggingLevel level, const char* name) {
    OrtEnv* made;
    Check(Api().CreateEnv(level, name, &made));
    held_.reset(made);
  }
};

struct SessionOptions : Owner<OrtSessionOptions, &OrtApi::ReleaseSessionOptions> {
  SessionOptions() {
    OrtSessionOptions* made;
    Check(Api().CreateSessionOptions(&made));
    held_.reset(made);
  }
  void RegisterCustomOpsLibrary(const char* path) { Check(Api().RegisterCustomOpsLibrary_V2(*this, path)); }
};

struct MemoryInfo : Owner<OrtMemoryInfo, &OrtApi::ReleaseMemoryInfo> {
  static MemoryInfo CreateCpu(OrtAllocatorType allocator, OrtMemType type) {
    OrtMemoryInfo* made;
    Check(Api().CreateCpuMemoryInfo(allocator, type, &made));
    MemoryInfo memory;
    memory.held_.reset(made);
    return memory;
  }
};

struct Value : Owner<OrtValue, &OrtApi::ReleaseValue> {
  using Owner::Owner;
  template <class T>
  static Value CreateTensor(const OrtMemoryInfo* memory, T* data, size_t count, const int64_t* shape,
                            size_t rank) {
    static_assert(sizeof(T) == sizeof(float), "float only");
    OrtValue* made;
    Check(Api().CreateTensorWithDataAsOrtValue(memory, data, count * sizeof(T), shape, rank,
                                               ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &made));
    return Value(made);
  }
  template <class T>
  const T* GetTensorData() const {
    void* data;
    Check(Api().GetTensorMutableData(*this, &data));
    return static_cast<const T*>(data);
  }
};

struct RunOptions {
  const OrtRunOptions* held;
};

struct Session : Owner<OrtSession, &OrtApi::ReleaseSession> {
  Session(const Env& env, const char* path, const SessionOptions& options) {
    OrtSession* made;
    Check(Api().CreateSession(env, path, options, &made));
    held_.reset(made);
  }
  std::vector<Value> Run(const RunOptions& options, const char* const* input_names, const Value* inputs,
                         size_t input_count, const char* const* output_names, size_t output_count) {
    std::vector<const OrtValue*> given;
    for (size_t i = 0; i < input_count; ++i) given.push_back(inputs[i]);
    std::vector<OrtValue*> made(output_count);
    Check(Api().Run(*this, options.held, input_names, given.data(), input_count, output_names, output_count,
                    made.data()));
    std::vector<Value> results;
    for (OrtValue* each : made) results.emplace_back(each);
    return results;
  }
};

}  // namespace Ort
