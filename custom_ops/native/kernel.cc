// One run of one op: check the inputs, allocate the outputs, cut the work into slices, call.
#include <atomic>
#include <cstdio>

#include "shim.h"
#include "sizes.h"

namespace ortkit {
namespace {

// A slice should outlast what handing it to another thread costs (a few microseconds).
constexpr double kSlicePicoseconds = 16e6;
// Units of single points are cut where full vectors begin.
constexpr int64_t kVector = 64;

struct Run {
  const OrtkitOp* spec;
  int64_t symbols[ORTKIT_MAX_SYMBOLS];
  char* data[ORTKIT_MAX_TENSORS];
  bool has_output;  // some output has an element
  int64_t units;
  int64_t slice;    // units in one slice, but for the last
  std::atomic<int32_t> failure{0};
};

// "2*batch*seq" for a message.
void WriteExtent(const Op& op, const OrtkitExtent& extent, char* text, size_t capacity) {
  size_t used = 0;
  if (extent.factor != 1 || extent.symbol_count == 0) {
    used += snprintf(text, capacity, "%lld", static_cast<long long>(extent.factor));
  }
  for (int32_t i = 0; i < extent.symbol_count && used < capacity; ++i) {
    used += snprintf(text + used, capacity - used, used == 0 ? "%s" : "*%s",
                     op.spec->symbols[extent.symbols[i]]);
  }
}

ort::Status* CheckDim(const Op& op, const OrtkitTensor& tensor, int32_t axis, int64_t got,
                      const Run& run) {
  const OrtkitExtent& extent = tensor.dims[axis];
  const int64_t want = SizeOf(extent, run.symbols);
  if (got == want) return nullptr;
  char text[160];
  WriteExtent(op, extent, text, sizeof text);
  const auto size = static_cast<long long>(got);
  if (extent.symbol_count == 0) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has size %lld in dim %d, expected %s",
                  tensor.name, size, axis, text);
  }
  if (want == kUnknown) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has size %lld in dim %d, and '%s' exceeds 63 bits",
                  tensor.name, size, axis, text);
  }
  return Refuse(op, ort::kInvalidArgument, "input '%s' has size %lld in dim %d, and '%s' is %lld elsewhere",
                tensor.name, size, axis, text, static_cast<long long>(want));
}

// Learns and compares the dims of one input. Returns whether all of them are plain (a number or one
// symbol) and right, as nearly always; if not, ReadCarefully says more.
bool ReadPlainDims(const OrtkitTensor& tensor, const int64_t* dims, int64_t* symbols) {
  bool is_right = true;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    const OrtkitExtent& extent = tensor.dims[i];
    if (extent.symbol_count == 0) {
      is_right = is_right && dims[i] == extent.factor;
      continue;
    }
    if (extent.symbol_count != 1 || extent.factor != 1) return false;
    int64_t& symbol = symbols[extent.symbols[0]];
    if (symbol == kUnknown) symbol = dims[i];
    is_right = is_right && symbol == dims[i];
  }
  return is_right;
}

// Reads one input's place and its dims, which stay the runtime's.
ort::Status* ReadInput(const Op& op, ort::KernelContext* context, int32_t index, Run* run,
                       const int64_t** dims) {
  const OrtkitTensor& tensor = op.spec->tensors[index];
  const ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetInput(op.api)(context, index, &value));
  if (value == nullptr) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' is missing", tensor.name);
  }
  int32_t type = 0;
  size_t rank = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetTypeAndShapeReference(op.api)(value, &type, dims, &rank));
  if (type != tensor.element_type) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has element type %d, expected %d",
                  tensor.name, type, tensor.element_type);
  }
  if (rank != static_cast<size_t>(tensor.rank)) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has rank %zu, expected %d", tensor.name,
                  rank, tensor.rank);
  }
  const void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorData(op.api)(value, &data));
  run->data[index] = static_cast<char*>(const_cast<void*>(data));  // kernels only read it
  return nullptr;
}

