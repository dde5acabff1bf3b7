// As much of ONNX Runtime's C++ interface as examples/deploy uses: the wheel ships no headers.
// Slots of OrtApi by number, as in custom_ops/native/ort_abi.h.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };

struct OrtApiBase {
  void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};
extern "C" const OrtApiBase* OrtGetApiBase();

namespace Ort {

struct Exception : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename Result = void*, typename... Args>
Result Slot(int number, Args... args) {
  static void* const* const api = OrtGetApiBase()->GetApi(24);
  return reinterpret_cast<Result (*)(Args...)>(api[number])(args...);
}

template <typename... Args>
void Call(int number, Args... args) {
  void* status = Slot(number, args...);
  if (status != nullptr) throw Exception(Slot<const char*>(2, status));
}

template <int kRelease>
struct Owned {
  void* p = nullptr;
  Owned() = default;
  Owned(Owned&& other) noexcept : p(std::exchange(other.p, nullptr)) {}
  ~Owned() {
    if (p != nullptr) Slot<void>(kRelease, p);
  }
};

struct Env : Owned<92> {
  Env(OrtLoggingLevel level, const char* name) { Call(3, int{level}, name, &p); }
};

struct SessionOptions : Owned<100> {
  SessionOptions() { Call(10, &p); }
  void RegisterCustomOpsLibrary(const char* path) { Call(228, p, path); }
};

struct MemoryInfo : Owned<94> {
  static MemoryInfo CreateCpu(OrtAllocatorType allocator, OrtMemType type) {
    MemoryInfo made;
    Call(69, int{allocator}, int{type}, &made.p);
    return made;
  }
};

struct Value : Owned<96> {
  template <typename T>
  static Value CreateTensor(const MemoryInfo& memory, T* data, size_t count, const int64_t* shape,
                            size_t rank) {
    static_assert(sizeof(T) == 8, "int64, type 7");
    Value made;
    Call(49, memory.p, static_cast<void*>(data), count * sizeof(T), shape, rank, 7, &made.p);
    return made;
  }
  template <typename T>
  const T* GetTensorData() const {
    void* data = nullptr;
    Call(51, p, &data);
    return static_cast<const T*>(data);
  }
};

struct RunOptions {
  explicit RunOptions(std::nullptr_t) {}
};

struct Session : Owned<95> {
  Session(const Env& env, const char* path, const SessionOptions& options) {
    Call(7, env.p, path, options.p, &p);
  }
  std::vector<Value> Run(const RunOptions&, const char* const* names, const Value* inputs,
                         size_t count, const char* const* results, size_t result_count) {
    std::vector<void*> given, made(result_count);
    for (size_t i = 0; i < count; ++i) given.push_back(inputs[i].p);
    Call(9, p, static_cast<void*>(nullptr), names, given.data(), count, results, result_count,
         made.data());
    std::vector<Value> outputs(result_count);
    for (size_t i = 0; i < result_count; ++i) outputs[i].p = made[i];
    return outputs;
  }
};

}  // namespace Ort
