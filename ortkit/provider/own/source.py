"""C source of programs: functions as custom_ops/native/provider/kernel.h declares them.

A program reads its inputs' sizes, checks that they are what it was made for, makes the outputs,
and runs its kernels on the session's threads. What lies between them is given back after the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ortkit.kernels.backend import Kernel
from ortkit.provider.own.program import Program
from ortkit.provider.own.writer import ProgramWriter, adapter

#: The files that decide what is written.
_WRITERS = ("source.py", "writer.py", "sizes.py", "scratch.py")

#: Work is cut into slices as in custom_ops/native/kernel.cc.
_PRELUDE = """#include "kernel.h"

#include <stdatomic.h>
#include <unistd.h>

#define SLICE_PICOSECONDS 16e6
#define SLICE_SHARE 4
#define VECTOR 64
#define SLICES_PER_CORE 2

typedef int32_t (*Call)(char* const* data, const int64_t* sizes, int64_t begin, int64_t end);
typedef struct Work {
  Call call;
  char* const* data;
  const int64_t* sizes;
  int64_t units, slice;
  atomic_int failure;
} Work;

static void run_slice(void* user, size_t index) {
  Work* work = user;
  const int64_t begin = (int64_t)index * work->slice;
  const int64_t left = work->units - begin;
  const int64_t end = begin + (left < work->slice ? left : work->slice);
  const int32_t code = work->call(work->data, work->sizes, begin, end);
  if (code != 0) atomic_store_explicit(&work->failure, code, memory_order_relaxed);
}

static int64_t even_slice(int64_t units, int64_t slice) {
  static atomic_long known;
  long cores = atomic_load_explicit(&known, memory_order_relaxed);
  if (cores == 0) {
    cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores < 1) cores = 1;
    atomic_store_explicit(&known, cores, memory_order_relaxed);
  }
  int64_t slices = (units - 1) / slice + 1;
  if (slices > SLICES_PER_CORE * cores) slices = SLICES_PER_CORE * cores;
  if (slices > cores) slices -= slices % cores;
  return (units - 1) / slices + 1;
}

static inline int32_t run_step(OrtkitKernelContext* context, Call call, char* const* data,
                               const int64_t* sizes, int64_t units, int64_t points,
                               int64_t picoseconds, int64_t shared_nanoseconds,
                               int64_t slice_picoseconds) {
  if (units <= 0) return 0;
  Work work = {call, data, sizes, units, units, 0};
  const double shared = (double)shared_nanoseconds * 1e3 / (double)units;
  const double unit = (double)points * (double)picoseconds + shared + 1;
  const double extra = SLICE_SHARE * (double)points * (double)slice_picoseconds;
  const double least = extra > SLICE_PICOSECONDS ? extra : SLICE_PICOSECONDS;
  if (unit * (double)units > least) {
    int64_t slice = (int64_t)(least / unit) + 1;
    if (slice_picoseconds != 0) slice = even_slice(units, slice);
    else if (points == 1 && slice > VECTOR) slice = (slice + VECTOR - 1) / VECTOR * VECTOR;
    if (slice < units) work.slice = slice;
  }
  if (work.slice == units) {
    run_slice(&work, 0);
  } else {
    const int32_t code =
        context->parallel_for(context, run_slice, (size_t)((units - 1) / work.slice + 1), &work);
    if (code != 0) return code;
  }
  const int code = atomic_load_explicit(&work.failure, memory_order_relaxed);
  return code == 0 ? 0 : context->fail(context, 1, "a kernel failed");
}
"""


def fingerprint() -> str:
    """Name what writes programs: libraries of another one are made again."""
    folder = Path(__file__).parent
    content = b"".join((folder / name).read_bytes() for name in _WRITERS)
    return hashlib.sha256(content).hexdigest()[:16]


def programs_source(
    programs: Sequence[Program], kernels: Mapping[str, Kernel]
) -> tuple[str, dict[str, bytes]]:
    """Return the C source of programs, and the files of constants that it includes by name.

    Args:
        programs: Of each key one; `unsolved` of each is None.
        kernels: By the keys of signatures.
    """
    files: dict[str, bytes] = {}
    parts = [_PRELUDE]
    for key in sorted({step.signature.key for one in programs for step in one.steps}):
        step = next(s for one in programs for s in one.steps if s.signature.key == key)
        parts.append(adapter(step, kernels[key]))
    for program in sorted(programs, key=lambda one: one.symbol):
        writer = ProgramWriter(program, kernels)
        parts.append(writer.text())
        files |= writer.files
    if files:
        names = "\n".join(f"CONSTANT({name});" for name in sorted(files))
        parts.insert(1, f"{_CONSTANT}\n{names}\n")
    return "\n".join(parts), {f"{name}.bin": content for name, content in files.items()}


_CONSTANT = (
    "#define CONSTANT(name) \\\n"
    '  __asm__(".pushsection .rodata.constants,\\"a\\",@progbits\\n.balign 64\\n" \\\n'
    '          #name ":\\n.incbin \\"" #name ".bin\\"\\n.popsection\\n"); \\\n'
    '  extern const char name[] __attribute__((visibility("hidden")))'
)
