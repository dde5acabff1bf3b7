// Memory between the launches of a run, kept from run to run.
//
// ONNX Runtime has KernelContext_GetScratchBuffer for this, which ends the process where there is not
// enough memory (1.31.1: the exception does not leave it). What its allocator gives otherwise is not
// bound to a stream: given back, it could go to another stream while the launches still run. So it is
// kept for the stream that it was got for. All kernels of a session share it, as they run one after the
// other there, until the last of them goes.
#pragma once

#include <cstddef>

#include "cuda_ort.h"

namespace ortkit::cuda {

struct ScratchBlock;
struct ScratchPool;

// Returns the pool of an allocator, by the description that it alone owns; null where there is no room
// for it. Each holder lets go of it once.
ScratchPool* HoldPool(const ort::MemoryInfo* owner);

// With the last holder its blocks go: nothing may run any more.
void LetGoOfPool(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator);

// Returns a block of at least `bytes` that nobody else launches with until it is let go of; null with a
// null `*status` where even its entry in the list has no room. `is_known`: all runs ask for that much.
ScratchBlock* HoldScratch(ScratchPool* pool, const ort::Api* api, ort::Allocator* allocator, const void* stream,
                          size_t bytes, bool is_known, ort::Status** status);

void* MemoryOf(const ScratchBlock* block);

// May be called while launches with the block still run: what holds it next stands behind them on the
// same stream.
void LetGo(ScratchBlock* block);

}  // namespace ortkit::cuda
