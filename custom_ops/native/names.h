/* Ops that a library brings under names of their users': static data, compiled and linked in beside the
 * manifest by the libraries of `ortkit ops build`.
 *
 * C11 and C++17. The generator is ortkit/kernels/link/named_ops.py, the reader names.cc. Equal names are one op
 * with several sets of element types, and a set has kernels for the inputs and attributes that a node may have.
 */
#ifndef ORTKIT_NAMES_H_
#define ORTKIT_NAMES_H_

#include "manifest.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ORTKIT_NAMES_VERSION 3
#define ORTKIT_MAX_ATTRIBUTES 32
#define ORTKIT_MAX_PACKS 8

typedef struct OrtkitAttribute {
  const char* name;
  int32_t is_float;  /* else an integer */
  int32_t is_needed; /* a node must have it, else `integer` or `real` is what it is without */
  int64_t integer;
  float real;
} OrtkitAttribute;

/* The value that an attribute must have. */
typedef struct OrtkitFixed {
  int32_t attribute;
  int64_t integer;
  float real;
} OrtkitFixed;

/* How an input is prepacked for kernels that read another layout: once, when the session is made, if it is a
 * constant of the node's, else in each run. */
typedef struct OrtkitPack {
  const OrtkitOp* op;         /* of that input; its `call` takes two tensors, the input and the packed one */
  int32_t input;              /* the node's */
  int32_t dim_count;
  const OrtkitCeilDiv* dims;  /* of the packed one, by the op's symbols */
  int64_t element_bytes;
} OrtkitPack;

/* One kernel, for the CPU or for CUDA, and the nodes that it is for. */
typedef struct OrtkitChoice {
  const OrtkitOp* op;        /* its op_type is for messages */
  const int32_t* places;     /* of each of the kernel's inputs: the node's, or -1 - the attribute that it is */
  const int32_t* wildcard_axes;      /* of each tensor 1 + the axis that stands for any number of the node's, or 0 */
  int32_t input_count;       /* of the node; those that are absent and last may be left out */
  const int32_t* is_present;   /* of each of the node's inputs */
  int32_t fixed_count;
  const OrtkitFixed* fixed;
  int32_t condition_count;
  const OrtkitCondition* conditions; /* of the sizes, by the kernel's symbols */
  const int32_t* packs;      /* of each of the kernel's inputs: the op's pack that it takes it by, or -1; null: none */
} OrtkitChoice;

typedef struct OrtkitNamedOp {
  const char* domain;
  const char* name;
  int32_t version;
  int32_t input_count;
  const int32_t* input_types;  /* ONNX TensorProto.DataType */
  const int32_t* input_kinds;  /* 0 there, 1 optional, 2 any number, at least one */
  int32_t output_count;
  const int32_t* output_types;
  int32_t attribute_count;
  const OrtkitAttribute* attributes;
  int32_t choice_count;        /* the first that fits runs, one that nothing is packed for in the run
                                  before others; the last one needs the fewest inputs */
  const OrtkitChoice* choices;
  OrtkitPairs may_inplace;     /* inputs and outputs of the node that may share memory, whatever the choice */
  int32_t pack_count;
  const OrtkitPack* packs;
} OrtkitNamedOp;

/* The part for CUDA. Naming it links it in, so libraries without CUDA kernels do not have it. */
typedef struct OrtkitNamesCuda OrtkitNamesCuda;
extern const OrtkitNamesCuda ortkit_names_cuda;

typedef struct OrtkitNames {
  uint32_t version;  /* ORTKIT_NAMES_VERSION */
  int32_t op_count;
  const OrtkitNamedOp* ops;
  OrtkitStorage* storage; /* ORTKIT_MAX_RUNTIMES times two for each op; zeroed */
  const OrtkitNamesCuda* cuda; /* &ortkit_names_cuda if some op has a kernel for CUDA, else null */
} OrtkitNames;

/* Without one of its own a library gets names_none.cc's, which has none. */
extern const OrtkitNames ortkit_names;

#ifdef __cplusplus
}
#endif

#endif  /* ORTKIT_NAMES_H_ */
