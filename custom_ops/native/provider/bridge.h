/* What lies between this library, which ONNX Runtime loads, and the code that makes it a provider.
 *
 * C11 and C++17; ortkit/provider/native.py is the same in ctypes, and a test keeps them equal.
 *
 * A provider is defined by name (ortkit_provider_define) before ONNX Runtime registers this library
 * under that name. A name that is not defined gets the OrtkitExecutionProvider that only runs models
 * compiled ahead of time.
 *
 * Callbacks return 0, or an OrtErrorCode (1 fail, 2 invalid argument, 9 not implemented, ...) after
 * ortkit_provider_error. Any callback may be null unless it says otherwise. What a callback is handed
 * is valid until it returns, what it hands over is copied, but for `user` pointers and functions.
 * ONNX Runtime calls from the thread that creates or runs the session, or from one of its own.
 */
#ifndef ORTKIT_PROVIDER_BRIDGE_H_
#define ORTKIT_PROVIDER_BRIDGE_H_

#include "kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ORTKIT_BRIDGE_VERSION 1

typedef struct OrtkitError OrtkitError;           /* room for a message of any length */
typedef struct OrtkitLogger OrtkitLogger;         /* an OrtLogger */
typedef struct OrtkitGroups OrtkitGroups;         /* takes what get_capability claims */
typedef struct OrtkitKernels OrtkitKernels;       /* takes what compile and create make */
typedef struct OrtkitLibrary OrtkitLibrary;       /* a loaded kernel library */

typedef struct OrtkitEntries {
  int64_t count;
  const char* const* keys;
  const char* const* values;
} OrtkitEntries;

/* ---- kernels */

enum {
  ORTKIT_KERNEL_FUNCTION = 0,   /* `function` */
  ORTKIT_KERNEL_LIBRARY_OP = 1, /* op `op_type` of `library` */
  /* `function` enters Python: not called any more once ortkit_provider_close was. */
  ORTKIT_KERNEL_PYTHON = 2
};

typedef struct OrtkitKernel {
  uint32_t size; /* of this struct */
  int32_t kind;
  const char* label;       /* in messages and in the trace; null: the node's name */
  OrtkitEntries arguments; /* of its events in the trace */
  OrtkitKernelFunction function;
  void* user;
  void (*release)(void* user); /* called once, when the kernel is gone or was refused */
  OrtkitLibrary* library;      /* kept open as long as the kernel lives */
  /* An op of its manifest, else an OrtkitKernelFunction of this name, whose `user` is null. */
  const char* op_type;
  /* Which of the node's inputs the kernel's input i is, and outputs likewise; null: the same. */
  int32_t input_count;
  const int32_t* inputs;
  int32_t output_count;
  const int32_t* outputs;
} OrtkitKernel;

/* ---- sessions */

typedef struct OrtkitSession {
  const void* api;       /* OrtApi* */
  OrtkitEntries options; /* the provider's, without the prefix ep.<name>. */
  OrtkitEntries config;  /* all entries of the session's configuration */
  const OrtkitLogger* logger; /* lives as long as the session */
  int32_t device_count;
  const int32_t* devices; /* of the definition's devices, those that the session chose */
} OrtkitSession;

typedef struct OrtkitGraph {
  const void* api;    /* OrtApi* */
  const void* graph;  /* const OrtGraph* */
  int32_t is_nested;  /* a subgraph of If, Loop or Scan */
  int32_t is_context; /* the session writes an EPContext model, which cannot take nested groups */
} OrtkitGraph;

typedef struct OrtkitCompile {
  const void* api;
  int32_t count;             /* of groups */
  int32_t is_context;        /* the session writes an EPContext model */
  const void* const* graphs; /* const OrtGraph*: the nodes of each group */
  const void* const* nodes;  /* const OrtNode*: the fused node of each, whose inputs a kernel gets */
} OrtkitCompile;

typedef struct OrtkitKernelRequest {
  const void* api;
  const void* info; /* const OrtKernelInfo*: attributes, types */
} OrtkitKernelRequest;

typedef struct OrtkitRun {
  const void* api;
  const void* options; /* const OrtRunOptions* */
} OrtkitRun;

/* ---- kernels by op, instead of groups */

typedef struct OrtkitTypeConstraint {
  const char* name; /* the schema's: "T" */
  int32_t count;
  const int32_t* element_types; /* ONNX TensorProto.DataType */
} OrtkitTypeConstraint;

typedef struct OrtkitKernelEntry {
  const char* domain;
  const char* op_type;
  int32_t first_version; /* since which version of the domain, and until which */
  int32_t last_version;
  int32_t constraint_count;
  const OrtkitTypeConstraint* constraints;
  int32_t cpu_input_count; /* inputs and outputs that stay in the CPU's memory */
  const int32_t* cpu_inputs;
  int32_t cpu_output_count;
  const int32_t* cpu_outputs;
  void* user;
  /* Required. Calls ortkit_provider_set_kernel with index 0. */
  int32_t (*create)(void* user, void* ep, const OrtkitKernelRequest*, OrtkitKernels*, OrtkitError*);
} OrtkitKernelEntry;

