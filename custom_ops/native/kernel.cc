// One run of one op: check the inputs, allocate the outputs, cut the rows into slices, call.
#include <atomic>
#include <cstdlib>

#include "shim.h"

namespace ortkit {
namespace {

// A slice should outlast what handing it to another thread costs (a few microseconds).
constexpr double kSliceNanoseconds = 16000;
// One core: streaming 16 bytes a nanosecond; 32 simple vector operations a nanosecond.
constexpr double kNanosecondsPerByte = 1.0 / 16;
constexpr double kNanosecondsPerFlop = 1.0 / 32;
// Slices of single points start where full vectors do.
constexpr int64_t kVector = 16;

// One tensor's place in memory, and how far each axis moves it, in bytes.
struct Placed {
  char* data;
  int64_t steps[ORTKIT_MAX_AXES];
};

struct Run {
  const OrtkitOp* spec;
  int64_t symbols[ORTKIT_MAX_SYMBOLS];  // -1 until an input tells
  int64_t sizes[ORTKIT_MAX_AXES];
  Placed tensors[ORTKIT_MAX_TENSORS];
  int32_t outer_axes;  // axes that the shim walks
  int64_t rows;
  int64_t columns;
  int64_t slice_rows;
  int64_t slices;      // of one block of rows
  std::atomic<int32_t> failure{0};
};

ort::Status* CheckDim(const Op& op, const OrtkitTensor& tensor, int32_t axis, int64_t got, Run* run) {
  int64_t want = tensor.dims[axis];
  if (want < 0) {
    const int64_t symbol = -1 - want;
    if (run->symbols[symbol] < 0) run->symbols[symbol] = got;
    want = run->symbols[symbol];
    if (got != want) {
      return Refuse(op, ort::kInvalidArgument,
                    "input '%s' has size %lld in dim %d, and '%s' is %lld elsewhere", tensor.name,
                    static_cast<long long>(got), axis, op.spec->symbols[symbol],
                    static_cast<long long>(want));
    }
  }
  if (got == want) return nullptr;
  return Refuse(op, ort::kInvalidArgument, "input '%s' has size %lld in dim %d, expected %lld",
                tensor.name, static_cast<long long>(got), axis, static_cast<long long>(want));
}

ort::Status* ReadInput(const Op& op, ort::KernelContext* context, int32_t index, Run* run) {
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
    ORTKIT_RETURN_IF_ERROR(CheckDim(op, tensor, i, dims[i], run));
  }
  const void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorData(op.api)(value, &data));
  run->tensors[index].data = static_cast<char*>(const_cast<void*>(data));  // kernels only read it
  return nullptr;
}

ort::Status* MakeOutput(const Op& op, ort::KernelContext* context, int32_t index, Run* run) {
  const int32_t place = op.spec->input_count + index;
  const OrtkitTensor& tensor = op.spec->tensors[place];
  int64_t dims[ORTKIT_MAX_RANK];
  for (int32_t i = 0; i < tensor.rank; ++i) {
    dims[i] = tensor.dims[i] < 0 ? run->symbols[-1 - tensor.dims[i]] : tensor.dims[i];
  }
  ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetOutput(op.api)(context, index, dims, tensor.rank, &value));
  void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorMutableData(op.api)(value, &data));
  run->tensors[place].data = static_cast<char*>(data);
  return nullptr;
}

int64_t AxisSize(const OrtkitAxis& axis, const Run& run) {
  int64_t size = axis.size;
  for (int32_t i = 0; i < axis.symbol_count; ++i) size *= run.symbols[axis.symbols[i]];
  return size;
}

// Dense row-major steps over the axes that a tensor has; 0 over those it shares.
void PlaceTensors(Run* run) {
  const OrtkitOp& spec = *run->spec;
  for (int32_t t = 0; t < spec.input_count + spec.output_count; ++t) {
    int64_t step = spec.tensors[t].element_bytes;
    for (int32_t a = spec.axis_count - 1; a >= 0; --a) {
      const bool moves = spec.moves[t * spec.axis_count + a] != 0;
      run->tensors[t].steps[a] = moves ? step : 0;
      if (moves) step *= run->sizes[a];
    }
  }
}

// Lays the run out over its axes. Returns the number of slices: 0 if there is nothing to compute.
int64_t Plan(Run* run) {
  const OrtkitOp& spec = *run->spec;
  const bool is_flat = spec.axis_count == 1;
  run->outer_axes = is_flat ? 0 : spec.axis_count - 2;
  int64_t blocks = 1;
  for (int32_t a = 0; a < spec.axis_count; ++a) {
    run->sizes[a] = AxisSize(spec.axes[a], *run);
    if (run->sizes[a] == 0) return 0;
    if (a < run->outer_axes) blocks *= run->sizes[a];
  }
  PlaceTensors(run);
  run->rows = run->sizes[run->outer_axes];
  run->columns = is_flat ? 1 : run->sizes[run->outer_axes + 1];
  const double point = spec.bytes_per_point * kNanosecondsPerByte +
                       spec.flops_per_point * kNanosecondsPerFlop;
  const double row = point * static_cast<double>(run->columns);
  int64_t slice = static_cast<int64_t>(kSliceNanoseconds / (row > 1e-3 ? row : 1e-3)) + 1;
  if (is_flat) slice = (slice + kVector - 1) / kVector * kVector;
  run->slice_rows = slice < run->rows ? slice : run->rows;
  run->slices = (run->rows + run->slice_rows - 1) / run->slice_rows;
  return blocks * run->slices;
}

void CallSlice(void* user, size_t index) {
  Run& run = *static_cast<Run*>(user);
  const int64_t first = static_cast<int64_t>(index) % run.slices * run.slice_rows;
  const int64_t left = run.rows - first;
  const int32_t tensors = run.spec->input_count + run.spec->output_count;
  char* data[ORTKIT_MAX_TENSORS];
  for (int32_t t = 0; t < tensors; ++t) {
    data[t] = run.tensors[t].data + first * run.tensors[t].steps[run.outer_axes];
  }
  int64_t block = static_cast<int64_t>(index) / run.slices;
  for (int32_t a = run.outer_axes - 1; a >= 0; --a) {
    const int64_t at = block % run.sizes[a];
    block /= run.sizes[a];
    for (int32_t t = 0; t < tensors; ++t) data[t] += at * run.tensors[t].steps[a];
  }
  const int32_t code =
      run.spec->call(data, left < run.slice_rows ? left : run.slice_rows, run.columns);
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
  for (int32_t i = 0; i < op.spec->symbol_count; ++i) run.symbols[i] = -1;
  for (int32_t i = 0; i < op.spec->input_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(ReadInput(op, context, i, &run));
  }
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
