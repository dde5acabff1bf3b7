// What a GPU did, as CUPTI's activity API tells it: buffers for its records, and the records of
// kernels, copies, fills and of the calls that launched them in short.
//
// CUPTI asks for buffers in the middle of a CUDA call and gives them back from a thread of its own:
// both must not wait for Python's lock, so they are answered here. CUPTI itself is loaded, and told
// what to record, by ortkit/runtime/profiling/cuda_activity.py; nothing of it is linked.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define ORTKIT_EXPORT extern "C" __attribute__((visibility("default")))

namespace ortkit {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

// The records that are read, as far as they are read. Their first fields have been the same since
// CUPTI 11 (CUpti_ActivityKernel5 to 10, Memcpy3 to 6, Memset2 to 4, API).
enum Kind : uint32_t { kCopy = 1, kFill = 2, kDriver = 4, kRuntime = 5, kKernel = 10 };

struct KernelRecord {
  uint32_t kind;
  uint8_t cache, shared_config;
  uint16_t registers;
  uint32_t partitioned_requested, partitioned_executed;
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total, correlation;
  int64_t grid_id;
  const char* name;
};
struct CopyRecord {
  uint32_t kind;
  uint8_t copy_kind, source, target, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};
struct FillRecord {
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};
struct CallRecord {
  uint32_t kind, callback;
  uint64_t start, end;
  uint32_t process, thread, correlation, outcome;
};

// What is handed out; cuda_activity.py has the same fields. Times in CUPTI's nanoseconds.
struct Work {
  uint64_t start, end, bytes;
  const char* name;  // kernels only; CUPTI's, for as long as the kernel's module is loaded
  uint32_t kind, device, stream, correlation;
  uint32_t copy_kind, registers;
  int32_t grid[3], block[3];
  uint32_t static_shared, dynamic_shared;
};
struct Call {
  uint64_t start, end;
  uint32_t thread, correlation;
};

struct Buffer {
  Buffer* next;
  size_t used;
  uint8_t* data() { return reinterpret_cast<uint8_t*>(this + 1); }
};
static_assert(sizeof(Buffer) % 8 == 0, "CUPTI wants buffers on 8 bytes");

std::atomic<Buffer*> completed{nullptr};
std::atomic<uint64_t> lost{0};

template <typename T>
class Rows {
 public:
  // Counts what there is no memory for.
  T* Add() {
    if (used_ == room_) {
      const size_t room = room_ == 0 ? 1024 : 2 * room_;
      void* grown = realloc(rows_, room * sizeof(T));
      if (grown == nullptr) {
        lost.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
      }
      rows_ = static_cast<T*>(grown);
      room_ = room;
    }
    T* row = rows_ + used_++;
    memset(row, 0, sizeof(T));
    return row;
  }
  T* rows() const { return rows_; }
  size_t used() const { return used_; }

 private:
  T* rows_ = nullptr;
  size_t used_ = 0, room_ = 0;
};

void AddKernel(const KernelRecord* from, Work* to) {
  to->start = from->start;
  to->end = from->end;
  to->name = from->name;
  to->device = from->device;
  to->stream = from->stream;
  to->correlation = from->correlation;
  to->registers = from->registers;
  memcpy(to->grid, from->grid, sizeof to->grid);
  memcpy(to->block, from->block, sizeof to->block);
  to->static_shared = static_cast<uint32_t>(from->static_shared);
  to->dynamic_shared = static_cast<uint32_t>(from->dynamic_shared);
}

template <typename Record>
void AddTransfer(const Record* from, Work* to) {
  to->start = from->start;
  to->end = from->end;
  to->bytes = from->bytes;
  to->device = from->device;
  to->stream = from->stream;
  to->correlation = from->correlation;
}

void AddRecord(const uint8_t* record, Rows<Work>* works, Rows<Call>* calls) {
  uint32_t kind;
  memcpy(&kind, record, sizeof kind);
  if (kind == kDriver || kind == kRuntime) {
    const auto* from = reinterpret_cast<const CallRecord*>(record);
    if (Call* to = calls->Add()) *to = {from->start, from->end, from->thread, from->correlation};
    return;
  }
  if (kind != kKernel && kind != kCopy && kind != kFill) return;
  Work* to = works->Add();
  if (to == nullptr) return;
  to->kind = kind;
  if (kind == kKernel) {
    AddKernel(reinterpret_cast<const KernelRecord*>(record), to);
  } else if (kind == kCopy) {
    const auto* from = reinterpret_cast<const CopyRecord*>(record);
    AddTransfer(from, to);
    to->copy_kind = from->copy_kind;
  } else {
    AddTransfer(reinterpret_cast<const FillRecord*>(record), to);
  }
}

}  // namespace
}  // namespace ortkit

// CUpti_BuffersCallbackRequestFunc: without memory CUPTI drops records and counts them.
ORTKIT_EXPORT void ortkit_activity_requested(uint8_t** data, size_t* size, size_t* most_records) {
  auto* buffer = static_cast<ortkit::Buffer*>(
      malloc(sizeof(ortkit::Buffer) + ortkit::kBufferBytes));
  *most_records = 0;
  *size = buffer == nullptr ? 0 : ortkit::kBufferBytes;
  *data = buffer == nullptr ? nullptr : buffer->data();
}

// CUpti_BuffersCallbackCompleteFunc
ORTKIT_EXPORT void ortkit_activity_completed(void*, uint32_t, uint8_t* data, size_t, size_t used) {
  if (data == nullptr) return;
  ortkit::Buffer* buffer = reinterpret_cast<ortkit::Buffer*>(data) - 1;
  buffer->used = used;
  buffer->next = ortkit::completed.load(std::memory_order_relaxed);
  while (!ortkit::completed.compare_exchange_weak(buffer->next, buffer, std::memory_order_release,
                                                  std::memory_order_relaxed)) {
  }
}

// Reads all buffers that came back, and frees them. `next` is cuptiActivityGetNextRecord. The rows
// are the caller's, who gives them to `ortkit_activity_free`.
ORTKIT_EXPORT void ortkit_activity_take(int32_t (*next)(uint8_t*, size_t, uint8_t**),
                                        ortkit::Work** works, size_t* work_count,
                                        ortkit::Call** calls, size_t* call_count,
                                        uint64_t* lost_count) {
  ortkit::Rows<ortkit::Work> found;
  ortkit::Rows<ortkit::Call> launches;
  ortkit::Buffer* buffer = ortkit::completed.exchange(nullptr, std::memory_order_acquire);
  while (buffer != nullptr) {
    uint8_t* record = nullptr;
    while (next(buffer->data(), buffer->used, &record) == 0) {
      ortkit::AddRecord(record, &found, &launches);
    }
    ortkit::Buffer* done = buffer;
    buffer = buffer->next;
    free(done);
  }
  *works = found.rows();
  *work_count = found.used();
  *calls = launches.rows();
  *call_count = launches.used();
  *lost_count = ortkit::lost.exchange(0, std::memory_order_relaxed);
}

ORTKIT_EXPORT void ortkit_activity_free(void* rows) { free(rows); }
