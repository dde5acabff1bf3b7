// A run on CUDA: choose the variant, get scratch memory, launch its steps on the run's stream.
#include <cstring>

#include "cuda.h"
#include "cuda_blas.h"
#include "cuda_capture.h"
#include "cuda_maps.h"
#include "run.h"

namespace ortkit::cuda {
namespace {

constexpr uintptr_t kAlignment = 16;
// What CUDA launches at most, along each axis of the grid.
constexpr int64_t kMaxBlocks[] = {INT32_MAX, 65535, 65535};

bool IsAligned(const char* data, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

int32_t TensorCount(const OrtkitOp& spec) { return spec.input_count + spec.output_count; }

// The first tensor that does not begin at a multiple of 16 bytes, or null.
const OrtkitTensor* FirstUnaligned(const Run& run) {
  for (int32_t i = 0; i < TensorCount(*run.spec); ++i) {
    if (!IsAligned(run.data[i], kAlignment)) return &run.spec->tensors[i];
  }
  return nullptr;
}

ort::Status* CheckElements(const Op& op, const Run& run) {
  for (int32_t i = 0; i < TensorCount(*run.spec); ++i) {
    const OrtkitTensor& tensor = run.spec->tensors[i];
    if (IsAligned(run.data[i], ElementBytes(tensor.element_type))) continue;
    return Refuse(op, ort::kInvalidArgument, "tensor '%s' begins at an address that is no multiple of its elements' size",
                  tensor.name);
  }
  return nullptr;
}

bool Holds(const OrtkitCondition& condition, const Run& run) {
  const int64_t size = SizeOf(condition.extent, run.symbols);
  return size != kUnknown && size <= condition.at_most && size % condition.divisible_by == 0;
}

bool AllHold(const OrtkitVariant& variant, const Run& run) {
  for (int32_t i = 0; i < variant.condition_count; ++i) {
    if (!Holds(variant.conditions[i], run)) return false;
  }
  return true;
}

bool HasMaps(const OrtkitVariant& variant, const Run& run) {
  for (int32_t i = 0; i < variant.step_count; ++i) {
    const OrtkitStep& step = variant.steps[i];
    for (int32_t j = 0; j < step.map_count; ++j) {
      if (!HasElements(step.maps[j], run)) return false;
    }
  }
  return true;
}

ort::Status* ChooseVariant(const Kernel& kernel, const Run& run, int32_t* chosen) {
  const Op& op = *kernel.op;
  const OrtkitCudaKernel& spec = *run.spec->cuda;
  const OrtkitTensor* unaligned = FirstUnaligned(run);
  if (unaligned != nullptr) ORTKIT_RETURN_IF_ERROR(CheckElements(op, run));
  bool is_alignment_missing = false;
  for (int32_t i = 0; i < spec.variant_count; ++i) {
    if (!kernel.is_usable[i] || !AllHold(spec.variants[i], run) || !HasMaps(spec.variants[i], run)) continue;
    if (spec.variants[i].is_aligned && unaligned != nullptr) {
      is_alignment_missing = true;
      continue;
    }
    *chosen = i;
    return nullptr;
  }
  if (is_alignment_missing) {
    return Refuse(op, ort::kInvalidArgument, "tensor '%s' begins at an address that is no multiple of 16",
                  unaligned->name);
  }
  return Refuse(op, ort::kInvalidArgument, "its CUDA kernel does not take tensors of these sizes");
}

// What a launch gets: the values, and where each is.
struct Parameters {
  TensorMap maps[ORTKIT_MAX_CUDA_MAPS];
  uint64_t values[ORTKIT_MAX_CUDA_ARGUMENTS];
  void* places[ORTKIT_MAX_CUDA_ARGUMENTS];
};

ort::Status* WriteMaps(const Kernel& kernel, const OrtkitStep& step, const Run& run, void* const* scratch,
                       TensorMap* maps) {
  for (int32_t i = 0; i < step.map_count; ++i) {
    const Result result = EncodeMap(*kernel.driver, step.maps[i], run, scratch, &maps[i]);
    if (result != 0) return Fail(*kernel.op, *kernel.driver, "cuTensorMapEncodeTiled", result);
  }
  return nullptr;
}

ort::Status* WriteParameters(const Kernel& kernel, const OrtkitStep& step, const Run& run,
                             void* const* scratch, Parameters* parameters) {
  const Op& op = *kernel.op;
  ORTKIT_RETURN_IF_ERROR(WriteMaps(kernel, step, run, scratch, parameters->maps));
  for (int32_t i = 0; i < step.argument_count; ++i) {
    const OrtkitArgument& argument = step.arguments[i];
    uint64_t& value = parameters->values[i];
    parameters->places[i] = &value;
    value = 0;
    if (argument.kind == ORTKIT_ARGUMENT_TENSOR) {
      value = reinterpret_cast<uintptr_t>(run.data[argument.index]);
    } else if (argument.kind == ORTKIT_ARGUMENT_SCRATCH) {
      value = reinterpret_cast<uintptr_t>(scratch[argument.index]);
    } else if (argument.kind == ORTKIT_ARGUMENT_NUMBER) {
      memcpy(&value, run.data[argument.index], sizeof value);
    } else if (argument.kind == ORTKIT_ARGUMENT_MAP) {
      parameters->places[i] = &parameters->maps[argument.index];
    } else if (argument.kind != ORTKIT_ARGUMENT_NULL) {
      const int64_t size = SizeOf(argument.extent, run.symbols);
      if (size == kUnknown) return Refuse(op, ort::kInvalidArgument, "a size exceeds 63 bits");
      if (argument.kind == ORTKIT_ARGUMENT_SIZE32 && size > INT32_MAX) {
        return Refuse(op, ort::kInvalidArgument, "a size of %lld exceeds the 32 bits that its CUDA kernel has for it",
                      static_cast<long long>(size));
      }
      value = static_cast<uint64_t>(size);  // the low half is an int32_t: CUDA's hosts are little-endian
    }
  }
  return nullptr;
}

// Blocks along each axis; 0 along one if there is nothing to launch.
ort::Status* CountBlocks(const Op& op, const OrtkitStep& step, const Run& run, uint32_t* blocks) {
  for (int32_t axis = 0; axis < 3; ++axis) {
    const int64_t size = SizeOf(step.grid[axis].extent, run.symbols);
    if (size == kUnknown) return Refuse(op, ort::kInvalidArgument, "a size exceeds 63 bits");
    const int64_t count = size == 0 ? 0 : (size - 1) / step.grid[axis].divisor + 1;
    if (count > kMaxBlocks[axis]) {
      return Refuse(op, ort::kInvalidArgument, "its CUDA kernel would need %lld blocks along axis %d, and %lld are the most",
                    static_cast<long long>(count), axis, static_cast<long long>(kMaxBlocks[axis]));
    }
    blocks[axis] = static_cast<uint32_t>(count);
  }
  return nullptr;
}

// Launches, if it can be while the launch before ends.
Result Launched(const Driver& driver, const Launch& launch, const uint32_t* blocks, const OrtkitStep& step,
                Stream* stream, void** parameters) {
  const bool waits = Waits(launch.loaded);
  const uint32_t threads = step.threads, shared_bytes = step.shared_bytes;
  Result result = 0;
  if (waits && FollowsOwn(driver, stream)) {
    const LaunchAttribute early = {kMayBeginEarly, 0, {1}};
    const LaunchConfig config = {{blocks[0], blocks[1], blocks[2]}, {threads, 1, 1}, shared_bytes, stream, &early, 1};
    result = driver.LaunchWith(&config, launch.function, parameters, nullptr);
  } else {
    result = driver.Launch(launch.function, blocks[0], blocks[1], blocks[2], threads, 1, 1, shared_bytes, stream,
                           parameters, nullptr);
  }
  if (waits && result == 0) NoteLaunch(driver, stream);
  return result;
}

ort::Status* RunStep(const Kernel& kernel, const OrtkitStep& step, const Launch& launch, const Run& run,
                     void* const* scratch, Stream* stream) {
  const Op& op = *kernel.op;
  uint32_t blocks[3];
  ORTKIT_RETURN_IF_ERROR(CountBlocks(op, step, run, blocks));
  if (blocks[0] == 0 || blocks[1] == 0 || blocks[2] == 0) return nullptr;
  Parameters parameters;
  ORTKIT_RETURN_IF_ERROR(WriteParameters(kernel, step, run, scratch, &parameters));
  const Result result = Launched(*kernel.driver, launch, blocks, step, stream, parameters.places);
  return result == 0 ? nullptr : Fail(op, *kernel.driver, "cuLaunchKernel", result);
}

ort::Status* RunSteps(const Kernel& kernel, ort::KernelContext* context, int32_t index, const Run& run,
                      void* const* scratch, Stream* stream) {
  const OrtkitVariant& variant = run.spec->cuda->variants[index];
  const ContextGuard guard(*kernel.driver, kernel.context);
  if (guard.result() != 0) return Fail(*kernel.op, *kernel.driver, "cuCtxPushCurrent", guard.result());
  for (int32_t i = 0; i < variant.step_count; ++i) {
    const OrtkitProduct* product = variant.steps[i].product;
    if (product != nullptr && MultiplyByLibrary(*kernel.op, context, *product, run, scratch)) continue;
    const Launch& launch = kernel.launches[index][i];
    ORTKIT_RETURN_IF_ERROR(RunStep(kernel, variant.steps[i], launch, run, scratch, stream));
  }
  return nullptr;
}

// Blocks that a run launches with, let go of at its end.
class Scratch {
 public:
  ~Scratch() {
    for (ScratchBlock* block : blocks_) LetGo(block);
  }

  ort::Status* Hold(Kernel* kernel, const OrtkitVariant& variant, const Run& run, const void* stream) {
    const Op& op = *kernel->op;
    for (int32_t i = 0; i < variant.scratch_count; ++i) {
      const int64_t bytes = SizeOf(variant.scratch[i], run.symbols);
      if (bytes == kUnknown) return Refuse(op, ort::kInvalidArgument, "a size exceeds 63 bits");
      if (bytes <= 0) continue;
      ort::Status* status = nullptr;
      const bool is_known = variant.scratch[i].symbol_count == 0;
      blocks_[i] = HoldScratch(kernel->scratch, op.api, kernel->allocator, stream, bytes, is_known, &status);
      if (status != nullptr) return status;
      if (blocks_[i] == nullptr) return Refuse(op, ort::kFail, "out of memory");
      memory_[i] = MemoryOf(blocks_[i]);
    }
    return nullptr;
  }

  void* const* memory() const { return memory_; }

 private:
  ScratchBlock* blocks_[ORTKIT_MAX_CUDA_SCRATCH] = {};
  void* memory_[ORTKIT_MAX_CUDA_SCRATCH] = {};
};

}  // namespace

ort::Status* Compute(void* made, ort::KernelContext* context) {
  Kernel& kernel = *static_cast<Kernel*>(made);
  const Op& op = *kernel.op;
  const NvtxRange range(op.spec->op_type);
  Run run;
  ORTKIT_RETURN_IF_ERROR(ReadInputs(op, context, &run));
  ORTKIT_RETURN_IF_ERROR(MakeOutputs(op, context, &run));
  return LaunchRun(&kernel, context, run);
}

ort::Status* LaunchRun(Kernel* made, ort::KernelContext* context, const Run& run) {
  Kernel& kernel = *made;
  const Op& op = *kernel.op;
  if (!run.has_output) return nullptr;
  int32_t index = 0;
  ORTKIT_RETURN_IF_ERROR(ChooseVariant(kernel, run, &index));
  void* stream = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetGpuComputeStream(op.api)(context, &stream));
  Scratch scratch;
  ORTKIT_RETURN_IF_ERROR(scratch.Hold(&kernel, run.spec->cuda->variants[index], run, stream));
  return RunSteps(kernel, context, index, run, scratch.memory(), static_cast<Stream*>(stream));
}

}  // namespace ortkit::cuda
