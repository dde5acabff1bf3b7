// A kernel for the CPU: cut the work into slices, call.
#include "run.h"
#include "slices.h"

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

inline __attribute__((always_inline)) ort::Status* ComputeUnits(const Op& op, ort::KernelContext* context,
                                                                Run& run) {
  // Units without elements may be many: 2^40 rows of none.
  const int64_t units = run.has_output ? CountUnits(run) : 0;
  if (units == 0) return nullptr;
  if (units == kUnknown) return Refuse(op, ort::kInvalidArgument, "the work exceeds 63 bits");
  const OrtkitOp& spec = *run.spec;
  const OrtkitUnitCost cost = {SizeOf(spec.unit_points, run.symbols), spec.picoseconds_per_point,
                               spec.shared_nanoseconds, spec.slice_picoseconds};
  OrtkitSlices work = {spec.call, run.data, run.symbols, units, 0, 0, 0};
  OrtkitTask task = nullptr;
  const size_t tasks = OrtkitCutWork(&work, &cost, &task);
  if (tasks == 1) {
    task(&work, 0);
  } else {
    ORTKIT_RETURN_IF_ERROR(ort::ParallelFor(op.api)(context, task, tasks, 0, &work));
  }
  const int32_t code = work.failure;
  if (code == 0) return nullptr;
  if (run.spec->value_size_count != 0 || run.spec->counts_rows != 0) {  // it reads lengths or limits too
    return Refuse(op, ort::kInvalidArgument, "values and sizes of its inputs do not fit each other (%d)", code);
  }
  return Refuse(op, ort::kFail, "the kernel returned %d", code);
}

// In its callers, so that one without places does not ask for them.
inline __attribute__((always_inline)) ort::Status* Compute(const Op& op, ort::KernelContext* context,
                                                           const Places& places) {
  Run run;
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

ort::Status* RunUnits(const Op& op, ort::KernelContext* context, Run* run) {
  return ComputeUnits(op, context, *run);
}

}  // namespace ortkit
