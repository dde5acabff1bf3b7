// Kernels for the CPU whose units find rows, as many as there are: the output is made when all are counted.
#include <cstdlib>
#include <cstring>

#include "run.h"

namespace ortkit {
namespace {

// The rows of all units.
struct Found {
  OrtkitRows* rows = nullptr;
  int64_t units = 0;

  ~Found() {
    for (int64_t i = 0; rows != nullptr && i < units; ++i) free(rows[i].data);
    free(rows);
  }
};

// Bytes of a row: of all dims of the output but the first. kUnknown if they exceed 63 bits.
int64_t RowBytes(const OrtkitTensor& tensor, const Run& run) {
  int64_t bytes = static_cast<int64_t>(ElementBytes(tensor.element_type));
  for (int32_t i = 1; i < tensor.rank; ++i) {
    const int64_t size = SizeOf(tensor.dims[i], run.symbols);
    if (size == kUnknown || __builtin_mul_overflow(bytes, size, &bytes)) return kUnknown;
  }
  return bytes;
}

// Makes the output and copies the rows into it.
ort::Status* WriteRows(const Op& op, ort::KernelContext* context, const Run& run, const Found& found) {
  const OrtkitTensor& tensor = run.spec->tensors[run.spec->input_count];
  int64_t dims[ORTKIT_MAX_RANK] = {0};
  for (int64_t i = 0; i < found.units; ++i) dims[0] += found.rows[i].count;
  for (int32_t i = 1; i < tensor.rank; ++i) dims[i] = SizeOf(tensor.dims[i], run.symbols);
  const int64_t row = RowBytes(tensor, run);
  if (row == kUnknown) return Refuse(op, ort::kInvalidArgument, "a row of its output exceeds 63 bits");
  ort::Value* value = nullptr;
  void* data = nullptr;
  ORTKIT_RETURN_IF_ERROR(ort::GetOutput(op.api)(context, 0, dims, tensor.rank, &value));
  ORTKIT_RETURN_IF_ERROR(ort::GetTensorMutableData(op.api)(value, &data));
  auto* to = static_cast<char*>(data);
  for (int64_t i = 0; i < found.units; ++i) {
    if (found.rows[i].count == 0) continue;
    const size_t bytes = static_cast<size_t>(found.rows[i].count) * static_cast<size_t>(row);
    memcpy(to, found.rows[i].data, bytes);
    to += bytes;
  }
  return nullptr;
}

}  // namespace

ort::Status* ComputeCounted(void* kernel, ort::KernelContext* context) {
  const Op& op = *static_cast<const Op*>(kernel);
  Run run;
  ORTKIT_RETURN_IF_ERROR(ReadInputs(op, context, &run));
  Found found;
  const int64_t units = CountUnits(run);
  if (units == kUnknown) return Refuse(op, ort::kInvalidArgument, "the work exceeds 63 bits");
  found.rows = static_cast<OrtkitRows*>(calloc(static_cast<size_t>(units) + 1, sizeof *found.rows));
  if (found.rows == nullptr) return Refuse(op, ort::kFail, "there is no memory for its units");
  found.units = units;
  run.data[run.spec->input_count] = reinterpret_cast<char*>(found.rows);
  run.has_output = true;
  ORTKIT_RETURN_IF_ERROR(RunUnits(op, context, &run));
  return WriteRows(op, context, run, found);
}

}  // namespace ortkit
