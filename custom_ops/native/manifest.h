/* What a model's kernel library states about itself: static data, compiled and linked in per model.
 *
 * C11 and C++17. The generator is ortkit/kernels/link.py; the reader is the shim beside this file.
 * Both carry ORTKIT_MANIFEST_VERSION, and a test keeps them equal.
 */
#ifndef ORTKIT_MANIFEST_H_
#define ORTKIT_MANIFEST_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORTKIT_MANIFEST_VERSION 1

/* Bounds of one op; the generator refuses what exceeds them. */
#define ORTKIT_MAX_TENSORS 64
#define ORTKIT_MAX_SYMBOLS 32
#define ORTKIT_MAX_RANK 16
#define ORTKIT_MAX_AXES 16

/* A kernel is serial. It computes `rows` x `columns` points; data[i] points at the first element that
 * tensor i has in these rows. 0 is success. */
typedef int32_t (*OrtkitCall)(char* const* data, int64_t rows, int64_t columns);

typedef enum OrtkitCpu {
  ORTKIT_CPU_X86_64 = 1,
  ORTKIT_CPU_X86_64_V2 = 2,
  ORTKIT_CPU_X86_64_V3 = 3,
  ORTKIT_CPU_X86_64_V4 = 4,
  ORTKIT_CPU_AARCH64 = 16
} OrtkitCpu;

typedef struct OrtkitTensor {
  const char* name;
  int32_t element_type;  /* ONNX TensorProto.DataType */
  int32_t element_bytes;
  int32_t rank;
  const int64_t* dims;   /* a size (>= 0), or -1 - s for the op's symbol s */
} OrtkitTensor;

/* One axis of the iteration space: `size` times the product of `symbols`. */
typedef struct OrtkitAxis {
  int64_t size;
  int32_t symbol_count;
  const int32_t* symbols;
} OrtkitAxis;

typedef struct OrtkitOp {
  const char* op_type;
  const char* key;
  int32_t symbol_count;
  const char* const* symbols;
  int32_t input_count;
  int32_t output_count;
  const OrtkitTensor* tensors;  /* inputs, then outputs */
  /* Outermost first. The last is the kernel's columns, the one before it its rows, and those before
   * are walked by the shim. With one axis only, that axis is the rows and there is one column. */
  int32_t axis_count;
  const OrtkitAxis* axes;
  const uint8_t* moves;         /* [tensor][axis]: 1 where the tensor has the axis, 0 where it is shared */
  /* The cost of one point (one row of one column), for cutting work into slices. */
  int32_t bytes_per_point;
  int32_t flops_per_point;
  OrtkitCall call;
} OrtkitOp;

typedef struct OrtkitManifest {
  uint32_t version;  /* ORTKIT_MANIFEST_VERSION */
  OrtkitCpu cpu;     /* what the kernels need */
  const char* domain;
  int32_t op_count;
  const OrtkitOp* ops;
} OrtkitManifest;

extern const OrtkitManifest ortkit_manifest;

#ifdef __cplusplus
}
#endif

#endif  /* ORTKIT_MANIFEST_H_ */
