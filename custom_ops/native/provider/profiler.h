// The events of kernels in a session's trace.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "factory.h"

namespace ortkit::provider {

class NodeKernel;

// Nanoseconds of the monotonic clock.
int64_t Now();

class Profiler {
 public:
  explicit Profiler(const Runtime& runtime) : runtime_(runtime) {}

  bool is_active() const { return is_active_.load(std::memory_order_relaxed); }
  // Times are Now's.
  void Add(const std::string& name, int64_t begin, int64_t end, const Pairs& arguments);
  // `offset` is how long ago ONNX Runtime's profile began, in nanoseconds.
  void Start(int64_t offset);
  // Gives all events to ONNX Runtime.
  ort::Status* End(ort::ProfilingEvents*);

 private:
  struct Event {
    std::string name;
    int32_t thread;
    int64_t begin;
    int64_t end;
    Pairs arguments;
  };

  ort::Status* Give(const Event&, ort::ProfilingEvents*) const;

  const Runtime& runtime_;
  std::atomic<bool> is_active_{false};
  std::mutex mutex_;
  int64_t zero_ = 0;
  std::vector<Event> events_;
};

// The session's; owned by ONNX Runtime, and noted in the Ep.
ort::EpProfilerImpl* MakeProfiler(Ep*);
Profiler* ProfilerOf(const NodeKernel&);

}  // namespace ortkit::provider
