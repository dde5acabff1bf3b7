/* What a model's kernel library states about itself: static data, compiled and linked in per model.
 *
 * C11 and C++17. The generator is ortkit/kernels/manifest.py; the reader is the shim beside this file.
 * Both carry ORTKIT_MANIFEST_VERSION, and a test keeps them equal.
 */
#ifndef ORTKIT_MANIFEST_H_
#define ORTKIT_MANIFEST_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORTKIT_MANIFEST_VERSION 3

/* Bounds of one op; the generator refuses what exceeds them. */
#define ORTKIT_MAX_TENSORS 64
#define ORTKIT_MAX_SYMBOLS 32
#define ORTKIT_MAX_RANK 16
/* ONNX Runtimes in one process that may share a library. */
#define ORTKIT_MAX_RUNTIMES 4

/* A kernel is serial. It computes the units begin .. end - 1; data[i] is the whole tensor i, sizes[s]
 * the size that symbol s stands for. 0 is success. */
typedef int32_t (*OrtkitCall)(char* const* data, const int64_t* sizes, int64_t begin, int64_t end);

typedef enum OrtkitCpu {
  ORTKIT_CPU_X86_64 = 1,
  ORTKIT_CPU_X86_64_V2 = 2,
  ORTKIT_CPU_X86_64_V3 = 3,
  ORTKIT_CPU_X86_64_V4 = 4,
  ORTKIT_CPU_AARCH64 = 16
} OrtkitCpu;

/* A size: `factor` times the product of the symbols' sizes. */
typedef struct OrtkitExtent {
  int64_t factor;
  int32_t symbol_count;
  const int32_t* symbols;
} OrtkitExtent;

typedef struct OrtkitTensor {
  const char* name;
  int32_t element_type;  /* ONNX TensorProto.DataType */
  int32_t rank;
  const OrtkitExtent* dims;
} OrtkitTensor;

/* Which inputs and outputs may share memory: sets the arrays and returns their length. */
typedef size_t (*OrtkitPairs)(int32_t** inputs, int32_t** outputs);

typedef struct OrtkitOp {
  const char* op_type;
  const char* key;
  int32_t symbol_count;
  const char* const* symbols;
  int32_t input_count;
  int32_t output_count;
  const OrtkitTensor* tensors;  /* inputs, then outputs */
  /* The work: units that do not depend on each other, numbered over the product of these sizes. */
  int32_t unit_axis_count;
  const OrtkitExtent* unit_axes;
  OrtkitExtent unit_points;      /* for the cost of a unit */
  int32_t picoseconds_per_point;
  OrtkitPairs may_inplace;       /* null: none; ONNX Runtime does not say which op it asks about */
  OrtkitCall call;
} OrtkitOp;

/* Room for what the shim tells one runtime about one op; zeroed. */
typedef struct OrtkitRoom {
  uint64_t words[28];
} OrtkitRoom;

typedef struct OrtkitManifest {
  uint32_t version;  /* ORTKIT_MANIFEST_VERSION */
  OrtkitCpu cpu;     /* what the kernels need */
  const char* domain;
  int32_t op_count;
  const OrtkitOp* ops;
  OrtkitRoom* rooms;  /* ORTKIT_MAX_RUNTIMES times op_count */
} OrtkitManifest;

extern const OrtkitManifest ortkit_manifest;

#ifdef __cplusplus
}
#endif

#endif  /* ORTKIT_MANIFEST_H_ */
