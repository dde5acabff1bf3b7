// The exports of a kernel library: what it holds, and what adds its ops to the options of a session.
#include <sched.h>

#include <atomic>
#include <cstdio>
#include <new>

#include "shim.h"

namespace ortkit {
namespace {

// Which runtime has which part of the manifest's storage. A process may hold two runtimes (the Python
// package links its own copy beside libonnxruntime.so), and shape inference is not told which one
// calls, so each has its own view of the ops. Entries are taken in order, once, and stay.
struct Entry {
  std::atomic<const ort::Api*> api;
  std::atomic<bool> is_filled;
};

Entry entries[ORTKIT_MAX_RUNTIMES];

static_assert(sizeof(Op) == sizeof(OrtkitStorage) && alignof(Op) == alignof(OrtkitStorage), "manifest.h");

// The kernels of all ops: of each one for the CPU, for CUDA, or both.
int32_t CountKernels() {
  int32_t count = 0;
  for (int32_t i = 0; i < ortkit_manifest.op_count; ++i) {
    const OrtkitOp& spec = ortkit_manifest.ops[i];
    count += (spec.call != nullptr) + (spec.cuda != nullptr);
  }
  return count;
}

Op* OpsOf(int32_t entry) {
  return reinterpret_cast<Op*>(&ortkit_manifest.storage[entry * CountKernels()]);
}

void MakeOps(const ort::Api* api, Op* ops) {
  for (int32_t i = 0; i < ortkit_manifest.op_count; ++i) {
    const OrtkitOp& spec = ortkit_manifest.ops[i];
    if (spec.call != nullptr) new (ops++) Op{DescribeToRuntime(spec), &spec, api, false};
    if (spec.cuda != nullptr) {
      new (ops++) Op{ortkit_manifest.cuda->DescribeToRuntime(spec), &spec, api, true};
    }
  }
}

// Returns the entry of a runtime, made if it is new; -1 if there are too many runtimes.
int32_t FindOrMake(const ort::Api* api) {
  for (int32_t i = 0; i < ORTKIT_MAX_RUNTIMES; ++i) {
    const ort::Api* owner = nullptr;
    if (entries[i].api.compare_exchange_strong(owner, api, std::memory_order_acq_rel)) {
      MakeOps(api, OpsOf(i));
      MakeNames(api, i);
      entries[i].is_filled.store(true, std::memory_order_release);
      return i;
    }
    if (owner != api) continue;
    while (!entries[i].is_filled.load(std::memory_order_acquire)) sched_yield();  // another thread is at it
    return i;
  }
  return -1;
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
  if (ortkit_manifest.version != ORTKIT_MANIFEST_VERSION) {
    return ort::CreateStatus(api)(ort::kFail, "ortkit.fused: manifest and shim of this kernel library are "
                                              "of different versions of ortkit; build it again");
  }
  if (const char* have = ortkit::MissingCpu(ortkit_manifest.cpu)) {
    return ortkit::RefuseLibrary(
        base, "ortkit.fused: these kernels need a processor of level %s, and this one is %s; "
        "build them for its level, or load the model without them",
        ortkit::CpuName(ortkit_manifest.cpu), have);
  }
  const int32_t entry = ortkit::FindOrMake(api);
  if (entry < 0) {
    return ort::CreateStatus(api)(ort::kFail, "ortkit.fused: too many ONNX Runtimes in one process");
  }
  // Libraries of a user's ops have no fused ones, nor their domain.
  if (ortkit_manifest.op_count > 0) {
    const ortkit::Op* ops = ortkit::OpsOf(entry);
    ORTKIT_RETURN_IF_ERROR(ortkit::AddToSession(api, options, ops, ortkit::CountKernels()));
  }
  return ortkit::AddNames(api, options, entry);
}

// What the library holds, for those who run its ops without registering them.
extern "C" __attribute__((visibility("default"))) const OrtkitManifest* ortkit_kernel_manifest() {
  return &ortkit_manifest;
}
