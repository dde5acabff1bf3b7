// Launches in a CUDA graph that may begin while the launch before them ends (programmatic dependent
// launch): where both are a library's own, and the second one's code waits for the first.
#pragma once

#include "cuda_driver.h"

namespace ortkit::cuda {

// Whether the next launch on a stream follows the one that `NoteLaunch` recorded, in a graph that is
// captured, with nothing in between.
bool FollowsOwn(const Driver& driver, Stream* stream);

// A launch was captured, if the stream is; its code says early that the next one may begin.
void NoteLaunch(const Driver& driver, Stream* stream);

}  // namespace ortkit::cuda
