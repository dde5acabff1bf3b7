// What a session's allocators count, for programs that hold a session but not ONNX Runtime's C API.
//
// ONNX Runtime's Python package does not export its C API, and hands it to the libraries of custom
// ops only. So this is one, without an op: it notes the API and answers through plain functions.
// Of several runtimes in one process it answers for the one that registered it last.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "session_abi.h"

#define ORTKIT_EXPORT extern "C" __attribute__((visibility("default")))

namespace ortkit {
namespace {

std::atomic<const ort::Api*> live{nullptr};

// Text that is cut at the end of its room, and always ends in 0.
class Writer {
 public:
  Writer(char* room, size_t size) : room_(room), size_(size) {
    if (size_ > 0) room_[0] = '\0';
  }

  void Add(const char* text) {
    const size_t length = strlen(text);
    if (used_ + length >= size_) {
      is_cut_ = true;
      return;
    }
    memcpy(room_ + used_, text, length + 1);
    used_ += length;
  }

  bool is_cut() const { return is_cut_; }

 private:
  char* room_;
  size_t size_;
  size_t used_ = 0;
  bool is_cut_ = false;
};

enum Outcome : int32_t { kDone = 0, kNoRuntime = 1, kRefused = 2, kNoRoom = 3 };

// Consumes the status; its message is the answer.
Outcome Refused(const ort::Api* api, ort::Status* status, Writer* answer) {
  answer->Add(ort::GetErrorMessage(api)(status));
  ort::ReleaseStatus(api)(status);
  return kRefused;
}

Outcome AddStatistics(const ort::Api* api, const ort::Allocator* allocator, Writer* answer) {
  ort::KeyValuePairs* pairs = nullptr;
  if (ort::Status* status = ort::GetAllocatorStatistics(api)(allocator, &pairs)) {
    return Refused(api, status, answer);
  }
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  ort::GetKeyValuePairs(api)(pairs, &keys, &values, &count);
  for (size_t i = 0; i < count; ++i) {
    answer->Add(keys[i]);
    answer->Add("=");
    answer->Add(values[i]);
    answer->Add("\n");
  }
  ort::ReleaseKeyValuePairs(api)(pairs);
  return answer->is_cut() ? kNoRoom : kDone;
}

}  // namespace
}  // namespace ortkit

ORTKIT_EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions*, const ort::ApiBase* base) {
  const ort::Api* api = base->GetApi(ort::kApiVersion);
  if (api == nullptr) {
    char text[128];
    snprintf(text, sizeof text, "ortkit needs ONNX Runtime 1.24 or newer for this, and this is %s",
             base->GetVersionString());
    return ort::CreateStatus(base->GetApi(1))(ort::kFail, text);
  }
  ortkit::live.store(api, std::memory_order_release);
  return nullptr;
}

// Writes how many inputs a session takes: the question that tells a session from anything else.
ORTKIT_EXPORT int32_t ortkit_session_input_count(const ort::Session* session, size_t* count,
                                                 char* answer, size_t room) {
  ortkit::Writer writer(answer, room);
  const ort::Api* api = ortkit::live.load(std::memory_order_acquire);
  if (api == nullptr) return ortkit::kNoRuntime;
  if (ort::Status* status = ort::GetSessionInputCount(api)(session, count)) {
    return ortkit::Refused(api, status, &writer);
  }
  return ortkit::kDone;
}

// Writes lines of `Name=number`, none for an allocator that is no arena; or why there are none.
ORTKIT_EXPORT int32_t ortkit_arena_statistics(const ort::Session* session, const char* memory,
                                              int32_t device, int32_t use, char* answer,
                                              size_t room) {
  ortkit::Writer writer(answer, room);
  const ort::Api* api = ortkit::live.load(std::memory_order_acquire);
  if (api == nullptr) return ortkit::kNoRuntime;
  ort::MemoryInfo* info = nullptr;
  if (ort::Status* status = ort::CreateMemoryInfo(api)(memory, 1, device, use, &info)) {
    return ortkit::Refused(api, status, &writer);
  }
  ort::Allocator* allocator = nullptr;
  ort::Status* status = ort::CreateAllocator(api)(session, info, &allocator);
  ort::ReleaseMemoryInfo(api)(info);
  if (status != nullptr) return ortkit::Refused(api, status, &writer);
  const int32_t outcome = ortkit::AddStatistics(api, allocator, &writer);
  ort::ReleaseAllocator(api)(allocator);
  return outcome;
}