/* ---- devices */

/* Where a tensor lies. */
typedef struct OrtkitPlace {
  int32_t is_ours;   /* memory of this provider's device `device`, else the CPU's */
  int32_t device;
} OrtkitPlace;

/* A memory of its own. Streams and notifications are handles of the provider, any nonzero number. */
typedef struct OrtkitMemory {
  const char* name;    /* "npu_sim" */
  int32_t device_type; /* OrtMemoryInfoDeviceType: 1 GPU, 3 NPU */
  int32_t has_streams;
  uint64_t alignment;
  /* Required. Null without memory. `stream` is 0 where no stream is known. */
  void* (*allocate)(void* user, int32_t device, size_t bytes, uint64_t stream);
  void (*free)(void* user, int32_t device, void* data);
  /* Required. Copies `bytes`; `stream` is 0 if the copy must be done on return. */
  int32_t (*copy)(void* user, const void* from, OrtkitPlace from_place, void* to,
                  OrtkitPlace to_place, size_t bytes, uint64_t stream, OrtkitError*);
  /* Required if has_streams, up to wait_on_host. */
  int32_t (*create_stream)(void* user, int32_t device, uint64_t* stream, OrtkitError*);
  void (*release_stream)(void* user, uint64_t stream);
  int32_t (*flush)(void* user, uint64_t stream, OrtkitError*);
  int32_t (*stream_run_end)(void* user, uint64_t stream, OrtkitError*);
  int32_t (*create_notification)(void* user, uint64_t stream, uint64_t* notification, OrtkitError*);
  void (*release_notification)(void* user, uint64_t notification);
  int32_t (*activate)(void* user, uint64_t notification, OrtkitError*);
  int32_t (*wait_on_device)(void* user, uint64_t notification, uint64_t stream, OrtkitError*);
  int32_t (*wait_on_host)(void* user, uint64_t notification, OrtkitError*);
} OrtkitMemory;

typedef struct OrtkitDevice {
  int32_t hardware_type; /* OrtHardwareDeviceType it is reached through: 0 CPU, 1 GPU, 2 NPU */
  uint32_t vendor_id;    /* of that hardware; 0: any */
  OrtkitEntries metadata;
  const OrtkitMemory* memory; /* null: it works in the CPU's memory */
} OrtkitDevice;

/* ---- a provider */

enum {
  /* EPContext nodes whose source is this provider are claimed and run by this library itself. */
  ORTKIT_PROVIDER_READS_CONTEXTS = 1,
  /* Callbacks enter Python: none is called any more once ortkit_provider_close was. */
  ORTKIT_PROVIDER_PYTHON = 2,
  /* Runs of one session must not overlap. Not with ORTKIT_PROVIDER_PYTHON: they would wait for each other. */
  ORTKIT_PROVIDER_SERIAL_RUNS = 4
};

typedef struct OrtkitProvider {
  uint32_t version; /* ORTKIT_BRIDGE_VERSION */
  uint32_t flags;
  const char* name;   /* of the provider: "MyExecutionProvider" */
  const char* vendor;
  const char* version_text; /* semantic: "1.0.0" */
  uint32_t vendor_id;
  int32_t device_count; /* 0: one that works in the CPU's memory */
  const OrtkitDevice* devices;
  int32_t kernel_count;
  const OrtkitKernelEntry* kernels;
  void* user;

  int32_t (*create_ep)(void* user, const OrtkitSession*, void** ep, OrtkitError*);
  void (*release_ep)(void* user, void* ep);
  /* Null with `kernels`: every node that one of them fits is claimed. */
  int32_t (*get_capability)(void* user, void* ep, const OrtkitGraph*, OrtkitGroups*, OrtkitError*);
  /* Required if get_capability adds groups: calls ortkit_provider_set_kernel for each group. */
  int32_t (*compile)(void* user, void* ep, const OrtkitCompile*, OrtkitKernels*, OrtkitError*);
  int32_t (*run_start)(void* user, void* ep, const OrtkitRun*, OrtkitError*);
  int32_t (*run_end)(void* user, void* ep, const OrtkitRun*, int32_t is_synchronous, OrtkitError*);
  int32_t (*set_dynamic_options)(void* user, void* ep, const OrtkitEntries*, OrtkitError*);
  /* Called by ONNX Runtime 1.27 and newer. */
  int32_t (*session_initialized)(void* user, void* ep, OrtkitError*);
  /* Gives a text to `answer`, as if it were a message, that goes into EPContext models. Null: this
   * library's own. */
  int32_t (*compatibility)(void* user, void* ep, const OrtkitGraph*, OrtkitError* answer);
  /* 0 not applicable, 1 optimal, 2 better compiled again, 3 unsupported. */
  int32_t (*validate)(void* user, const char* compatibility, int32_t* verdict, OrtkitError*);
} OrtkitProvider;

