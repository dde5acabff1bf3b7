// Copies in huge pages of weights that kernels read from memory in each run.
//
// ONNX Runtime maps weights from their files, in pages of 4 KiB. The processor looks each page up in
// tables that lie in memory too. One thread of a Zen 4 virtual machine reads 13 GB/s in such pages, and 32 in
// pages of 2 MiB (2026-11-28). Few file systems have huge pages for files, so weights are copied. The pages of
// the file are given back, so a process does not grow.
#include "constants.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace ortkit {
namespace {

constexpr uintptr_t kHugePage = 2u << 20;
constexpr size_t kChunkBytes = 64u << 20;
constexpr size_t kLine = 64;
// Bits of an entry of /proc/self/pagemap (proc_pid_pagemap(5)).
constexpr int kIsPresent = 63, kIsSwapped = 62, kIsOfFile = 61;

// Memory that copies are cut from, one after the other. What is not used of it has no pages.
struct Chunk {
  char* memory;
  size_t bytes;
  size_t used;
  int64_t copies;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // for all below
Copy* first = nullptr;
Chunk* newest = nullptr;

bool Has(uint64_t entry, int bit) { return (entry >> bit & 1) != 0; }

uintptr_t RoundUp(uintptr_t number, uintptr_t to) { return (number + to - 1) / to * to; }

// Whether a process may ask for huge pages; most systems give them to those that ask.
bool HasHugePages() {
  static int known = -1;
  if (known >= 0) return known != 0;
  known = 0;
  const int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[64] = {};
  if (read(file, text, sizeof text - 1) > 0) known = strstr(text, "[never]") == nullptr;
  close(file);
  return known != 0;
}

// Whether all pages that lie in some memory are of a file, or shared, so that giving them back loses
// nothing: they are read again when they are needed. Pages that nobody has read have no place yet.
bool IsOfFile(const char* begin, const char* end) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  uintptr_t at = reinterpret_cast<uintptr_t>(begin) / page;
  const uintptr_t last = RoundUp(reinterpret_cast<uintptr_t>(end), page) / page;
  bool is_of_file = true;
  while (is_of_file && at < last) {
    uint64_t entries[512];
    const size_t wanted = last - at < 512 ? last - at : 512;
    const ssize_t got = pread(file, entries, wanted * sizeof *entries, static_cast<off_t>(at * sizeof *entries));
    is_of_file = got == static_cast<ssize_t>(wanted * sizeof *entries);
    for (size_t i = 0; is_of_file && i < wanted; ++i) {
      const bool is_anywhere = Has(entries[i], kIsPresent) || Has(entries[i], kIsSwapped);
      is_of_file = Has(entries[i], kIsOfFile) || !is_anywhere;
    }
    at += wanted;
  }
  close(file);
  return is_of_file;
}

// Gives back the whole pages of a file in some memory.
void GiveBack(const char* begin, const char* end) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = RoundUp(reinterpret_cast<uintptr_t>(begin), page);
  const uintptr_t to = reinterpret_cast<uintptr_t>(end) / page * page;
  auto* const pages = reinterpret_cast<char*>(from);
  if (from < to && IsOfFile(pages, pages + (to - from))) madvise(pages, to - from, MADV_DONTNEED);
}

Chunk* MakeChunk(size_t least) {
  const size_t bytes = RoundUp(least > kChunkBytes ? least : kChunkBytes, kHugePage);
  auto* chunk = static_cast<Chunk*>(malloc(sizeof(Chunk)));
  if (chunk == nullptr) return nullptr;
  void* const mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    free(chunk);
    return nullptr;
  }
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = RoundUp(begin, kHugePage);
  auto* const memory = reinterpret_cast<char*>(aligned);
  if (aligned > begin) munmap(mapped, aligned - begin);
  if (begin + kHugePage > aligned) munmap(memory + bytes, begin + kHugePage - aligned);
  madvise(memory, bytes, MADV_HUGEPAGE);  // where it fails the pages are small
  *chunk = {memory, bytes, 0, 0};
  return chunk;
}

void LeaveChunk(Chunk* chunk) {
  if (--chunk->copies > 0) return;
  if (chunk == newest) newest = nullptr;
  munmap(chunk->memory, chunk->bytes);
  free(chunk);
}

}  // namespace

struct Copy {
  const void* source;
  size_t bytes;
  char* memory;
  Chunk* chunk;
  int64_t holders;
  Copy* next;
};

namespace {

// The bytes are compared, too: a session that ends unmaps its file before its kernels are destroyed, and
// another file may lie at that address by now.
Copy* Find(const void* source, size_t bytes) {
  for (Copy* copy = first; copy != nullptr; copy = copy->next) {
    if (copy->source == source && copy->bytes == bytes && memcmp(copy->memory, source, bytes) == 0) return copy;
  }
  return nullptr;
}

Copy* MakeCopy(const void* source, size_t bytes) {
  const auto* begin = static_cast<const char*>(source);
  if (!HasHugePages() || !IsOfFile(begin, begin + bytes)) return nullptr;
  auto* copy = static_cast<Copy*>(malloc(sizeof(Copy)));
  if (copy == nullptr) return nullptr;
  if (newest == nullptr || newest->bytes - newest->used < bytes) {
    Chunk* const chunk = MakeChunk(bytes);
    if (chunk == nullptr) {
      free(copy);
      return nullptr;
    }
    newest = chunk;
  }
  *copy = {source, bytes, newest->memory + newest->used, newest, 1, first};
  memcpy(copy->memory, source, bytes);
  newest->used += RoundUp(bytes, kLine);
  if (newest->used > newest->bytes) newest->used = newest->bytes;
  ++newest->copies;
  first = copy;
  GiveBack(begin, begin + bytes);
  return copy;
}

}  // namespace

const Copy* HoldCopy(const void* source, size_t bytes) {
  pthread_mutex_lock(&mutex);
  Copy* copy = Find(source, bytes);
  if (copy != nullptr) {
    ++copy->holders;
    GiveBack(static_cast<const char*>(source), static_cast<const char*>(source) + bytes);
  } else {
    copy = MakeCopy(source, bytes);
  }
  pthread_mutex_unlock(&mutex);
  return copy;
}

char* MemoryOf(const Copy* copy) { return copy->memory; }

void ReleaseCopy(const Copy* copy) {
  pthread_mutex_lock(&mutex);
  Copy** place = &first;
  while (*place != copy) place = &(*place)->next;
  Copy* const found = *place;
  if (--found->holders == 0) {
    *place = found->next;
    LeaveChunk(found->chunk);
    free(found);
  }
  pthread_mutex_unlock(&mutex);
}

}  // namespace ortkit
