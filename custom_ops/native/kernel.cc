// A kernel for the CPU: cut the work into slices, call.
#include <unistd.h>

#include "run.h"

namespace ortkit {

int64_t CountUnits(const Run& run) {
  int64_t units = 1;
  bool is_too_large = false;
  for (int32_t i = 0; i < run.spec->unit_axis_count; ++i) {
    const int64_t size = SizeOf(run.spec->unit_axes[i], run.symbols);
    if (size == 0) return 0;
    is_too_large = is_too_large || size == kUnknown || __builtin_mul_overflow(units, size, &units);
  }
  return is_too_large ? kUnknown : units;
}

namespace {

// A slice should outlast what handing it to another thread costs (a few microseconds).
constexpr double kSlicePicoseconds = 16e6;
// Units of single points are cut where full vectors begin.
constexpr int64_t kVector = 64;

// A slice should take this many times what each slice does in addition to its units.
constexpr double kSliceShare = 4;

// Slices of a kernel whose slices do some work each, for each core: others may be late.
constexpr int64_t kSlicesPerCore = 2;

// The cores of this machine that are online; asked for once, as that reads a file.
int64_t Cores() {
  static std::atomic<int64_t> known{0};
  int64_t count = known.load(std::memory_order_relaxed);
  if (count == 0) {
    const int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
    count = online > 0 ? online : 1;
    known.store(count, std::memory_order_relaxed);
  }
  return count;
}

// Units in slices that are no smaller, of about equal size, and no more than the cores need.
int64_t EvenSlice(int64_t units, int64_t slice) {
  const int64_t cores = Cores();
  int64_t slices = (units - 1) / slice + 1;
  if (slices > kSlicesPerCore * cores) slices = kSlicesPerCore * cores;
  if (slices > cores) slices -= slices % cores;
  return (units - 1) / slices + 1;
}

// The units of one slice, by their cost.
int64_t UnitsOfSlice(const CpuRun& run) {
  const int64_t points = SizeOf(run.spec->unit_points, run.symbols);
  const double extra = kSliceShare * static_cast<double>(points) * run.spec->slice_picoseconds;
  const double least = extra > kSlicePicoseconds ? extra : kSlicePicoseconds;
  const double shared = run.spec->shared_nanoseconds * 1e3 / static_cast<double>(run.units);
  const double unit = static_cast<double>(points) * run.spec->picoseconds_per_point + shared + 1;
  if (unit * static_cast<double>(run.units) <= least) return run.units;
  int64_t slice = static_cast<int64_t>(least / unit) + 1;
  if (run.spec->slice_picoseconds != 0) return EvenSlice(run.units, slice);
  if (points == 1 && slice > kVector) slice = (slice + kVector - 1) / kVector * kVector;
  return slice < run.units ? slice : run.units;
}

void CallSlice(void* user, size_t index) {
  CpuRun& run = *static_cast<CpuRun*>(user);
  const int64_t begin = static_cast<int64_t>(index) * run.slice;
  const int64_t left = run.units - begin;
  const int64_t count = left < run.slice ? left : run.slice;
  const int32_t code = run.spec->call(run.data, run.symbols, begin, begin + count);
  if (code != 0) run.failure.store(code, std::memory_order_relaxed);
}

inline __attribute__((always_inline)) ort::Status* ComputeUnits(const Op& op, ort::KernelContext* context,
                                                                CpuRun& run) {
  // Units without elements may be many: 2^40 rows of none.
  run.units = run.has_output ? CountUnits(run) : 0;
  if (run.units == 0) return nullptr;
  if (run.units == kUnknown) return Refuse(op, ort::kInvalidArgument, "the work exceeds 63 bits");
  run.slice = UnitsOfSlice(run);
  if (run.slice == run.units) {
    CallSlice(&run, 0);
  } else {
    const int64_t slices = (run.units - 1) / run.slice + 1;
    ORTKIT_RETURN_IF_ERROR(ort::ParallelFor(op.api)(context, CallSlice, slices, 0, &run));
  }
  const int32_t code = run.failure.load(std::memory_order_relaxed);
  if (code == 0) return nullptr;
  if (run.spec->value_size_count != 0) {  // it reads lengths too
    return Refuse(op, ort::kInvalidArgument, "lengths and sizes of its inputs do not fit each other (%d)", code);
  }
  return Refuse(op, ort::kFail, "the kernel returned %d", code);
}

// In its callers, so that one without places does not ask for them.
inline __attribute__((always_inline)) ort::Status* Compute(const Op& op, ort::KernelContext* context,
                                                           const Places& places) {
  CpuRun run;
  ORTKIT_RETURN_IF_ERROR(ReadInputs(op, context, &run, places));
  ORTKIT_RETURN_IF_ERROR(MakeOutputs(op, context, &run, places));
  return ComputeUnits(op, context, run);
}

}  // namespace

// A node's kernel holds nothing but its op.
ort::Status* CreateKernel(const ort::CustomOp* custom_op, const ort::Api*,
                          const ort::KernelInfo* info, void** kernel) {
  const Op& op = *AsOp(custom_op);
  ORTKIT_RETURN_IF_ERROR(CheckCounts(op, info));
  *kernel = const_cast<Op*>(&op);
  return nullptr;
}

void DestroyKernel(void*) {}

ort::Status* Compute(void* kernel, ort::KernelContext* context) {
  return Compute(*static_cast<const Op*>(kernel), context, Places{});
}

ort::Status* ComputeAt(const Op& op, ort::KernelContext* context, const Places& places) {
  return Compute(op, context, places);
}

ort::Status* RunUnits(const Op& op, ort::KernelContext* context, CpuRun* run) {
  return ComputeUnits(op, context, *run);
}

}  // namespace ortkit
