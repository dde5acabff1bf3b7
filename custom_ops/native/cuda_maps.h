// Tensors as the device's copies of boxes see them.
#pragma once

#include "cuda_driver.h"
#include "run.h"

namespace ortkit::cuda {

// CUDA's description of a tensor, a parameter of a launch.
struct alignas(64) TensorMap {
  uint8_t bytes[128];
};

// Whether there is something to be described: of nothing there are no maps.
bool HasElements(const OrtkitTensorMap& spec, const Run& run);

// Describes a tensor of a run that has elements, or a block of scratch memory. What the driver does not
// take is an invalid value.
Result EncodeMap(const Driver& driver, const OrtkitTensorMap& spec, const Run& run, void* const* scratch,
                 TensorMap* map);

}  // namespace ortkit::cuda
