#include "cuda_scratch.h"

#include <pthread.h>

#include <cstdlib>

namespace ortkit::cuda {

struct ScratchBlock {
  ScratchBlock* next;
  const void* stream;
  size_t bytes;
  void* memory;
  bool is_held;
};

namespace {

constexpr size_t kSmallest = 256;

// Of all pools: it is held for a walk through a short list, or while memory is got.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// Powers of two: sizes that grow from run to run leave less behind than they use.
size_t Rounded(size_t bytes) {
  size_t rounded = kSmallest;
  while (rounded < bytes) rounded *= 2;
  return rounded;
}

ScratchBlock* FindFree(const ScratchPool& pool, const void* stream, size_t bytes) {
  ScratchBlock* best = nullptr;
  for (ScratchBlock* one = pool.blocks; one != nullptr; one = one->next) {
    if (one->is_held || one->stream != stream || one->bytes < bytes) continue;
    if (best == nullptr || one->bytes < best->bytes) best = one;
  }
  return best;
}

ScratchBlock* Add(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator, const void* stream,
                  size_t bytes, ort::Status** status) {
  auto* block = static_cast<ScratchBlock*>(malloc(sizeof(ScratchBlock)));
  if (block == nullptr) return nullptr;
  *block = {pool->blocks, stream, Rounded(bytes), nullptr, false};
  *status = ort::AllocatorAlloc(api)(allocator, block->bytes, &block->memory);
  if (*status != nullptr || block->memory == nullptr) {
    free(block);
    return nullptr;
  }
  pool->blocks = block;
  return block;
}

}  // namespace

ScratchBlock* HoldScratch(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator,
                          const void* stream, size_t bytes, ort::Status** status) {
  *status = nullptr;
  pthread_mutex_lock(&mutex);
  ScratchBlock* block = FindFree(*pool, stream, bytes);
  if (block == nullptr) block = Add(pool, api, allocator, stream, bytes, status);
  if (block != nullptr) block->is_held = true;
  pthread_mutex_unlock(&mutex);
  return block;
}

void* MemoryOf(const ScratchBlock* block) { return block == nullptr ? nullptr : block->memory; }

void LetGo(ScratchBlock* block) {
  if (block == nullptr) return;
  pthread_mutex_lock(&mutex);
  block->is_held = false;
  pthread_mutex_unlock(&mutex);
}

void FreeScratch(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator) {
  while (ScratchBlock* block = pool->blocks) {
    pool->blocks = block->next;
    ort::Status* status = ort::AllocatorFree(api)(allocator, block->memory);
    if (status != nullptr) ort::ReleaseStatus(api)(status);
    free(block);
  }
}

}  // namespace ortkit::cuda
