// The table of loaded images. A model has the same op many times, and a process many sessions.
#include "cuda_modules.h"

#include <pthread.h>

#include <cstdlib>

namespace ortkit::cuda {

struct Loaded {
  Context* context;
  const void* image;
  Module* module;
  bool waits;
  int64_t uses;
  Loaded* next;
};

namespace {

// Ranks of cubins lie above those of PTX.
constexpr int32_t kCubin = 10000;

// Held while an image is loaded, so that nobody loads it twice.
pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
Loaded* table = nullptr;

Result Load(const Driver& driver, const OrtkitImage& image, Module** module, LoadLog* log) {
  log->text[0] = '\0';
  int32_t options[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {log->text, reinterpret_cast<void*>(sizeof log->text)};
  const Result result = driver.ModuleLoad(module, image.data, image.is_ptx ? 2 : 0, options, values);
  log->text[sizeof log->text - 1] = '\0';
  return result;
}

// The table is locked.
Result FindOrLoad(const Driver& driver, Context* context, const OrtkitImage& image, Loaded** loaded,
                  LoadLog* log) {
  for (Loaded* one = table; one != nullptr; one = one->next) {
    if (one->context != context || one->image != image.data) continue;
    ++one->uses;
    *loaded = one;
    return 0;
  }
  Module* module = nullptr;
  const Result result = Load(driver, image, &module, log);
  if (result != 0) return result;
  auto* one = static_cast<Loaded*>(malloc(sizeof(Loaded)));
  if (one == nullptr) {
    driver.ModuleUnload(module);
    return kOutOfMemory;
  }
  *one = {context, image.data, module, image.waits != 0, 1, table};
  table = one;
  *loaded = one;
  return 0;
}

const OrtkitImage* BestBelow(const OrtkitStep& step, int32_t architecture, int32_t limit) {
  const OrtkitImage* best = nullptr;
  int32_t best_rank = 0;
  for (int32_t i = 0; i < step.image_count; ++i) {
    const int32_t rank = RankOf(step.images[i], architecture);
    if (rank <= best_rank || rank >= limit) continue;
    best = &step.images[i];
    best_rank = rank;
  }
  return best;
}

}  // namespace

int32_t RankOf(const OrtkitImage& image, int32_t architecture) {
  if (image.architecture > architecture) return 0;
  if (image.is_ptx) return image.architecture;
  return image.architecture / 10 == architecture / 10 ? kCubin + image.architecture : 0;
}

Result Acquire(const Driver& driver, Context* context, const OrtkitStep& step, int32_t architecture,
               Loaded** loaded, LoadLog* log) {
  log->text[0] = '\0';
  Result result = kNoBinaryForGpu;
  int32_t limit = INT32_MAX;
  pthread_mutex_lock(&table_mutex);
  // Code with features of one architecture ("sm_90a") does not run on its successors, and the file does
  // not say so; and code of a newer toolkit is none to an older driver. The next image may do.
  while (result == kNoBinaryForGpu || result == kInvalidImage) {
    const OrtkitImage* image = BestBelow(step, architecture, limit);
    if (image == nullptr) break;
    limit = RankOf(*image, architecture);
    result = FindOrLoad(driver, context, *image, loaded, log);
  }
  pthread_mutex_unlock(&table_mutex);
  return result;
}

void Release(const Driver& driver, Loaded* loaded, bool is_current) {
  pthread_mutex_lock(&table_mutex);
  if (--loaded->uses == 0) {
    Loaded** place = &table;
    while (*place != loaded) place = &(*place)->next;
    *place = loaded->next;
    if (is_current) driver.ModuleUnload(loaded->module);
    free(loaded);
  }
  pthread_mutex_unlock(&table_mutex);
}

Module* ModuleOf(const Loaded* loaded) { return loaded->module; }

bool Waits(const Loaded* loaded) { return loaded->waits; }

}  // namespace ortkit::cuda
