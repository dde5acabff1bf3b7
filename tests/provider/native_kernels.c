/* Kernels as functions, for the tests of the native library. */
#include <stdint.h>
#include <string.h>

#include "kernel.h"

static int64_t Count(const OrtkitView* view) {
  int64_t count = 1;
  for (int32_t i = 0; i < view->tensor.rank; ++i) count *= view->tensor.dims[i];
  return count;
}

static const float* In(const OrtkitKernelContext* context, int32_t index) {
  return context->inputs[index].tensor.data;
}

/* y = relu((a + b) * c) */
int32_t add_mul_relu(void* user, OrtkitKernelContext* context) {
  (void)user;
  const OrtkitView* a = &context->inputs[0];
  OrtkitView y;
  const int32_t code = context->make_output(context, 0, a->tensor.dims, a->tensor.rank, &y);
  if (code != 0) return code;
  float* out = y.tensor.data;
  for (int64_t i = 0; i < Count(a); ++i) {
    const float x = (In(context, 0)[i] + In(context, 1)[i]) * In(context, 2)[i];
    out[i] = x > 0 ? x : 0;
  }
  return 0;
}

/* Outputs a - b and a * b, and needs memory between. */
int32_t difference_and_product(void* user, OrtkitKernelContext* context) {
  (void)user;
  const OrtkitView* a = &context->inputs[0];
  const int64_t count = Count(a);
  float* kept = context->scratch(context, (size_t)count * sizeof(float));
  char* other = context->scratch(context, 100);
  if (kept == NULL || other == NULL) return 1;
  if ((uintptr_t)kept % 64 != 0 || (uintptr_t)other % 64 != 0) {
    return context->fail(context, 1, "the scratch memory is not aligned");
  }
  memset(other, 1, 100);
  for (int64_t i = 0; i < count; ++i) kept[i] = In(context, 0)[i] - In(context, 1)[i];
  void* outputs[2];
  int64_t signature[16];
  int64_t* at = signature;
  for (int32_t output = 0; output < 2; ++output) {
    *at++ = a->tensor.rank;
    memcpy(at, a->tensor.dims, (size_t)a->tensor.rank * sizeof *at);
    at += a->tensor.rank;
  }
  const int32_t code = context->make_outputs(context, signature, outputs);
  if (code != 0) return code;
  memcpy(outputs[0], kept, (size_t)count * sizeof(float));
  float* product = outputs[1];
  for (int64_t i = 0; i < count; ++i) product[i] = In(context, 0)[i] * In(context, 1)[i];
  return 0;
}

typedef struct Rows {
  const float* in;
  float* out;
  int64_t length;
} Rows;

static void DoubleRow(void* user, size_t index) {
  const Rows* rows = user;
  for (int64_t i = 0; i < rows->length; ++i) {
    const int64_t at = (int64_t)index * rows->length + i;
    rows->out[at] = 2 * rows->in[at];
  }
}

/* y = 2 x, a row of x: float[rows, length] at a time on whatever thread there is. */
int32_t double_rows(void* user, OrtkitKernelContext* context) {
  (void)user;
  const OrtkitView* x = &context->inputs[0];
  OrtkitView y;
  const int32_t code = context->make_output(context, 0, x->tensor.dims, x->tensor.rank, &y);
  if (code != 0) return code;
  Rows rows = {x->tensor.data, y.tensor.data, x->tensor.dims[1]};
  return context->parallel_for(context, DoubleRow, (size_t)x->tensor.dims[0], &rows);
}

/* Of each input: its element type, rank, first dim, DLPack's code, bits and lanes; -1 where it is absent. */
int32_t describe(void* user, OrtkitKernelContext* context) {
  (void)user;
  const int64_t dims[2] = {context->input_count, 6};
  OrtkitView y;
  const int32_t code = context->make_output(context, 0, dims, 2, &y);
  if (code != 0) return code;
  if (y.element_type != 7 || y.tensor.rank != 2 || y.tensor.dims[1] != 6 || y.tensor.device.type != 1) {
    return context->fail(context, 1, "the output's view is wrong");
  }
  int64_t* out = y.tensor.data;
  for (int32_t i = 0; i < context->input_count; ++i, out += 6) {
    const OrtkitView* view = &context->inputs[i];
    const int64_t found[6] = {view->element_type,
                              view->tensor.rank,
                              view->tensor.rank > 0 ? view->tensor.dims[0] : -1,
                              view->tensor.type.code,
                              view->tensor.type.bits,
                              view->tensor.type.lanes};
    for (int32_t k = 0; k < 6; ++k) out[k] = view->value == NULL ? -1 : found[k];
  }
  return 0;
}

/* y = the sum of all inputs. */
int32_t sum_all(void* user, OrtkitKernelContext* context) {
  (void)user;
  const OrtkitView* first = &context->inputs[0];
  OrtkitView y;
  const int32_t code = context->make_output(context, 0, first->tensor.dims, first->tensor.rank, &y);
  if (code != 0) return code;
  float* out = y.tensor.data;
  memset(out, 0, (size_t)Count(first) * sizeof(float));
  for (int32_t i = 0; i < context->input_count; ++i) {
    for (int64_t k = 0; k < Count(first); ++k) out[k] += In(context, i)[k];
  }
  return 0;
}

int32_t fails_with_a_reason(void* user, OrtkitKernelContext* context) {
  (void)user;
  char reason[3000];
  memset(reason, 'x', sizeof reason);
  memcpy(reason, "the reason", 10);
  memcpy(reason + sizeof reason - 5, " end", 5);
  return context->fail(context, 2, reason);
}

int32_t fails_without_a_reason(void* user, OrtkitKernelContext* context) {
  (void)user;
  (void)context;
  return 77;
}

int32_t makes_a_third_output(void* user, OrtkitKernelContext* context) {
  (void)user;
  const int64_t dim = 1;
  return context->make_output(context, 2, &dim, 1, NULL);
}

int32_t makes_a_negative_output(void* user, OrtkitKernelContext* context) {
  (void)user;
  const int64_t dims[2] = {4, -1};
  return context->make_output(context, 0, dims, 2, NULL);
}

int32_t makes_no_output(void* user, OrtkitKernelContext* context) {
  (void)user;
  (void)context;
  return 0;
}

static int32_t released;
void release(void* user) { ++*(int32_t*)user; }
int32_t* release_count(void) { return &released; }
