/* A host without Python and without ONNX Runtime's headers: runs a model that was compiled ahead of time
 * (EPContext nodes) with ortkit's provider library.
 *
 * usage: provider_host LIBONNXRUNTIME PROVIDER MODEL ROWS TRUST [REPEAT] < inputs > output
 *
 * The model has inputs a, b and c and an output y, all float[ROWS, 4]. Standard input holds a, b, c; y is
 * written to standard output. TRUST is the option trust. With REPEAT the whole is done so many
 * times over in one process; every second time the library is unregistered while the session lives.
 *
 * Slots of OrtApi by number, as in custom_ops/native/provider/ep_abi.h.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void Status;
typedef void* const* Api;
typedef struct ApiBase {
  Api (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} ApiBase;

enum { kFloat = 1, kError = 3, kDeviceAllocator = 0, kMaxFloats = 1 << 20 };

static const char kProvider[] = "OrtkitExecutionProvider";
static const char kRegistration[] = "ortkit";
static Api api;

#define SLOT(index, type) ((type)(uintptr_t)api[index])

static void Check(Status* status, const char* doing) {
  if (status == NULL) return;
  fprintf(stderr, "%s: %s\n", doing, SLOT(2, const char* (*)(const Status*))(status));
  exit(1);
}

static const void* FindDevice(void* env) {
  const void* const* devices = NULL;
  size_t count = 0;
  Check(SLOT(303, Status* (*)(void*, const void* const**, size_t*))(env, &devices, &count), "GetEpDevices");
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(SLOT(312, const char* (*)(const void*))(devices[i]), kProvider) == 0) return devices[i];
  }
  fprintf(stderr, "no device of %s\n", kProvider);
  exit(1);
}

static void* CreateSession(void* env, const char* model, const char* trust) {
  void *options = NULL, *session = NULL;
  const void* device = FindDevice(env);
  const char* const keys[] = {"trust"};
  const char* const values[] = {trust};
  Check(SLOT(10, Status* (*)(void**))(&options), "CreateSessionOptions");
  Check(SLOT(304, Status* (*)(void*, void*, const void* const*, size_t, const char* const*,
                              const char* const*, size_t))(options, env, &device, 1, keys, values, 1),
        "SessionOptionsAppendExecutionProvider_V2");
  Check(SLOT(7, Status* (*)(void*, const char*, const void*, void**))(env, model, options, &session),
        "CreateSession");
  SLOT(100, void (*)(void*))(options);
  return session;
}

static void Run(void* session, float* numbers, int64_t rows) {
  void *memory = NULL, *inputs[3] = {NULL, NULL, NULL}, *result = NULL;
  const int64_t dims[2] = {rows, 4};
  const size_t count = (size_t)rows * 4;
  Check(SLOT(69, Status* (*)(int, int, void**))(kDeviceAllocator, 0, &memory), "CreateCpuMemoryInfo");
  for (size_t i = 0; i < 3; ++i) {
    Check(SLOT(49, Status* (*)(void*, void*, size_t, const int64_t*, size_t, int, void**))(
              memory, numbers + i * count, count * sizeof(float), dims, 2, kFloat, &inputs[i]),
          "CreateTensorWithDataAsOrtValue");
  }
  const char* const names[] = {"a", "b", "c"};
  const char* const output[] = {"y"};
  Check(SLOT(9, Status* (*)(void*, const void*, const char* const*, void* const*, size_t,
                            const char* const*, size_t, void**))(session, NULL, names, inputs, 3,
                                                                 output, 1, &result),
        "Run");
  float* found = NULL;
  Check(SLOT(51, Status* (*)(void*, void**))(result, (void**)&found), "GetTensorMutableData");
  fwrite(found, sizeof(float), count, stdout);
  for (size_t i = 0; i < 3; ++i) SLOT(96, void (*)(void*))(inputs[i]);
  SLOT(96, void (*)(void*))(result);
  SLOT(94, void (*)(void*))(memory);
}

static void Unregister(void* env) {
  Check(SLOT(302, Status* (*)(void*, const char*))(env, kRegistration), "UnregisterExecutionProviderLibrary");
}

int main(int count, char** words) {
  if (count < 6) return fprintf(stderr, "see the head of provider_host.c\n"), 2;
  void* runtime = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (runtime == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  const ApiBase* base = ((const ApiBase* (*)(void))(uintptr_t)dlsym(runtime, "OrtGetApiBase"))();
  api = base->GetApi(24);
  if (api == NULL) return fprintf(stderr, "ONNX Runtime %s is too old\n", base->GetVersionString()), 1;
  float* numbers = malloc(kMaxFloats * sizeof(float));
  if (numbers == NULL) return 1;
  const size_t read = fread(numbers, sizeof(float), kMaxFloats, stdin);
  const int64_t rows = atol(words[4]);
  if (read != (size_t)rows * 12) return fprintf(stderr, "%zu numbers\n", read), 1;
  void* env = NULL;
  Check(SLOT(3, Status* (*)(int, const char*, void**))(kError, "host", &env), "CreateEnv");
  const int repeat = count > 6 ? atoi(words[6]) : 1;
  for (int i = 0; i < repeat; ++i) {
    Check(SLOT(301, Status* (*)(void*, const char*, const char*))(env, kRegistration, words[2]),
          "RegisterExecutionProviderLibrary");
    void* session = CreateSession(env, words[3], words[5]);
    Run(session, numbers, rows);
    if (i % 2 == 1) Unregister(env);
    SLOT(95, void (*)(void*))(session);
    if (i % 2 == 0) Unregister(env);
  }
  SLOT(92, void (*)(void*))(env);
  free(numbers);
  return 0;
}
