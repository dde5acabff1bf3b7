/* A host without Python and without ONNX Runtime's headers: loads a model with its kernel library.
 *
 * usage: deploy LIBONNXRUNTIME MODEL KERNELS COLUMNS [REPEAT [ENTRY]] < inputs > output
 *
 * The model has an input X, float[rows, COLUMNS], an input B, float[COLUMNS], and an output Y like X.
 * Standard input holds B, then the rows of X; Y is written to standard output. With REPEAT the whole
 * is done so many times over in one process. With ENTRY 1 the library is registered through
 * RegisterCustomOpsLibrary, the entry that the ONNX Runtime backend of Triton calls: it opens the
 * path as it stands and hands its handle over, which is never closed.
 *
 * Slots of OrtApi by number, as in custom_ops/native/ort_abi.h.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void Status;
typedef void* const* Api;
typedef struct ApiBase {
  Api (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} ApiBase;

enum { kFloat = 1, kWarning = 2, kDeviceAllocator = 0, kMaxFloats = 1 << 20 };

static Api api;

#define SLOT(index, type) ((type)(uintptr_t)api[index])

static void Check(Status* status, const char* doing) {
  if (status == NULL) return;
  fprintf(stderr, "%s: %s\n", doing, SLOT(2, const char* (*)(const Status*))(status));
  exit(1);
}

static void* Tensor(void* memory, float* data, size_t count, const int64_t* dims, size_t rank) {
  void* value = NULL;
  Check(SLOT(49, Status* (*)(void*, void*, size_t, const int64_t*, size_t, int, void**))(
            memory, data, count * sizeof(float), dims, rank, kFloat, &value),
        "CreateTensorWithDataAsOrtValue");
  return value;
}

static void Register(void* options, const char* path, int entry) {
  if (entry == 1) {
    void* handle = NULL;
    Check(SLOT(29, Status* (*)(void*, const char*, void**))(options, path, &handle),
          "RegisterCustomOpsLibrary");
    if (handle == NULL) exit(1);
    return;
  }
  Check(SLOT(228, Status* (*)(void*, const char*))(options, path), "RegisterCustomOpsLibrary_V2");
}

static void RunModel(void* env, char** paths, size_t columns, float* numbers, size_t count,
                     int entry) {
  void *options = NULL, *session = NULL, *memory = NULL, *result = NULL;
  Check(SLOT(10, Status* (*)(void**))(&options), "CreateSessionOptions");
  Check(SLOT(24, Status* (*)(void*, int))(options, 2), "SetIntraOpNumThreads");
  Register(options, paths[1], entry);
  Check(SLOT(7, Status* (*)(void*, const char*, const void*, void**))(env, paths[0], options, &session),
        "CreateSession");
  SLOT(100, void (*)(void*))(options);  /* the session goes on without it */
  Check(SLOT(69, Status* (*)(int, int, void**))(kDeviceAllocator, 0, &memory), "CreateCpuMemoryInfo");
  const size_t rows = count / columns - 1;
  const int64_t dims[2] = {(int64_t)rows, (int64_t)columns};
  void* inputs[2] = {Tensor(memory, numbers + columns, rows * columns, dims, 2),
                     Tensor(memory, numbers, columns, dims + 1, 1)};
  const char* const input_names[2] = {"X", "B"};
  const char* const output_names[1] = {"Y"};
  Check(SLOT(9, Status* (*)(void*, const void*, const char* const*, void* const*, size_t,
                            const char* const*, size_t, void**))(
            session, NULL, input_names, inputs, 2, output_names, 1, &result),
        "Run");
  float* output = NULL;
  Check(SLOT(51, Status* (*)(void*, void**))(result, (void**)&output), "GetTensorMutableData");
  fwrite(output, sizeof(float), rows * columns, stdout);
  for (int i = 0; i < 2; ++i) SLOT(96, void (*)(void*))(inputs[i]);
  SLOT(96, void (*)(void*))(result);
  SLOT(94, void (*)(void*))(memory);
  SLOT(95, void (*)(void*))(session);
}

int main(int count, char** words) {
  if (count < 5) return fprintf(stderr, "see the head of deploy.c\n"), 2;
  void* runtime = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (runtime == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  const ApiBase* base = ((const ApiBase* (*)(void))(uintptr_t)dlsym(runtime, "OrtGetApiBase"))();
  api = base->GetApi(24);
  if (api == NULL) return fprintf(stderr, "ONNX Runtime %s is too old\n", base->GetVersionString()), 1;
  float* numbers = malloc(kMaxFloats * sizeof(float));
  if (numbers == NULL) return 1;
  const size_t read = fread(numbers, sizeof(float), kMaxFloats, stdin);
  void* env = NULL;
  Check(SLOT(3, Status* (*)(int, const char*, void**))(kWarning, "deploy", &env), "CreateEnv");
  const int repeat = count > 5 ? atoi(words[5]) : 1;
  const int entry = count > 6 ? atoi(words[6]) : 2;
  for (int i = 0; i < repeat; ++i) {
    RunModel(env, words + 2, (size_t)atol(words[4]), numbers, read, entry);
  }
  SLOT(92, void (*)(void*))(env);
  free(numbers);
  return 0;
}
