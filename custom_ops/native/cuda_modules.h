// Images loaded into contexts: each once, however many kernels use it.
#pragma once

#include "cuda_driver.h"
#include "manifest.h"

namespace ortkit::cuda {

struct Loaded;

// What the driver says of code that it does not take; empty if nothing.
struct LoadLog {
  char text[160];
};

// How well an image runs on a device: more is better, 0 is not at all. Code made for the device comes
// before PTX, and newer code before older.
int32_t RankOf(const OrtkitImage& image, int32_t architecture);

// Loads the best image of a step that the driver takes into the context, which is current; the caller
// owes a Release. kNoBinaryForGpu if there is none.
Result Acquire(const Driver& driver, Context* context, const OrtkitStep& step, int32_t architecture,
               Loaded** loaded, LoadLog* log);
// The context that it was loaded into is current again; if it cannot be, the module is gone with it.
void Release(const Driver& driver, Loaded* loaded, bool is_current);

Module* ModuleOf(const Loaded* loaded);
// Whether its code waits for the launch before; see `OrtkitImage`.
bool Waits(const Loaded* loaded);

}  // namespace ortkit::cuda
