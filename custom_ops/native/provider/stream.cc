// Streams of providers with memory of their own, and the notifications between them.
#include <mutex>
#include <set>

#include "ep.h"

namespace ortkit::provider {
namespace {

struct Stream {
  ort::SyncStreamImpl abi;  // first
  Factory* factory;
  int32_t device;
  uint64_t handle;
};

struct Notification {
  ort::SyncNotificationImpl abi;  // first
  Factory* factory;
  int32_t device;
  uint64_t handle;
};

// Streams that live. What ONNX Runtime hands over may be another provider's, or none at all.
struct Live {
  std::mutex mutex;
  std::set<const ort::SyncStreamImpl*> streams;
};

Live& TheLive() {
  static Live& live = *new Live;
  return live;
}

Stream* AsStream(ort::SyncStreamImpl* abi) { return reinterpret_cast<Stream*>(abi); }
Notification* AsNotification(ort::SyncNotificationImpl* abi) {
  return reinterpret_cast<Notification*>(abi);
}

template <class Part>
const OrtkitMemory& MemoryOf(const Part& part) {
  return part.factory->definition->devices[part.device].memory;
}

// Calls one of the memory's functions.
template <class Callback>
ort::Status* CallMemory(const Factory& factory, const char* name, const Callback& callback) {
  const Definition& definition = *factory.definition;
  const PythonCall python(definition.is_python());
  if (!python) return Fail(factory.runtime.api, ort::kFail, definition.name + ": " + kClosed);
  OrtkitError error;
  const int32_t code = callback(definition.calls.user, &error);
  return FromCallback(factory.runtime.api, definition.name, name, code, error);
}

void ReleaseNotification(ort::SyncNotificationImpl* abi) {
  const std::unique_ptr<Notification> notification(AsNotification(abi));
  const Definition& definition = *notification->factory->definition;
  const PythonCall python(definition.is_python());
  if (python) MemoryOf(*notification).release_notification(definition.calls.user, notification->handle);
}

ort::Status* Activate(ort::SyncNotificationImpl* abi) {
  const Notification& it = *AsNotification(abi);
  return CallMemory(*it.factory, "activate", [&](void* user, OrtkitError* error) {
    return MemoryOf(it).activate(user, it.handle, error);
  });
}

ort::Status* WaitOnDevice(ort::SyncNotificationImpl* abi, ort::SyncStream* consumer) {
  const Notification& it = *AsNotification(abi);
  const uint64_t stream = HandleOf(*it.factory, consumer);
  return CallMemory(*it.factory, "wait_on_device", [&](void* user, OrtkitError* error) {
    return MemoryOf(it).wait_on_device(user, it.handle, stream, error);
  });
}

ort::Status* WaitOnHost(ort::SyncNotificationImpl* abi) {
  const Notification& it = *AsNotification(abi);
  return CallMemory(*it.factory, "wait_on_host", [&](void* user, OrtkitError* error) {
    return MemoryOf(it).wait_on_host(user, it.handle, error);
  });
}

void ReleaseStream(ort::SyncStreamImpl* abi) {
  const std::unique_ptr<Stream> stream(AsStream(abi));
  {
    const std::lock_guard<std::mutex> lock(TheLive().mutex);
    TheLive().streams.erase(abi);
  }
  const Definition& definition = *stream->factory->definition;
  const PythonCall python(definition.is_python());
  if (python) MemoryOf(*stream).release_stream(definition.calls.user, stream->handle);
}

void* GetHandle(ort::SyncStreamImpl* abi) { return reinterpret_cast<void*>(AsStream(abi)->handle); }

ort::Status* CreateNotification(ort::SyncStreamImpl* abi, ort::SyncNotificationImpl** out) {
  const Stream& stream = *AsStream(abi);
  uint64_t handle = 0;
  ORTKIT_RETURN_IF_FAILED(
      CallMemory(*stream.factory, "create_notification", [&](void* user, OrtkitError* error) {
        return MemoryOf(stream).create_notification(user, stream.handle, &handle, error);
      }));
  auto* made = new Notification{{}, stream.factory, stream.device, handle};
  made->abi.version = stream.factory->runtime.filled();
  made->abi.Release = ReleaseNotification;
  made->abi.Activate = Activate;
  made->abi.WaitOnDevice = WaitOnDevice;
  made->abi.WaitOnHost = WaitOnHost;
  *out = &made->abi;
  return nullptr;
}

ort::Status* Flush(ort::SyncStreamImpl* abi) {
  const Stream& stream = *AsStream(abi);
  if (MemoryOf(stream).flush == nullptr) return nullptr;
  return CallMemory(*stream.factory, "flush", [&](void* user, OrtkitError* error) {
    return MemoryOf(stream).flush(user, stream.handle, error);
  });
}

ort::Status* OnSessionRunEnd(ort::SyncStreamImpl* abi) {
  const Stream& stream = *AsStream(abi);
  if (MemoryOf(stream).stream_run_end == nullptr) return nullptr;
  return CallMemory(*stream.factory, "stream_run_end", [&](void* user, OrtkitError* error) {
    return MemoryOf(stream).stream_run_end(user, stream.handle, error);
  });
}

}  // namespace

ort::Status* CreateSyncStream(ort::EpFactory* abi, const ort::MemoryDevice* memory,
                              const ort::KeyValuePairs*, ort::SyncStreamImpl** out) {
  Factory* factory = AsFactory(abi);
  *out = nullptr;
  const int32_t device = FindDevice(*factory, memory);
  if (device < 0 || factory->definition->devices[device].memory.has_streams == 0) {
    return Fail(factory->runtime.api, ort::kInvalidArgument,
                factory->definition->name + ": the device has no streams");
  }
  uint64_t handle = 0;
  ORTKIT_RETURN_IF_FAILED(CallMemory(*factory, "create_stream", [&](void* user, OrtkitError* error) {
    return factory->definition->devices[device].memory.create_stream(user, device, &handle, error);
  }));
  auto* made = new Stream{{}, factory, device, handle};
  made->abi.version = factory->runtime.filled();
  made->abi.Release = ReleaseStream;
  made->abi.GetHandle = GetHandle;
  made->abi.CreateNotification = CreateNotification;
  made->abi.Flush = Flush;
  made->abi.OnSessionRunEnd = OnSessionRunEnd;
  const std::lock_guard<std::mutex> lock(TheLive().mutex);
  TheLive().streams.insert(&made->abi);
  *out = &made->abi;
  return nullptr;
}

uint64_t HandleOf(const Factory& factory, const ort::SyncStream* stream) {
  if (stream == nullptr) return 0;
  const ort::SyncStreamImpl* impl = ort::StreamImpl(factory.runtime.ep)(stream);
  const std::lock_guard<std::mutex> lock(TheLive().mutex);
  const bool is_ours = TheLive().streams.count(impl) != 0;
  return is_ours ? reinterpret_cast<const Stream*>(impl)->handle : 0;
}

}  // namespace ortkit::provider
