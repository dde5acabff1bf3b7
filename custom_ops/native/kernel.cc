// One run of one op: check the inputs, allocate the outputs, cut the work into slices, call.
#include <atomic>
#include <cstdlib>

#include "shim.h"

namespace ortkit {
namespace {

// A slice should outlast what handing it to another thread costs (a few microseconds).
constexpr double kSlicePicoseconds = 16e6;
// Units of single points are cut where full vectors begin.
constexpr int64_t kVector = 64;

struct Run {
  const OrtkitOp* spec;
  int64_t symbols[ORTKIT_MAX_SYMBOLS];  // -1 until an input tells
  char* data[ORTKIT_MAX_TENSORS];
  int64_t units;
  int64_t slice;  // units in one slice, but for the last
  std::atomic<int32_t> failure{0};
};

int64_t Size(const OrtkitExtent& extent, const int64_t* symbols) {
  int64_t size = extent.factor;
  for (int32_t i = 0; i < extent.symbol_count; ++i) size *= symbols[extent.symbols[i]];
  return size;
}

// Tells a symbol from a size it is part of, if it is the only one that is not known yet.
// Returns whether all symbols of `extent` are known now.
bool Solve(const OrtkitExtent& extent, int64_t got, int64_t* symbols) {
  int64_t known = extent.factor;
  int32_t unknown = -1;
  for (int32_t i = 0; i < extent.symbol_count; ++i) {
    const int32_t symbol = extent.symbols[i];
    if (symbols[symbol] >= 0) {
      known *= symbols[symbol];
    } else if (unknown >= 0) {
      return false;
    } else {
      unknown = symbol;
    }
  }
  if (unknown < 0) return true;
  if (known == 0) return false;
  symbols[unknown] = got / known;  // a remainder shows when the size is checked
  return true;
}

ort::Status* CheckDim(const Op& op, const OrtkitTensor& tensor, int32_t axis, int64_t got,
                      const Run& run) {
  const OrtkitExtent& extent = tensor.dims[axis];
  const int64_t want = Size(extent, run.symbols);
  if (got == want) return nullptr;
  if (extent.symbol_count == 0) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has size %lld in dim %d, expected %lld",
                  tensor.name, static_cast<long long>(got), axis, static_cast<long long>(want));
  }
  return Refuse(op, ort::kInvalidArgument,
                "input '%s' has size %lld in dim %d, and '%s' is %lld elsewhere", tensor.name,
                static_cast<long long>(got), axis, op.spec->symbols[extent.symbols[0]],
                static_cast<long long>(run.symbols[extent.symbols[0]]));
}

// Reads shape and place of one input. `*is_known` is cleared if a size could not be checked yet.
ort::Status* ReadInput(const Op& op, ort::KernelContext* context, int32_t index, Run* run,
                       bool* is_known) {
  const OrtkitTensor& tensor = op.spec->tensors[index];
  const ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetInput(op.api)(context, index, &value));
  if (value == nullptr) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' is missing", tensor.name);
  }
  int32_t type = 0;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetTypeAndShapeReference(op.api)(value, &type, &dims, &rank));
  if (type != tensor.element_type) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has element type %d, expected %d",
                  tensor.name, type, tensor.element_type);
  }
  if (rank != static_cast<size_t>(tensor.rank)) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has rank %zu, expected %d", tensor.name,
                  rank, tensor.rank);
  }
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (Solve(tensor.dims[i], dims[i], run->symbols)) {
      ORTKIT_RETURN_IF_ERROR(CheckDim(op, tensor, i, dims[i], *run));
    } else {
      *is_known = false;
    }
  }
  const void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorData(op.api)(value, &data));
  run->data[index] = static_cast<char*>(const_cast<void*>(data));  // kernels only read it
  return nullptr;
}