/* ---- what this library exports */

#if defined(__GNUC__)
#define ORTKIT_PROVIDER_API __attribute__((visibility("default")))
#else
#define ORTKIT_PROVIDER_API
#endif

/* ORTKIT_BRIDGE_VERSION of the library. */
ORTKIT_PROVIDER_API uint32_t ortkit_provider_version(void);

/* Messages. A later one replaces the one before. */
ORTKIT_PROVIDER_API OrtkitError* ortkit_provider_new_error(void);
ORTKIT_PROVIDER_API void ortkit_provider_free_error(OrtkitError*);
ORTKIT_PROVIDER_API void ortkit_provider_error(OrtkitError*, const char* message);
ORTKIT_PROVIDER_API const char* ortkit_provider_error_text(const OrtkitError*);

/* Copies a definition, which stays for as long as the process lives. The same name again replaces it
 * for later registrations. */
ORTKIT_PROVIDER_API int32_t ortkit_provider_define(const char* registration,
                                                   const OrtkitProvider*, OrtkitError*);
/* Later registrations of the name fail. */
ORTKIT_PROVIDER_API void ortkit_provider_undefine(const char* registration);
/* No Python callback is entered after this returns, and what would need one fails with a message.
 * Waits for those that run, `milliseconds` at most; returns how many still do. */
ORTKIT_PROVIDER_API int32_t ortkit_provider_close(int32_t milliseconds);

/* Within get_capability. `nodes`: const OrtNode*. */
ORTKIT_PROVIDER_API int32_t ortkit_provider_add_group(OrtkitGroups*, const void* const* nodes,
                                                      size_t count, int32_t drop_constant_initializers,
                                                      OrtkitError*);
/* A node that one of the definition's `kernels` runs. */
ORTKIT_PROVIDER_API int32_t ortkit_provider_add_single(OrtkitGroups*, const void* node, OrtkitError*);
/* Whether one of the definition's `kernels` fits: 1 or 0, or -1 and a message. */
ORTKIT_PROVIDER_API int32_t ortkit_provider_has_kernel(OrtkitGroups*, const void* node, OrtkitError*);

/* Within compile and create. `index` counts the groups. */
ORTKIT_PROVIDER_API int32_t ortkit_provider_set_kernel(OrtkitKernels*, int32_t index,
                                                       const OrtkitKernel*, OrtkitError*);

/* A kernel library by path or by content. Null and a message if it is none, was made by another
 * version, or needs another processor. Equal content is loaded once. */
ORTKIT_PROVIDER_API OrtkitLibrary* ortkit_provider_open_library(const char* path, OrtkitError*);
ORTKIT_PROVIDER_API OrtkitLibrary* ortkit_provider_load_library(const void* bytes, size_t size,
                                                                OrtkitError*);
ORTKIT_PROVIDER_API void ortkit_provider_close_library(OrtkitLibrary*);
/* The op types of a library: entry `index`, or null past the last. */
ORTKIT_PROVIDER_API const char* ortkit_provider_library_op(const OrtkitLibrary*, int32_t index);

/* What this library says of such a text under an ONNX Runtime of version `runtime` ("1.31.1"): the
 * verdict, and why as the message. */
ORTKIT_PROVIDER_API int32_t ortkit_provider_validate(const char* compatibility, const char* runtime,
                                                     int32_t* verdict, OrtkitError* reason);

/* Errors that ONNX Runtime only logs (get_capability without strict=1), the oldest first; null past
 * the last. `index` counts from the first since the process began; the last 64 are kept. The text goes
 * into `error`. */
ORTKIT_PROVIDER_API int64_t ortkit_provider_recorded_count(void);
ORTKIT_PROVIDER_API int32_t ortkit_provider_recorded(int64_t index, OrtkitError* text);

/* Severity: 0 verbose ... 4 fatal. */
ORTKIT_PROVIDER_API void ortkit_provider_log(const void* api, const OrtkitLogger*, int32_t severity,
                                             const char* message);

/* Within a kernel: an event of its own in the session's trace, if the session is profiled. Times are
 * ortkit_provider_now's. */
ORTKIT_PROVIDER_API int64_t ortkit_provider_now(void); /* nanoseconds */
ORTKIT_PROVIDER_API int32_t ortkit_provider_is_profiling(const OrtkitKernelContext*);
ORTKIT_PROVIDER_API void ortkit_provider_add_event(const OrtkitKernelContext*, const char* name,
                                                   int64_t begin, int64_t end, const OrtkitEntries*);

/* Counters of the allocator for device `device` of a definition: InUse, MaxInUse, NumAllocs,
 * TotalAllocated, MaxAllocSize, NumFrees in this order, bytes. Returns how many were written. */
ORTKIT_PROVIDER_API int32_t ortkit_provider_memory_statistics(const char* registration,
                                                              int32_t device, int64_t* counters,
                                                              int32_t room);

#ifdef __cplusplus
}
#endif

#endif /* ORTKIT_PROVIDER_BRIDGE_H_ */
