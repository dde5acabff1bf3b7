/* What a model's kernel library states about itself: static data, compiled and linked in per model.
 *
 * C11 and C++17. The generators are ortkit/kernels/link/manifest.py and manifest_cuda.py; the reader is the
 * shim beside this file. Both carry ORTKIT_MANIFEST_VERSION, and a test keeps them equal.
 */
#ifndef ORTKIT_MANIFEST_H_
#define ORTKIT_MANIFEST_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORTKIT_MANIFEST_VERSION 11

/* Bounds of one op; the generator refuses what exceeds them. */
#define ORTKIT_MAX_TENSORS 64
#define ORTKIT_MAX_SYMBOLS 32
#define ORTKIT_MAX_RANK 16
#define ORTKIT_MAX_CUDA_VARIANTS 16
#define ORTKIT_MAX_CUDA_STEPS 8      /* of one variant */
#define ORTKIT_MAX_CUDA_ARGUMENTS 128
#define ORTKIT_MAX_CUDA_SCRATCH 8
#define ORTKIT_MAX_CUDA_MAPS 8       /* of one step */
#define ORTKIT_MAX_MAP_RANK 5
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
  ORTKIT_CPU_X86_64_V4_VNNI = 5, /* and AVX512-VNNI */
  ORTKIT_CPU_X86_64_V4_BF16 = 6, /* and AVX512-BF16 */
  ORTKIT_CPU_X86_64_V4_AMX = 7,  /* and AMX tiles of bfloat16 and int8 */
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

/* A size of outputs: the larger of another one and of the int32 that an input on the host is. */
typedef struct OrtkitValueSize {
  int32_t symbol;
  OrtkitExtent least;
  int32_t tensor;
} OrtkitValueSize;

/* Rows that a unit of a kernel found, which counts them: memory of malloc, which the shim frees. */
typedef struct OrtkitRows {
  void* data;     /* null where there are none */
  int64_t count;
} OrtkitRows;

/* Which inputs and outputs may share memory: sets the arrays and returns their length. */
typedef size_t (*OrtkitPairs)(int32_t** inputs, int32_t** outputs);

/* ---- CUDA: a kernel is the first of its variants whose conditions hold, a variant is launches in
 * order, and a launch takes its code from the image that fits the device. */

/* Code of one launch: a cubin, which runs on devices of its major architecture from its minor one on,
 * or PTX, which the driver compiles for any later one. */
typedef struct OrtkitImage {
  int32_t architecture;  /* 90 is sm_90 */
  int32_t is_ptx;        /* text that ends in a 0 */
  const void* data;      /* equal images are one */
  int32_t waits;         /* lets the next launch begin, then waits for the one before (griddepcontrol) */
} OrtkitImage;

typedef enum OrtkitArgumentKind {
  ORTKIT_ARGUMENT_TENSOR = 0,   /* the address of tensor `index` */
  ORTKIT_ARGUMENT_SCRATCH = 1,  /* the address of scratch memory `index` */
  ORTKIT_ARGUMENT_SIZE32 = 2,   /* `extent` as an int32_t; a run in which it exceeds that is refused */
  ORTKIT_ARGUMENT_SIZE64 = 3,   /* `extent` as an int64_t */
  ORTKIT_ARGUMENT_NULL = 4,     /* a null address */
  ORTKIT_ARGUMENT_NUMBER = 5,   /* the 8 bytes that lie at tensor `index`, which the host has */
  ORTKIT_ARGUMENT_MAP = 6       /* map `index` of the step, by value: CUDA's 128 bytes */
} OrtkitArgumentKind;

typedef struct OrtkitArgument {
  OrtkitArgumentKind kind;
  int32_t index;
  OrtkitExtent extent;
} OrtkitArgument;

/* What the device copies boxes of by itself, from and to shared memory: a tensor, or heads in one. */
typedef struct OrtkitTensorMap {
  int32_t tensor;               /* block n of scratch, of the first tensor's type: -1 - n */
  int32_t rank;
  int32_t swizzle;              /* bytes of a row of the box that are mixed: 0, 32, 64 or 128 */
  int64_t first;                /* bytes from the tensor's beginning */
  const OrtkitExtent* dims;     /* outermost first; where one is 0 the variant is not taken */
  const OrtkitExtent* strides;  /* bytes, of all dims but the innermost, which is dense */
  uint32_t box[ORTKIT_MAX_MAP_RANK];
} OrtkitTensorMap;