ort::Status* ReadInputs(const Op& op, ort::KernelContext* context, Run* run) {
  for (int32_t i = 0; i < op.spec->symbol_count; ++i) run->symbols[i] = -1;
  bool is_known = true;
  for (int32_t i = 0; i < op.spec->input_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(ReadInput(op, context, i, run, &is_known));
  }
  if (is_known) return nullptr;
  // A later input may have told what an earlier one needs. What none tells is a factor of an empty
  // size, so that any number does.
  for (int32_t i = 0; i < op.spec->input_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(ReadInput(op, context, i, run, &is_known));
  }
  for (int32_t i = 0; i < op.spec->symbol_count; ++i) {
    if (run->symbols[i] < 0) run->symbols[i] = 0;
  }
  return nullptr;
}

ort::Status* MakeOutput(const Op& op, ort::KernelContext* context, int32_t index, Run* run) {
  const int32_t place = op.spec->input_count + index;
  const OrtkitTensor& tensor = op.spec->tensors[place];
  int64_t dims[ORTKIT_MAX_RANK];
  for (int32_t i = 0; i < tensor.rank; ++i) dims[i] = Size(tensor.dims[i], run->symbols);
  ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetOutput(op.api)(context, index, dims, tensor.rank, &value));
  void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorMutableData(op.api)(value, &data));
  run->data[place] = static_cast<char*>(data);
  return nullptr;
}

// Cuts the work. Returns the number of slices: 0 if there is nothing to compute.
int64_t Plan(Run* run) {
  const OrtkitOp& spec = *run->spec;
  run->units = 1;
  for (int32_t a = 0; a < spec.unit_axis_count; ++a) {
    run->units *= Size(spec.unit_axes[a], run->symbols);
  }
  if (run->units == 0) return 0;
  const int64_t points = Size(spec.unit_points, run->symbols);
  const double unit = static_cast<double>(points) * spec.picoseconds_per_point + 1;
  int64_t slice = static_cast<int64_t>(kSlicePicoseconds / unit) + 1;
  if (points == 1) slice = (slice + kVector - 1) / kVector * kVector;
  run->slice = slice < run->units ? slice : run->units;
  return (run->units + run->slice - 1) / run->slice;
}

void CallSlice(void* user, size_t index) {
  Run& run = *static_cast<Run*>(user);
  const int64_t begin = static_cast<int64_t>(index) * run.slice;
  const int64_t end = begin + run.slice < run.units ? begin + run.slice : run.units;
  const int32_t code = run.spec->call(run.data, run.symbols, begin, end);
  if (code != 0) run.failure.store(code, std::memory_order_relaxed);
}

}  // namespace

// A node's kernel holds nothing but its op.
ort::Status* CreateKernel(const ort::CustomOp* custom_op, const ort::Api* api,
                          const ort::KernelInfo* info, void** kernel) {
  const Op& op = *AsOp(custom_op);
  size_t inputs = 0;
  size_t outputs = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetInputCount(api)(info, &inputs));
  ORTKIT_RETURN_IF_ERROR(ort::GetOutputCount(api)(info, &outputs));
  if (inputs != static_cast<size_t>(op.spec->input_count) ||
      outputs != static_cast<size_t>(op.spec->output_count)) {
    return Refuse(op, ort::kInvalidArgument, "the node has %zu inputs and %zu outputs, expected %d and %d",
                  inputs, outputs, op.spec->input_count, op.spec->output_count);
  }
  *kernel = const_cast<Op*>(&op);
  return nullptr;
}

void DestroyKernel(void*) {}

ort::Status* Compute(void* kernel, ort::KernelContext* context) {
  const Op& op = *static_cast<const Op*>(kernel);
  Run run;
  run.spec = op.spec;
  ORTKIT_RETURN_IF_ERROR(ReadInputs(op, context, &run));
  for (int32_t i = 0; i < op.spec->output_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(MakeOutput(op, context, i, &run));
  }
  const int64_t slices = Plan(&run);
  if (slices == 1) {
    CallSlice(&run, 0);
  } else if (slices > 1) {
    ORTKIT_RETURN_IF_ERROR(ort::ParallelFor(op.api)(context, CallSlice, slices, 0, &run));
  }
  const int32_t code = run.failure.load(std::memory_order_relaxed);
  return code == 0 ? nullptr : Refuse(op, ort::kFail, "the kernel returned %d", code);
}

}  // namespace ortkit
