// Matrix products by the cuBLAS that ONNX Runtime's provider has loaded.
#pragma once

#include "cuda.h"
#include "run.h"

namespace ortkit::cuda {

// Computes a product on the stream of a run; false where there is no cuBLAS, or it does not take it.
bool MultiplyByLibrary(const Op& op, const ort::KernelContext* context, const OrtkitProduct& product, const Run& run,
                       void* const* scratch);

}  // namespace ortkit::cuda
