#include "profiler.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernel_run.h"

namespace ortkit::provider {
namespace {

constexpr int32_t kKernelCategory = 2;  // OrtProfilingEventCategory_KERNEL

struct Handle {
  ort::EpProfilerImpl abi;  // first
  std::shared_ptr<Profiler> profiler;
};

Profiler& Of(ort::EpProfilerImpl* abi) { return *reinterpret_cast<Handle*>(abi)->profiler; }

void Release(ort::EpProfilerImpl* abi) { delete reinterpret_cast<Handle*>(abi); }
ort::Status* StartProfiling(ort::EpProfilerImpl* abi, int64_t offset) {
  Of(abi).Start(offset);
  return nullptr;
}
// What ONNX Runtime measures itself is in the trace already.
ort::Status* StartEvent(ort::EpProfilerImpl*, uint64_t) { return nullptr; }
ort::Status* StopEvent(ort::EpProfilerImpl*, uint64_t, const ort::ProfilingEvent*) { return nullptr; }
ort::Status* EndProfiling(ort::EpProfilerImpl* abi, ort::ProfilingEvents* events) {
  return Of(abi).End(events);
}

}  // namespace

int64_t Now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

void Profiler::Add(const std::string& name, int64_t begin, int64_t end, const Pairs& arguments) {
  const auto thread = static_cast<int32_t>(syscall(SYS_gettid));
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back({name, thread, begin, end, arguments});
}

void Profiler::Start(int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  zero_ = Now() - offset;
  events_.clear();
  is_active_.store(true, std::memory_order_relaxed);
}

ort::Status* Profiler::End(ort::ProfilingEvents* events) {
  is_active_.store(false, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Event& event : events_) ORTKIT_RETURN_IF_FAILED(Give(event, events));
  events_.clear();
  return nullptr;
}

ort::Status* Profiler::Give(const Event& event, ort::ProfilingEvents* events) const {
  const Entries arguments(event.arguments);
  const OrtkitEntries entries = arguments.get();
  ort::ProfilingEvent* made = nullptr;
  ORTKIT_RETURN_IF_FAILED(ort::CreateProfilingEvent(runtime_.ep)(
      kKernelCategory, getpid(), event.thread, event.name.c_str(), (event.begin - zero_) / 1000,
      (event.end - event.begin) / 1000, entries.keys, entries.values,
      static_cast<size_t>(entries.count), &made));
  ort::Status* status = ort::AddProfilingEvents(runtime_.ep)(events, &made, 1);
  ort::ReleaseProfilingEvent(runtime_.ep)(made);
  return status;
}

ort::EpProfilerImpl* MakeProfiler(Ep* ep) {
  ep->profiler = std::make_shared<Profiler>(ep->runtime());
  auto* handle = new Handle{{}, ep->profiler};
  handle->abi.version = ep->runtime().filled();
  handle->abi.Release = Release;
  handle->abi.StartProfiling = StartProfiling;
  handle->abi.StartEvent = StartEvent;
  handle->abi.StopEvent = StopEvent;
  handle->abi.EndProfiling = EndProfiling;
  return &handle->abi;
}

Profiler* ProfilerOf(const NodeKernel& kernel) { return kernel.ep().profiler.get(); }

}  // namespace ortkit::provider

extern "C" int64_t ortkit_provider_now(void) { return ortkit::provider::Now(); }
