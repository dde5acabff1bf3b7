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

struct ScratchPool {
  ScratchPool* next;
  const ort::MemoryInfo* owner;
  int holders;
  ScratchBlock* blocks;
};

namespace {

constexpr size_t kSmallest = 256;

// Of all pools: it is held for a walk through a short list, or while memory is got.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
ScratchPool* pools = nullptr;

// Powers of two: sizes that grow from run to run leave less behind than they use.
size_t Rounded(size_t bytes, bool is_known) {
  if (is_known && bytes > kSmallest) return bytes;
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
                  size_t bytes, bool is_known, ort::Status** status) {
  auto* block = static_cast<ScratchBlock*>(malloc(sizeof(ScratchBlock)));
  if (block == nullptr) return nullptr;
  *block = {pool->blocks, stream, Rounded(bytes, is_known), nullptr, false};
  *status = ort::AllocatorAlloc(api)(allocator, block->bytes, &block->memory);
  if (*status != nullptr || block->memory == nullptr) {
    free(block);
    return nullptr;
  }
  pool->blocks = block;
  return block;
}

void Free(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator) {
  while (ScratchBlock* block = pool->blocks) {
    pool->blocks = block->next;
    ort::Status* status = ort::AllocatorFree(api)(allocator, block->memory);
    if (status != nullptr) ort::ReleaseStatus(api)(status);
    free(block);
  }
  free(pool);
}

}  // namespace

ScratchPool* HoldPool(const ort::MemoryInfo* owner) {
  pthread_mutex_lock(&mutex);
  ScratchPool* pool = pools;
  while (pool != nullptr && pool->owner != owner) pool = pool->next;
  if (pool == nullptr) {
    pool = static_cast<ScratchPool*>(malloc(sizeof(ScratchPool)));
    if (pool != nullptr) *pool = {pools, owner, 0, nullptr};
    if (pool != nullptr) pools = pool;
  }
  if (pool != nullptr) ++pool->holders;
  pthread_mutex_unlock(&mutex);
  return pool;
}

void LetGoOfPool(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator) {
  pthread_mutex_lock(&mutex);
  const bool is_last = --pool->holders == 0;
  if (is_last) {
    ScratchPool** link = &pools;
    while (*link != pool) link = &(*link)->next;
    *link = pool->next;
  }
  pthread_mutex_unlock(&mutex);
  if (is_last) Free(pool, api, allocator);
}

ScratchBlock* HoldScratch(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator, const void* stream,
                          size_t bytes, bool is_known, ort::Status** status) {
  *status = nullptr;
  pthread_mutex_lock(&mutex);
  ScratchBlock* block = FindFree(*pool, stream, bytes);
  if (block == nullptr) block = Add(pool, api, allocator, stream, bytes, is_known, status);
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

}  // namespace ortkit::cuda
