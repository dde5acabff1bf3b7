"""Kernels for CPUs, linked with the code that times them and called interleaved in a process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ortkit.errors import KernelError
from ortkit.kernels.backend import Kernel
from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.sizes import product
from ortkit.targets.cpu import ASK_FOR_TILES, has_tiles
from ortkit.temporary import tools_in
from ortkit.tune.cases import TuneCase, tensors_of
from ortkit.tune.processes import timed_in_process
from ortkit.tune.timing_child import CpuTimingJob, KernelTimes, time_on_cpu

# The time of the thread: what other processes take of the processor does not count.
_SOURCE = """#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <time.h>
typedef int32_t kernel(%(parameters)s);
extern kernel %(symbols)s;
static kernel *const kernels[] = {%(symbols)s};
static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}
int64_t ortkit_time(int32_t number, void **p, const int64_t *s, int64_t units, int64_t runs) {
  const int64_t began = now();
  for (int64_t i = 0; i < runs; ++i) kernels[number](%(arguments)s);
  return now() - began;
}
"""

# In whichever process loads the library, also on another machine.
_ASK = f"""
long syscall(long number, ...);
__attribute__((constructor)) static void ask_for_tiles(void) {{
  syscall({", ".join(f"{number}L" for number in ASK_FOR_TILES)});
}}
"""


def link(kernels: Sequence[Kernel], case: TuneCase, folder: Path, more: str = "") -> Path:
    """Link kernels for one region with the code that times them, and return the library.

    Args:
        kernels: Each with a symbol of its own.
        case: The region.
        folder: For the library.
        more: C code to follow, which may call `ortkit_time`.

    Raises:
        KernelError: The linker failed.
    """
    tensors = len(case.signature.inputs) + len(case.signature.outputs)
    parameters = ["void *"] * tensors + ["int64_t"] * (len(case.sizes) + 2)
    arguments = [f"p[{i}]" for i in range(tensors)] + [f"s[{i}]" for i in range(len(case.sizes))]
    source = _SOURCE % {
        "parameters": ", ".join(parameters),
        "symbols": ", ".join(kernel.symbol for kernel in kernels),
        "arguments": ", ".join([*arguments, "0", "units"]),
    }
    if any(has_tiles(kernel.target.level) for kernel in kernels):
        more = _ASK + more
    return shared_library(source + more, [kernel.artifact for kernel in kernels], folder)


def shared_library(source: str, objects: Sequence[Path], folder: Path) -> Path:
    """Compile C code, link it with object files, and return the library.

    Raises:
        KernelError: The compiler failed.
    """
    (folder / "time.c").write_text(source, "utf-8")
    library = folder / "kernels.so"
    command = [*find_linker(), "-shared", "-fPIC", "-O2", "-o", str(library), "time.c"]
    ended = subprocess.run(
        [*command, *map(str, objects), "-lm"], cwd=folder, capture_output=True, text=True,
        errors="replace", check=False, env=tools_in(folder),
    )  # fmt: skip
    if ended.returncode != 0:
        last = " | ".join(ended.stderr.strip().splitlines()[-3:])
        raise KernelError(f"kernels cannot be linked for timing: {last}")
    return library


def units_of(kernel: Kernel, case: TuneCase) -> int:
    """Return how many units of work a kernel has at the sizes of a case."""
    return case.value(product(kernel.launch.units))


def run(
    library: Path,
    kernels: Sequence[Kernel],
    case: TuneCase,
    rounds: int,
    seconds: float,
) -> KernelTimes:
    """Time the kernels of a library in a process of their own.

    Args:
        library: See `link`.
        kernels: That are in it, in their order.
        case: The region, and its sizes.
        rounds: Of all kernels interleaved.
        seconds: Of one turn.

    Raises:
        KernelError: The process crashed, or did not end.
    """
    inputs, outputs = tensors_of(case)
    units = tuple(units_of(kernel, case) for kernel in kernels)
    job = CpuTimingJob(library, units, inputs, outputs, case.sizes, rounds, seconds)
    return timed_in_process(time_on_cpu, job)
