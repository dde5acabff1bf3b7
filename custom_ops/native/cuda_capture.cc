// The end of the graph that a stream is captured into, and whether it is a launch of this library.
#include "cuda_capture.h"

#include <atomic>

namespace ortkit::cuda {
namespace {

constexpr int32_t kIsCaptured = 1;

struct End {
  uint64_t capture = 0;  // captures are numbered in a process; 0 is none
  const GraphNode* node = nullptr;
};

// Of the latest launch. Of threads that capture at a time each may find the other's, which is not the end
// of its own graph.
std::atomic<uint64_t> latest_capture{0};
std::atomic<const GraphNode*> latest_node{nullptr};

// The one node that the next one of a stream would depend on; none outside of captures, and where
// there are several.
End EndOf(const Driver& driver, Stream* stream) {
  if (driver.CaptureInfo == nullptr || driver.LaunchWith == nullptr) return {};
  int32_t status = 0;
  size_t count = 0;
  End end;
  const GraphNode* const* nodes = nullptr;
  const void* edges = nullptr;  // not asking for them is an error where there are some
  const Result result = driver.CaptureInfo(stream, &status, &end.capture, nullptr, &nodes, &edges, &count);
  if (result != 0 || status != kIsCaptured || count != 1) return {};
  end.node = nodes[0];
  return end;
}

}  // namespace

bool FollowsOwn(const Driver& driver, Stream* stream) {
  if (latest_node.load(std::memory_order_relaxed) == nullptr) return false;
  const End end = EndOf(driver, stream);
  return end.node != nullptr && end.node == latest_node.load(std::memory_order_relaxed) &&
         end.capture == latest_capture.load(std::memory_order_relaxed);
}

void NoteLaunch(const Driver& driver, Stream* stream) {
  const End end = EndOf(driver, stream);
  latest_capture.store(end.capture, std::memory_order_relaxed);
  latest_node.store(end.node, std::memory_order_relaxed);
}

}  // namespace ortkit::cuda
