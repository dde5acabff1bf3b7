// Memory between the launches of a run, kept from run to run.
//
// ONNX Runtime has KernelContext_GetScratchBuffer for this, which ends the process where there is not
// enough memory (1.31.1: the exception does not leave it). What its allocator gives otherwise is not
// bound to a stream: given back, it could go to another stream while the launches still run. So it is
// kept for the stream that it was got for, until the node's kernel goes.
#pragma once

#include <cstddef>

#include "cuda_ort.h"

namespace ortkit::cuda {

struct ScratchBlock;

// All zeros is an empty one.
struct ScratchPool {
  ScratchBlock* blocks;
};

// Returns a block of at least `bytes` that nobody else launches with until it is let go of; null with a
// null `*status` where even its entry in the list has no room.
ScratchBlock* HoldScratch(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator,
                          const void* stream, size_t bytes, ort::Status** status);

void* MemoryOf(const ScratchBlock* block);

// May be called while launches with the block still run: what holds it next stands behind them on the
// same stream.
void LetGo(ScratchBlock* block);

// Nothing may run any more.
void FreeScratch(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator);

}  // namespace ortkit::cuda