/* `extent` divided by `divisor`, rounded up. */
typedef struct OrtkitCeilDiv {
  OrtkitExtent extent;
  int64_t divisor;
} OrtkitCeilDiv;

/* y = x w^T in half precision: cuBLAS computes it where ONNX Runtime has it, else the step's code. */
typedef struct OrtkitProduct {
  int32_t x;       /* tensor, [rows, depth]; block n of scratch, of the first tensor's type: -1 - n */
  int32_t weight;  /* likewise, [columns, depth]; blocks of scratch have x's type */
  int32_t y;       /* likewise, [rows, columns] */
  int32_t columns;
  int32_t depth;
  OrtkitExtent rows;
} OrtkitProduct;

typedef struct OrtkitStep {
  const char* entry;      /* the function's name in each image */
  OrtkitCeilDiv grid[3];  /* blocks; where one is 0 there is nothing to launch */
  int32_t threads;        /* of a block */
  int32_t shared_bytes;   /* of a block, dynamic */
  int32_t argument_count;
  const OrtkitArgument* arguments;
  int32_t image_count;
  const OrtkitImage* images;
  int32_t map_count;
  const OrtkitTensorMap* maps;
  const OrtkitProduct* product;  /* null: none */
} OrtkitStep;

typedef struct OrtkitCondition {
  OrtkitExtent extent;
  int64_t divisible_by;
  int64_t at_most;  /* INT64_MAX: any */
} OrtkitCondition;

typedef struct OrtkitVariant {
  int32_t condition_count;
  const OrtkitCondition* conditions;
  int32_t is_aligned;  /* takes only tensors that begin at multiples of 16 bytes */
  int32_t step_count;
  const OrtkitStep* steps;
  int32_t scratch_count;
  const OrtkitExtent* scratch;  /* bytes */
} OrtkitVariant;

typedef struct OrtkitCudaKernel {
  int32_t variant_count;
  const OrtkitVariant* variants;
} OrtkitCudaKernel;

typedef struct OrtkitOp {
  const char* op_type;
  const char* key;
  int32_t symbol_count;
  const char* const* symbols;
  int32_t input_count;
  int32_t output_count;
  const OrtkitTensor* tensors;  /* inputs, then outputs */
  int32_t value_size_count;
  const OrtkitValueSize* value_sizes;
  /* The work: units that do not depend on each other, numbered over the product of these sizes. */
  int32_t unit_axis_count;
  const OrtkitExtent* unit_axes;
  OrtkitExtent unit_points;      /* for the cost of a unit */
  int32_t picoseconds_per_point;
  int32_t shared_nanoseconds;    /* and of all units together, however many: weights read from memory */
  int32_t slice_picoseconds;     /* per point of a unit, of each slice, in addition to its units */
  int32_t streams_constants;     /* a run of one point is bound by reading them: they are copied to huge pages */
  /* The first size of the only output is the number of rows that units find. In place of the output a call gets
   * an OrtkitRows for each of all units, zeroed; the output is their rows, in the order of units. */
  int32_t counts_rows;
  OrtkitPairs may_inplace;       /* null: none; ONNX Runtime does not say which op it asks about */
  OrtkitCall call;               /* null: no kernel for the CPU */
  const OrtkitCudaKernel* cuda;  /* null: none for CUDA */
} OrtkitOp;

/* Per-runtime storage of one kernel: what the shim registers with a runtime; zeroed. */
typedef struct OrtkitStorage {
  uint64_t words[29];
} OrtkitStorage;

/* The shim's part for CUDA. Naming it links it in, so libraries without CUDA kernels do not have it. */
typedef struct OrtkitCuda OrtkitCuda;
extern const OrtkitCuda ortkit_cuda;

typedef struct OrtkitManifest {
  uint32_t version;  /* ORTKIT_MANIFEST_VERSION */
  OrtkitCpu cpu;     /* what the kernels for the CPU need */
  const char* domain;
  int32_t op_count;
  const OrtkitOp* ops;
  OrtkitStorage* storage; /* ORTKIT_MAX_RUNTIMES times the kernels: of each op one or two */
  const OrtkitCuda* cuda;  /* &ortkit_cuda if some op has a kernel for CUDA, else null */
} OrtkitManifest;

extern const OrtkitManifest ortkit_manifest;

#ifdef __cplusplus
}
#endif

#endif  /* ORTKIT_MANIFEST_H_ */
