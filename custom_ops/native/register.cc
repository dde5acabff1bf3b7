// The library's one export: adds every op of the manifest to a session's options.
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "shim.h"

namespace ortkit {
namespace {

// The ops as one runtime sees them. A process may hold two runtimes (the Python package links its
// own copy beside libonnxruntime.so), and shape inference is not told which one calls.
struct Registration {
  const ort::Api* api;
  Registration* next;
  Op ops[1];  // as many as the manifest has
};

std::atomic<Registration*> registrations{nullptr};

Registration* Find(const ort::Api* api) {
  Registration* entry = registrations.load(std::memory_order_acquire);
  while (entry != nullptr && entry->api != api) entry = entry->next;
  return entry;
}

// Finds this runtime's registration or makes it; null without memory. Two threads may make one at
// once: one wins.
const Registration* FindOrMake(const ort::Api* api) {
  if (Registration* found = Find(api)) return found;
  const OrtkitManifest& manifest = ortkit_manifest;
  auto* entry = static_cast<Registration*>(calloc(1, sizeof(Registration) + manifest.op_count * sizeof(Op)));
  if (entry == nullptr) return nullptr;
  entry->api = api;
  for (int32_t i = 0; i < manifest.op_count; ++i) {
    entry->ops[i] = {DescribeToRuntime(), &manifest.ops[i], api};
  }
  entry->next = registrations.load(std::memory_order_acquire);
  do {
    if (Registration* found = Find(api)) {
      free(entry);
      return found;
    }
  } while (!registrations.compare_exchange_weak(entry->next, entry, std::memory_order_acq_rel));
  return entry;
}

// A status made through version 1 of the table, which every runtime has.
ort::Status* RefuseLibrary(const ort::ApiBase* base, const char* format, const char* first,
                           const char* second) {
  char text[256];
  snprintf(text, sizeof text, format, first, second);
  return ort::CreateStatus(base->GetApi(1))(ort::kFail, text);
}

}  // namespace
}  // namespace ortkit

extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(
    ort::SessionOptions* options, const ort::ApiBase* base) {
  const ort::Api* api = base->GetApi(ort::kApiVersion);
  if (api == nullptr) {
    return ortkit::RefuseLibrary(
        base, "%s: this kernel library needs ONNX Runtime 1.24 or newer, and this is %s",
        ortkit_manifest.domain, base->GetVersionString());
  }
  if (const char* have = ortkit::MissingCpu(ortkit_manifest.cpu)) {
    return ortkit::RefuseLibrary(
        base, "ortkit.fused: these kernels need a processor of level %s, and this one is %s; "
        "build them for its level, or load the model without them",
        ortkit::CpuName(ortkit_manifest.cpu), have);
  }
  const ortkit::Registration* entry = ortkit::FindOrMake(api);
  if (entry == nullptr) return ort::CreateStatus(api)(ort::kFail, "ortkit.fused: out of memory");
  return ortkit::AddToSession(api, options, entry->ops, ortkit_manifest.op_count);
}