// Tells the symbols from dims that may be products, and refuses what does not fit.
ort::Status* ReadCarefully(const Op& op, const int64_t* const* dims, Run* run) {
  const OrtkitOp& spec = *op.spec;
  for (int32_t i = 0; i < spec.symbol_count; ++i) run->symbols[i] = kUnknown;
  // Twice, since a later input may tell what an earlier one needs.
  for (int32_t round = 0; round < 2; ++round) {
    for (int32_t i = 0; i < spec.input_count; ++i) {
      const OrtkitTensor& tensor = spec.tensors[i];
      for (int32_t axis = 0; axis < tensor.rank; ++axis) {
        Solve(tensor.dims[axis], dims[i][axis], run->symbols);
      }
    }
  }
  // What none tells is a factor of sizes that are 0, so that any number does.
  for (int32_t i = 0; i < spec.symbol_count; ++i) {
    if (run->symbols[i] == kUnknown) run->symbols[i] = 0;
  }
  for (int32_t i = 0; i < spec.input_count; ++i) {
    for (int32_t axis = 0; axis < spec.tensors[i].rank; ++axis) {
      ORTKIT_RETURN_IF_ERROR(CheckDim(op, spec.tensors[i], axis, dims[i][axis], *run));
    }
  }
  return nullptr;
}

ort::Status* ReadInputs(const Op& op, ort::KernelContext* context, Run* run) {
  const OrtkitOp& spec = *op.spec;
  const int64_t* dims[ORTKIT_MAX_TENSORS];
  for (int32_t i = 0; i < spec.symbol_count; ++i) run->symbols[i] = kUnknown;
  bool is_plain = true;
  for (int32_t i = 0; i < spec.input_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(ReadInput(op, context, i, run, &dims[i]));
    is_plain = is_plain && ReadPlainDims(spec.tensors[i], dims[i], run->symbols);
  }
  return is_plain ? nullptr : ReadCarefully(op, dims, run);
}

ort::Status* MakeOutput(const Op& op, ort::KernelContext* context, int32_t index, Run* run) {
  const int32_t place = op.spec->input_count + index;
  const OrtkitTensor& tensor = op.spec->tensors[place];
  int64_t dims[ORTKIT_MAX_RANK];
  bool is_empty = false;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    dims[i] = SizeOf(tensor.dims[i], run->symbols);
    is_empty = is_empty || dims[i] == 0;
    if (dims[i] == kUnknown) {
      return Refuse(op, ort::kInvalidArgument, "the size of output '%s' in dim %d exceeds 63 bits",
                    tensor.name, i);
    }
  }
  ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetOutput(op.api)(context, index, dims, tensor.rank, &value));
  void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorMutableData(op.api)(value, &data));
  run->data[place] = static_cast<char*>(data);
  run->has_output = run->has_output || !is_empty;
  return nullptr;
}

// The units of the work; 0 if there is nothing to compute, kUnknown if they exceed 63 bits.
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

// The units of one slice, by their cost.
int64_t UnitsOfSlice(const Run& run) {
  const int64_t points = SizeOf(run.spec->unit_points, run.symbols);
  const double unit = static_cast<double>(points) * run.spec->picoseconds_per_point + 1;
  if (unit * static_cast<double>(run.units) <= kSlicePicoseconds) return run.units;
  int64_t slice = static_cast<int64_t>(kSlicePicoseconds / unit) + 1;
  if (points == 1 && slice > kVector) slice = (slice + kVector - 1) / kVector * kVector;
  return slice < run.units ? slice : run.units;
}

void CallSlice(void* user, size_t index) {
  Run& run = *static_cast<Run*>(user);
  const int64_t begin = static_cast<int64_t>(index) * run.slice;
  const int64_t left = run.units - begin;
  const int64_t count = left < run.slice ? left : run.slice;
  const int32_t code = run.spec->call(run.data, run.symbols, begin, begin + count);
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
  run.has_output = false;
  ORTKIT_RETURN_IF_ERROR(ReadInputs(op, context, &run));
  for (int32_t i = 0; i < op.spec->output_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(MakeOutput(op, context, i, &run));
  }
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
  return code == 0 ? nullptr : Refuse(op, ort::kFail, "the kernel returned %d", code);
}

}  // namespace ortkit
