/* What programs are made of: functions as kernel.h declares them that run kernels in a row. C11. */
#ifndef ORTKIT_PROVIDER_PROGRAM_H_
#define ORTKIT_PROVIDER_PROGRAM_H_

#include "kernel.h"
#include "slices.h"

/* Runs one kernel of a program on the session's threads. */
static inline int32_t run_step(OrtkitKernelContext* context, OrtkitCall call, char* const* data,
                               const int64_t* sizes, int64_t units, OrtkitUnitCost cost) {
  if (units <= 0) return 0;
  OrtkitSlices work = {call, data, sizes, units, 0, 0, 0};
  OrtkitTask task = NULL;
  const size_t tasks = OrtkitCutWork(&work, &cost, &task);
  if (tasks == 1) {
    task(&work, 0);
  } else {
    const int32_t code = context->parallel_for(context, task, tasks, &work);
    if (code != 0) return code;
  }
  return work.failure == 0 ? 0 : context->fail(context, 1, "a kernel failed");
}

/* A constant of a program: the bytes of the file NAME.bin, which the compiler finds beside it. */
#define CONSTANT(name)                                                        \
  __asm__(".pushsection .rodata.constants,\"a\",@progbits\n.balign 64\n" #name \
          ":\n.incbin \"" #name ".bin\"\n.popsection\n");                     \
  extern const char name[] __attribute__((visibility("hidden")))

#endif /* ORTKIT_PROVIDER_PROGRAM_H_ */
