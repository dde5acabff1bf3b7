// Describes tensors to the device's copies of boxes, from the sizes of a run.
#include "cuda_maps.h"

#include "shim.h"

namespace ortkit::cuda {
namespace {

constexpr Result kInvalidValue = 1;
// The driver's names of types of elements; -1 for those that it has none for.
int32_t TypeOf(int32_t element_type) {
  switch (element_type) {
    case 1: return 7;                   // float
    case 2: case 3: case 9: case 17: return 0;   // uint8, int8, bool, float8e4m3fn
    case 4: case 5: return 1;           // uint16, int16
    case 6: return 3;                   // int32
    case 7: return 4;                   // int64
    case 10: return 6;                  // float16
    case 11: return 8;                  // double
    case 12: return 2;                  // uint32
    case 13: return 5;                  // uint64
    case 16: return 9;                  // bfloat16
    default: return -1;
  }
}

int32_t SwizzleOf(int32_t bytes) { return bytes == 128 ? 3 : bytes == 64 ? 2 : bytes == 32 ? 1 : 0; }

// Lines of memory that a copy brings into the cache: 128 bytes.
constexpr int32_t kPromotion = 2;

}  // namespace

bool HasElements(const OrtkitTensorMap& spec, const Run& run) {
  for (int32_t i = 0; i < spec.rank; ++i) {
    if (SizeOf(spec.dims[i], run.symbols) == 0) return false;
  }
  return true;
}

Result EncodeMap(const Driver& driver, const OrtkitTensorMap& spec, const Run& run, void* const* scratch,
                 TensorMap* map) {
  uint64_t dims[ORTKIT_MAX_MAP_RANK] = {};
  uint64_t strides[ORTKIT_MAX_MAP_RANK] = {};
  uint32_t box[ORTKIT_MAX_MAP_RANK] = {};
  const uint32_t steps[ORTKIT_MAX_MAP_RANK] = {1, 1, 1, 1, 1};
  for (int32_t i = 0; i < spec.rank; ++i) {
    const int32_t place = spec.rank - 1 - i;  // the driver begins with the innermost one
    const int64_t dim = SizeOf(spec.dims[i], run.symbols);
    if (dim == kUnknown) return kInvalidValue;
    dims[place] = static_cast<uint64_t>(dim);
    box[place] = spec.box[i];
    if (i == spec.rank - 1) break;
    const int64_t stride = SizeOf(spec.strides[i], run.symbols);
    if (stride == kUnknown) return kInvalidValue;
    strides[place - 1] = static_cast<uint64_t>(stride);
  }
  const bool is_scratch = spec.tensor < 0;
  const int32_t type = TypeOf(run.spec->tensors[is_scratch ? 0 : spec.tensor].element_type);
  char* const start = is_scratch ? static_cast<char*>(scratch[-1 - spec.tensor]) : run.data[spec.tensor];
  return driver.EncodeTensorMap(map, type, static_cast<uint32_t>(spec.rank), start + spec.first, dims, strides,
                                box, steps, 0, SwizzleOf(spec.swizzle), kPromotion, 0);
}

}  // namespace ortkit::cuda
