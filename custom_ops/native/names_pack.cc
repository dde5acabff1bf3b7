// Prepacked inputs of kernels that read another layout: constants once, for as long as the node lives.
#include <cstdlib>

#include "names_node.h"

namespace ortkit {
namespace {

// What vectors and tiles are read from fastest.
constexpr size_t kLine = 64;

// Bytes of the packed tensor; kUnknown if they exceed 63 bits.
int64_t CountBytes(const OrtkitPack& pack, const Run& run) {
  int64_t bytes = pack.element_bytes;
  bool is_empty = false, has_room = true;
  for (int32_t i = 0; i < pack.dim_count; ++i) {
    const OrtkitCeilDiv& dim = pack.dims[i];
    const int64_t size = SizeOf(dim.extent, run.symbols);
    const int64_t blocks = size / dim.divisor + (size % dim.divisor != 0);
    is_empty = is_empty || size == 0;
    has_room = has_room && size != kUnknown && !__builtin_mul_overflow(bytes, blocks, &bytes);
  }
  if (is_empty) return 0;
  return has_room && bytes < INT64_MAX - static_cast<int64_t>(kLine) ? bytes : kUnknown;
}

ort::Status* Pack(const NamedOp& named, const OrtkitPack& pack, const ort::Value* value, void** packed) {
  const Op op = {{}, pack.op, named.api, false};
  Run run;
  run.spec = pack.op;
  const int64_t* dims = nullptr;
  for (int32_t i = 0; i < pack.op->symbol_count; ++i) run.symbols[i] = kUnknown;
  ORTKIT_RETURN_IF_ERROR(ReadValue(op, 0, value, &run, &dims));
  if (!ReadPlainDims(pack.op->tensors[0], dims, run.symbols)) {
    ORTKIT_RETURN_IF_ERROR(ReadCarefully(op, &dims, &run));
  }
  const int64_t bytes = CountBytes(pack, run), units = CountUnits(run);
  if (bytes == kUnknown || units == kUnknown) {
    return Refuse(op, ort::kInvalidArgument, "the packed input exceeds 63 bits");
  }
  const size_t room = (static_cast<size_t>(bytes) + kLine) / kLine * kLine;  // null means that nothing is packed
  void* memory = aligned_alloc(kLine, room);
  if (memory == nullptr) return Refuse(op, ort::kFail, "there is no memory for %zu bytes of a packed input", room);
  run.data[1] = static_cast<char*>(memory);
  const int32_t code = bytes == 0 || units == 0 ? 0 : pack.op->call(run.data, run.symbols, 0, units);
  if (code != 0) {
    free(memory);
    return Refuse(op, ort::kFail, "packing an input returned %d", code);
  }
  *packed = memory;
  return nullptr;
}

}  // namespace

Scratch::~Scratch() {
  for (int32_t i = 0; i < count; ++i) free(memory[i]);
}

ort::Status* PackConstants(Node* node, const ort::KernelInfo* info) {
  const NamedOp& op = *node->op;
  for (int32_t i = 0; i < op.spec->pack_count; ++i) {
    const OrtkitPack& pack = op.spec->packs[i];
    if (static_cast<size_t>(pack.input) >= node->input_count) continue;
    int32_t is_constant = 0;
    const ort::Value* value = nullptr;
    ORTKIT_RETURN_IF_ERROR(ort::GetConstantInput(op.api)(info, pack.input, &is_constant, &value));
    if (is_constant != 0 && value != nullptr) ORTKIT_RETURN_IF_ERROR(Pack(op, pack, value, &node->packed[i]));
  }
  return nullptr;
}

void FreePacked(Node* node) {
  for (void*& packed : node->packed) {
    free(packed);
    packed = nullptr;
  }
}

bool PacksInRun(const Node& node, const OrtkitChoice& choice) {
  for (int32_t i = 0; choice.packs != nullptr && i < choice.op->input_count; ++i) {
    if (choice.packs[i] >= 0 && node.packed[choice.packs[i]] == nullptr) return true;
  }
  return false;
}

ort::Status* UsePacked(const Node& node, ort::KernelContext* context, const OrtkitChoice& choice, Run* run,
                       Scratch* scratch) {
  const NamedOp& op = *node.op;
  for (int32_t i = 0; choice.packs != nullptr && i < choice.op->input_count; ++i) {
    if (choice.packs[i] < 0) continue;
    const OrtkitPack& pack = op.spec->packs[choice.packs[i]];
    void* packed = node.packed[choice.packs[i]];
    if (packed == nullptr) {
      const ort::Value* value = nullptr;
      ORTKIT_RETURN_IF_ERROR(ort::GetInput(op.api)(context, pack.input, &value));
      ORTKIT_RETURN_IF_ERROR(Pack(op, pack, value, &packed));
      scratch->memory[scratch->count++] = packed;
    }
    run->data[i] = static_cast<char*>(packed);
  }
  return nullptr;
}

}  // namespace ortkit
