"""Kernels for one region that differ in their choices: compiled, linked together and timed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ortkit.errors import KernelError, UserError
from ortkit.kernels.backend import Kernel, Refused, Target
from ortkit.kernels.compiler import Job, compile_all
from ortkit.kernels.link import find_linker
from ortkit.kernels.sizes import Extent, product, symbols_of
from ortkit.tune import timing_child
from ortkit.tune.cases import TuneCase

_TIMEOUT_SECONDS = 60.0

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


@dataclass(frozen=True)
class Times:
    """What one kernel took.

    Args:
        choices: See `ortkit.kernels.backend.Tunable`.
        processes: Nanoseconds of a run by process and round; empty if there is a problem.
        problem: Why there are no times, empty if there are.
    """

    choices: str
    processes: tuple[tuple[float, ...], ...]
    problem: str = ""

    @property
    def median_ns(self) -> float:
        """The median of all rounds."""
        return median(time for each in self.processes for time in each)

    @property
    def fastest_ns(self) -> float:
        """The least of all rounds."""
        return min(time for each in self.processes for time in each)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    processes: int = 1
    rounds: int = 9
    seconds: float = 0.0003
    """Of one turn; a run that takes longer is a turn."""


@dataclass(frozen=True)
class _Compiled:
    choices: str
    kernel: Kernel


def time_choices(
    case: TuneCase, target: Target, backend: str, choices: Sequence[str], effort: Effort
) -> list[Times]:
    """Compile and time several kernels of a region, in turns; the first is the reference.

    A kernel that does not compile, or computes something else than the reference, has a problem
    and no times.

    Args:
        case: The region, and its sizes.
        target: Resolved, and of this machine.
        backend: A name of the catalog; its backend is `Tunable`.
        choices: The kernels; the first is the one that would be used.
        effort: How long.

    Raises:
        KernelError: They cannot be linked, or the process that times them crashed.
        UserError: No temporary folder can be made.
    """
    with _folder() as folder:
        jobs = []
        for number, each in enumerate(choices):
            (folder / str(number)).mkdir()
            jobs.append(Job(backend, case.signature, target, folder / str(number), each))
        made = compile_all(jobs, _uncounted)
        compiled, problems = [], {}
        for each, one in zip(choices, made, strict=True):
            if isinstance(one, Kernel):
                compiled.append(_Compiled(each, one))
            else:
                problems[each] = one.reason if isinstance(one, Refused) else "no kernel for CPUs"
        if not compiled or choices[0] in problems:
            raise KernelError(f"the default kernel is not there: {problems[choices[0]]}")
        library = _linked(compiled, case, folder)
        results = [_run(case, compiled, library, effort, folder) for _ in range(effort.processes)]
    found = []
    for number, kernel in enumerate(compiled):
        problem = next((one["problems"][number] for one in results if one["problems"][number]), "")
        times = () if problem else tuple(tuple(one["times"][number]) for one in results)
        found.append(Times(kernel.choices, times, problem))
    by_choices = {one.choices: one for one in found}
    return [by_choices.get(each) or Times(each, (), problems[each]) for each in choices]


def _uncounted(done: int, total: int) -> None:
    """Ignore progress."""


@contextmanager
def _folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="ortkit-tune-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(
            f"no temporary folder can be made: {error.strerror}",
            where=tempfile.gettempdir(),
            fix="free some space, or set TMPDIR",
        ) from error
    with folder as name:
        yield Path(name)


def _linked(compiled: Sequence[_Compiled], case: TuneCase, folder: Path) -> Path:
    """Link the kernels with the code that times them."""
    tensors = len(case.signature.inputs) + len(case.signature.outputs)
    parameters = ["void *"] * tensors + ["int64_t"] * (len(case.sizes) + 2)
    places = [f"p[{i}]" for i in range(tensors)] + [f"s[{i}]" for i in range(len(case.sizes))]
    source = _SOURCE % {
        "parameters": ", ".join(parameters),
        "symbols": ", ".join(one.kernel.symbol for one in compiled),
        "arguments": ", ".join([*places, "0", "units"]),
    }
    (folder / "time.c").write_text(source, "utf-8")
    library = folder / "kernels.so"
    objects = [str(one.kernel.artifact) for one in compiled]
    command = [*find_linker(), "-shared", "-fPIC", "-O2", "-o", str(library), "time.c", *objects]
    ended = subprocess.run(
        [*command, "-lm"], cwd=folder, capture_output=True, text=True, errors="replace",
        check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        last = " | ".join(ended.stderr.strip().splitlines()[-3:])
        raise KernelError(f"kernels cannot be linked for timing: {last}")
    return library


def _run(
    case: TuneCase, compiled: Sequence[_Compiled], library: Path, effort: Effort, folder: Path
) -> timing_child.Result:
    """Time the kernels in one process."""
    signature = case.signature
    symbols = symbols_of((*signature.inputs, *signature.outputs))
    names = {f"s{place}": size for place, size in enumerate(case.sizes)}
    assert len(symbols) == len(case.sizes)

    def units(kernel: Kernel) -> int:
        extent = product(kernel.launch.units)
        return _value(extent, names)

    result = folder / "result.json"
    job: timing_child.Job = {
        "library": str(library),
        "units": [units(one.kernel) for one in compiled],
        "inputs": [{"dtype": s.dtype, "shape": [*case.shape(s)]} for s in signature.inputs],
        "outputs": [{"dtype": s.dtype, "shape": [*case.shape(s)]} for s in signature.outputs],
        "sizes": list(case.sizes),
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "result": str(result),
    }
    file = folder / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-P", timing_child.__file__, str(file)]
    result.unlink(missing_ok=True)
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=_TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"kernels did not end within {_TIMEOUT_SECONDS:g} seconds") from error
    if ended.returncode != 0:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        how = f"crashed with signal {-ended.returncode}" if ended.returncode < 0 else "failed"
        last = f": {lines[-1]}" if lines else ""
        raise KernelError(f"the process that times kernels {how}{last}")
    found: timing_child.Result = json.loads(result.read_text("utf-8"))
    return found


def _value(extent: Extent, sizes: dict[str, int]) -> int:
    result = extent.factor
    for name in extent.symbols:
        result *= sizes[name]
    return result
