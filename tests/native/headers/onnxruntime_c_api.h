/* Stands in for ONNX Runtime's header of this name: what the programs of docs/guides/deploy.md use.
 *
 * OrtApi is one flat, append-only table; the gaps hold the entries that no program here calls. Their
 * numbers are those of tests/native/deploy.c and custom_ops/native/ort_abi.h.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORT_API_VERSION 24

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtValue OrtValue;

typedef enum { ORT_LOGGING_LEVEL_WARNING = 2 } OrtLoggingLevel;
typedef enum { OrtDeviceAllocator = 0 } OrtAllocatorType;
typedef enum { OrtMemTypeDefault = 0 } OrtMemType;
typedef enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 } ONNXTensorElementDataType;

typedef struct OrtApi {
  void* gap_0[2];
  const char* (*GetErrorMessage)(const OrtStatus*);
  OrtStatus* (*CreateEnv)(OrtLoggingLevel, const char* log_id, OrtEnv** out);
  void* gap_4[3];
  OrtStatus* (*CreateSession)(const OrtEnv*, const char* path, const OrtSessionOptions*, OrtSession** out);
  void* gap_8[1];
  OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const* input_names,
                    const OrtValue* const* inputs, size_t input_count, const char* const* output_names,
                    size_t output_count, OrtValue** outputs);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions** out);
  void* gap_11[38];
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void* data, size_t bytes,
                                               const int64_t* shape, size_t rank,
                                               ONNXTensorElementDataType, OrtValue** out);
  void* gap_50[1];
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void** out);
  void* gap_52[17];
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo** out);
  void* gap_70[22];
  void (*ReleaseEnv)(OrtEnv*);
  void (*ReleaseStatus)(OrtStatus*);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo*);
  void (*ReleaseSession)(OrtSession*);
  void (*ReleaseValue)(OrtValue*);
  void* gap_97[3];
  void (*ReleaseSessionOptions)(OrtSessionOptions*);
  void* gap_101[127];
  OrtStatus* (*RegisterCustomOpsLibrary_V2)(OrtSessionOptions*, const char* path);
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} OrtApiBase;

const OrtApiBase* OrtGetApiBase(void);

#ifdef __cplusplus
}
#endif
