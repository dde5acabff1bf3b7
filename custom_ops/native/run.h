// One run of one op, whatever it runs on: check the inputs, make the outputs.
//
// In a header, as a call on the CPU costs some 230 ns, of which calls into another file were 5 to 8.
#pragma once

#include <cstdio>

#include "shim.h"
#include "sizes.h"

namespace ortkit {

// Bytes of an ONNX TensorProto.DataType.
inline uintptr_t ElementBytes(int32_t type) {
  switch (type) {
    case 1: case 6: case 12: return 4;            // float, int32, uint32
    case 7: case 11: case 13: return 8;           // int64, double, uint64
    case 4: case 5: case 10: case 16: return 2;   // uint16, int16, float16, bfloat16
    default: return 1;
  }
}

// Which of its node's inputs and outputs an op's are; null: the same.
struct Places {
  const int32_t* inputs = nullptr;
  const int32_t* outputs = nullptr;

  size_t Input(int32_t index) const { return inputs == nullptr ? index : inputs[index]; }
  size_t Output(int32_t index) const { return outputs == nullptr ? index : outputs[index]; }
};

// kernel.cc: a run of the kernel for the CPU in a node that was made for several ops.
ort::Status* ComputeAt(const Op& op, ort::KernelContext* context, const Places& places);

struct Run {
  const OrtkitOp* spec;
  int64_t symbols[ORTKIT_MAX_SYMBOLS];
  char* data[ORTKIT_MAX_TENSORS];  // inputs, then outputs
  bool has_output;                 // some output has an element
};

// kernel.cc: the units of the work; 0 if there is nothing to compute, kUnknown if they exceed 63 bits.
int64_t CountUnits(const Run& run);
// Computes what was read, once the outputs are made.
ort::Status* RunUnits(const Op& op, ort::KernelContext* context, Run* run);

// "2*batch*seq" for a message.
inline void WriteExtent(const Op& op, const OrtkitExtent& extent, char* text, size_t capacity) {
  size_t used = 0;
  if (extent.factor != 1 || extent.symbol_count == 0) {
    used += snprintf(text, capacity, "%lld", static_cast<long long>(extent.factor));
  }
  for (int32_t i = 0; i < extent.symbol_count && used < capacity; ++i) {
    used += snprintf(text + used, capacity - used, used == 0 ? "%s" : "*%s",
                     op.spec->symbols[extent.symbols[i]]);
  }
}

inline ort::Status* CheckDim(const Op& op, const OrtkitTensor& tensor, int32_t axis, int64_t got,
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
inline bool ReadPlainDims(const OrtkitTensor& tensor, const int64_t* dims, int64_t* symbols) {
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

// The dims of a number.
constexpr int64_t kOfNumber[] = {1};

// Whether an input is a number that sizes follow from. Such a one may be a scalar or a vector of one
// element, whatever the model says, as ONNX Runtime's own operators have it.
inline bool IsSizeNumber(const OrtkitOp& spec, int32_t index, size_t rank, const int64_t* dims) {
  if (rank > 1 || (rank == 1 && dims[0] != 1)) return false;
  for (int32_t i = 0; i < spec.value_size_count; ++i) {
    if (spec.value_sizes[i].tensor == index) return true;
  }
  return false;
}

// Reads a value's place and its dims, which stay the runtime's.
inline ort::Status* ReadValue(const Op& op, int32_t index, const ort::Value* value, Run* run,
                              const int64_t** dims) {
  const OrtkitTensor& tensor = op.spec->tensors[index];
  int32_t type = 0;
  size_t rank = 0;
  ORTKIT_RETURN_IF_ERROR(ort::GetTypeAndShapeReference(op.api)(value, &type, dims, &rank));
  if (type != tensor.element_type) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' has element type %d, expected %d",
                  tensor.name, type, tensor.element_type);
  }
  if (rank != static_cast<size_t>(tensor.rank)) {
    if (!IsSizeNumber(*op.spec, index, rank, *dims)) {
      return Refuse(op, ort::kInvalidArgument, "input '%s' has rank %zu, expected %d", tensor.name,
                    rank, tensor.rank);
    }
    *dims = kOfNumber;
  }
  const void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorData(op.api)(value, &data));
  run->data[index] = static_cast<char*>(const_cast<void*>(data));  // kernels only read it
  return nullptr;
}

inline ort::Status* ReadInput(const Op& op, ort::KernelContext* context, int32_t index, Run* run,
                              const int64_t** dims, const Places& places) {
  const ort::Value* value = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetInput(op.api)(context, places.Input(index), &value));
  if (value == nullptr) {
    return Refuse(op, ort::kInvalidArgument, "input '%s' is missing", op.spec->tensors[index].name);
  }
  return ReadValue(op, index, value, run, dims);
}

// Tells the symbols from dims that may be products, and refuses what does not fit.
inline ort::Status* ReadCarefully(const Op& op, const int64_t* const* dims, Run* run) {
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

inline ort::Status* MakeOutput(const Op& op, ort::KernelContext* context, int32_t index, Run* run,
                               const Places& places) {
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
  const size_t output = places.Output(index);
  ORTKIT_RETURN_IF_ERROR(ort::GetOutput(op.api)(context, output, dims, tensor.rank, &value));
  void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorMutableData(op.api)(value, &data));
  run->data[place] = static_cast<char*>(data);
  run->has_output = run->has_output || !is_empty;
  return nullptr;
}

// Tells the symbols that follow from the values of inputs.
inline void ReadValueSizes(Run* run) {
  const OrtkitOp& spec = *run->spec;
  for (int32_t i = 0; i < spec.value_size_count; ++i) {
    const OrtkitValueSize& one = spec.value_sizes[i];
    const int64_t least = SizeOf(one.least, run->symbols);
    const int64_t value = *reinterpret_cast<const int32_t*>(run->data[one.tensor]);
    run->symbols[one.symbol] = value > least ? value : least;
  }
}

// Checks the inputs and tells the symbols from them. Tensors without elements may have no address.
inline ort::Status* ReadInputs(const Op& op, ort::KernelContext* context, Run* run,
                               const Places& places = {}) {
  const OrtkitOp& spec = *op.spec;
  run->spec = &spec;
  run->has_output = false;
  const int64_t* dims[ORTKIT_MAX_TENSORS];
  for (int32_t i = 0; i < spec.symbol_count; ++i) run->symbols[i] = kUnknown;
  bool is_plain = true;
  for (int32_t i = 0; i < spec.input_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(ReadInput(op, context, i, run, &dims[i], places));
    is_plain = is_plain && ReadPlainDims(spec.tensors[i], dims[i], run->symbols);
  }
  if (!is_plain) ORTKIT_RETURN_IF_ERROR(ReadCarefully(op, dims, run));
  ReadValueSizes(run);
  return nullptr;
}

// Makes the outputs, of the sizes that the inputs told.
inline ort::Status* MakeOutputs(const Op& op, ort::KernelContext* context, Run* run,
                                const Places& places = {}) {
  for (int32_t i = 0; i < op.spec->output_count; ++i) {
    ORTKIT_RETURN_IF_ERROR(MakeOutput(op, context, i, run, places));
  }
  return nullptr;
}

}  // namespace ortkit
