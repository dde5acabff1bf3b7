/* A kernel as a plain function: what a C, C++ or TVM kernel sees of one run of its node.
 *
 * C11 and C++17. Structs only grow at their end, so that a kernel built against an older copy of this
 * file keeps running; `size` says how much of a struct is there.
 */
#ifndef ORTKIT_PROVIDER_KERNEL_H_
#define ORTKIT_PROVIDER_KERNEL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The same layout as DLPack's DLDevice, DLDataType and DLTensor. */
typedef struct OrtkitDLDevice {
  int32_t type; /* 1: CPU; 12 (kDLExtDev): memory of the provider's own device */
  int32_t id;
} OrtkitDLDevice;

typedef struct OrtkitDLDataType {
  uint8_t code; /* 0 int, 1 uint, 2 float, 3 opaque (strings), 4 bfloat, 5 complex, 6 bool, 7.. float8 */
  uint8_t bits;
  uint16_t lanes;
} OrtkitDLDataType;

typedef struct OrtkitDLTensor {
  void* data;
  OrtkitDLDevice device;
  int32_t rank;
  OrtkitDLDataType type;
  int64_t* dims;    /* not to be written to */
  int64_t* strides; /* null: compact, the last dim varies fastest */
  uint64_t byte_offset;
} OrtkitDLTensor;

/* One input or output. 64 bytes. */
typedef struct OrtkitView {
  OrtkitDLTensor tensor;
  int32_t element_type; /* ONNX TensorProto.DataType; 0: an optional input that is absent */
  int32_t reserved;
  const void* value;    /* OrtValue*; null: absent */
} OrtkitView;

typedef struct OrtkitKernelContext OrtkitKernelContext;

/* Valid for one call of a kernel. Functions that can fail return 0, or a code that the kernel should
 * return: the reason is kept. They are called from the kernel's own thread only. */
struct OrtkitKernelContext {
  uint32_t size; /* of this struct */
  int32_t input_count;
  int32_t output_count;
  int32_t reserved;
  const OrtkitView* inputs;

  /* Makes output `index` of these dims and describes it in `out`, which may be null. */
  int32_t (*make_output)(OrtkitKernelContext*, int32_t index, const int64_t* dims, int32_t rank,
                         OrtkitView* out);
  /* Calls body(user, 0) ... body(user, total - 1) on the session's threads, some at the same time,
   * and returns when all are done. The body must not call back into Python. */
  int32_t (*parallel_for)(OrtkitKernelContext*, void (*body)(void* user, size_t index), size_t total,
                          void* user);
  /* Memory until the run ends, of the inputs' device, aligned to 64 bytes; null without memory. */
  void* (*scratch)(OrtkitKernelContext*, size_t bytes);
  /* Notes why the kernel fails, and returns `code`. The codes are OrtErrorCode's: 1 fail,
   * 2 invalid argument, 9 not implemented. */
  int32_t (*fail)(OrtkitKernelContext*, int32_t code, const char* reason);

  void* stream;        /* the handle of the provider's stream for this run; null: none */
  void* ort_context;   /* OrtKernelContext* */
  const void* ort_api; /* OrtApi* */

  /* The same in one block each, for kernels in Python, to whom every read is dear; null for others. Of
   * each input in order: its rank, then its dims (rank -1: absent). `signature_count` counts words. */
  const int64_t* signature;
  int64_t signature_count;
  void* const* data; /* the inputs' addresses */
  /* Makes all outputs, of dims given as in `signature`, and tells their addresses. */
  int32_t (*make_outputs)(OrtkitKernelContext*, const int64_t* signature, void** data);
};

/* 0: done. Any other code fails the run, with the reason given to `fail`. Must be ready to be called
 * from several threads at the same time. */
typedef int32_t (*OrtkitKernelFunction)(void* user, OrtkitKernelContext* context);

#ifdef __cplusplus
}
#endif

#endif /* ORTKIT_PROVIDER_KERNEL_H_ */
