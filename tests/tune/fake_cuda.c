/* A driver that runs "images", shared libraries, on the host: void entry(void **arguments, unsigned blocks). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void entry(void **, unsigned);
static int launched;

int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Fake GPU", size); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
  *value = which == 75 ? 9 : which == 76 ? 0 : 1 << 20;
  return 0;
}
int cuGetErrorName(int status, const char **text) {
  *text = status == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_INVALID_IMAGE";
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &launched; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxSynchronize(void) { return launched < 0 ? 700 : 0; }
int cuMemAlloc_v2(uint64_t *pointer, size_t size) { *pointer = (uint64_t)malloc(size); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { memcpy(to, (void *)from, n); return 0; }
int cuMemsetD8Async(uint64_t to, unsigned char with, size_t n, void *s) { memset((void *)to, with, n); return 0; }
int cuMemsetD32Async(uint64_t to, unsigned with, size_t n, void *s) { memset((void *)to, 0, 4 * n); return 0; }
int cuFuncSetAttribute(void *function, int which, int value) { return value > 232448; }
int cuModuleLoadData(void **module, const char *image) {
  *module = dlopen(image, RTLD_NOW); /* an image is the path of a library */
  return *module == NULL ? 200 : 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = dlsym(module, name);
  return *function == NULL ? 500 : 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
  ((entry *)function)(arguments, x);
  return 0;
}
int cuEventCreate(struct timespec **event, unsigned flags) {
  *event = calloc(1, sizeof **event);
  return 0;
}
int cuEventRecord(struct timespec *event, void *stream) { return clock_gettime(CLOCK_MONOTONIC, event); }
int cuEventSynchronize(struct timespec *event) { return 0; }
int cuEventElapsedTime(float *ms, struct timespec *a, struct timespec *b) {
  *ms = 1e3f * (b->tv_sec - a->tv_sec) + 1e-6f * (b->tv_nsec - a->tv_nsec);
  return 0;
}
