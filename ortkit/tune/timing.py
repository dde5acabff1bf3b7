"""Kernels for one region that differ in their choices: compiled, and timed interleaved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeAlias

from ortkit.errors import KernelError
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.compiler import Job, compile_all
from ortkit.kernels.cuda import CudaKernel
from ortkit.refusal import Refused
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder
from ortkit.tune import timing_cpu, timing_cuda
from ortkit.tune.cases import TuneCase
from ortkit.tune.timing_child import KernelTimes


@dataclass(frozen=True)
class Times:
    """What one kernel took.

    Args:
        choices: See `ortkit.kernels.tunable.Tunable`.
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
    """Of one turn on a CPU; a run that takes longer is a turn."""


#: Processes that load kernels at once.
_STARTING = 4

#: Measures kernels of a region, as `time_choices` does.
Timer: TypeAlias = Callable[[TuneCase, Target, str, Sequence[str], Effort], list[Times]]
#: Measures compiled kernels: once for each process, with the folder to work in.
Measure: TypeAlias = Callable[
    [TuneCase, Sequence[Kernel | CudaKernel], Effort, Path], Sequence[KernelTimes]
]


@dataclass(frozen=True)
class Request:
    """Kernels of one region to time beside each other.

    Args:
        case: The region, and its sizes.
        backend: A name of the catalog; its backend is `Tunable`.
        choices: The kernels; the first is the reference, the one that would be used.
    """

    case: TuneCase
    backend: str
    choices: Sequence[str]


def time_choices(
    case: TuneCase, target: Target, backend: str, choices: Sequence[str], effort: Effort
) -> list[Times]:
    """Compile and time several kernels of a region on this machine, interleaved.

    A kernel that does not compile, or computes something else than the reference, has a problem
    and no times.

    Args:
        case: The region, and its sizes.
        target: Resolved, and of this machine.
        backend: A name of the catalog; its backend is `Tunable`.
        choices: The kernels; the first is the reference, the one that would be used.
        effort: How many processes, rounds and seconds a timing takes.

    Raises:
        KernelError: They cannot be linked, or the process that times them crashed.
        UserError: No temporary folder can be made.
    """
    return time_with(measured_here, case, target, backend, choices, effort)


def time_with(
    measure: Measure,
    case: TuneCase,
    target: Target,
    backend: str,
    choices: Sequence[str],
    effort: Effort,
) -> list[Times]:
    """Do what `time_choices` does, with kernels that are compiled here and measured elsewhere."""
    (found,) = _timed(measure, [Request(case, backend, choices)], target, effort)
    if isinstance(found, KernelError):
        raise found
    return found


def time_all(
    requests: Sequence[Request], target: Target, effort: Effort
) -> list[list[Times] | KernelError]:
    """Do what `time_choices` does for several regions, whose kernels are compiled together."""
    return _timed(measured_here, requests, target, effort)


def _timed(
    measure: Measure, requests: Sequence[Request], target: Target, effort: Effort
) -> list[list[Times] | KernelError]:
    with TemporaryFolder("tune") as folder:
        jobs = []
        for index, one in enumerate(requests):
            for number, choices in enumerate(one.choices):
                into = folder / f"{index}-{number}"
                into.mkdir()
                signature = one.case.signature
                jobs.append(Job(one.backend, signature, target, into, choices, is_trial=True))
        made = iter(compile_all(jobs, _uncounted))
        parts = [[next(made) for _ in request.choices] for request in requests]

        def measured(index: int) -> list[Times] | KernelError:
            own = folder / str(index)
            own.mkdir()
            try:
                return times_of(measure, requests[index], parts[index], effort, own)
            except KernelError as error:
                return error

        # On a GPU they wait for each other, but for starting and loading.
        with ThreadPoolExecutor(1 if target.traits.is_host else _STARTING) as pool:
            return list(pool.map(measured, range(len(requests))))


def times_of(
    measure: Measure,
    request: Request,
    made: Sequence[Kernel | CudaKernel | Refused],
    effort: Effort,
    folder: Path,
) -> list[Times]:
    """Measure what was compiled.

    Args:
        measure: Who does.
        request: What was asked for.
        made: For each of its choices the kernel, or why there is none.
        effort: How many processes, rounds and seconds a timing takes.
        folder: To work in.

    Raises:
        KernelError: The reference is not there, or `measure` raises.
    """
    pairs = list(zip(request.choices, made, strict=True))
    found = {
        each: Times(each, (), refused.reason)
        for each, refused in pairs
        if isinstance(refused, Refused)
    }
    if request.choices[0] in found:
        problem = found[request.choices[0]].problem
        raise KernelError(f"the default kernel is not there: {problem}")
    compiled = {each: item for each, item in pairs if not isinstance(item, Refused)}
    results = measure(request.case, list(compiled.values()), effort, folder)
    for number, each in enumerate(compiled):
        problem = next(
            (result.problems[number] for result in results if result.problems[number]), ""
        )
        times = () if problem else tuple(result.times[number] for result in results)
        found[each] = Times(each, times, problem)
    return [found[each] for each in request.choices]


def measured_here(
    case: TuneCase, kernels: Sequence[Kernel | CudaKernel], effort: Effort, folder: Path
) -> list[KernelTimes]:
    """Measure kernels on this machine; see `Measure`.

    Raises:
        KernelError: They cannot be linked, or the process that times them crashed.
    """
    for_cpu = [kernel for kernel in kernels if isinstance(kernel, Kernel)]
    for_cuda = [kernel for kernel in kernels if isinstance(kernel, CudaKernel)]
    if for_cuda:
        return [timing_cuda.run(for_cuda, case, effort.rounds) for _ in range(effort.processes)]
    library = timing_cpu.link(for_cpu, case, folder)
    return [
        timing_cpu.run(library, for_cpu, case, effort.rounds, effort.seconds)
        for _ in range(effort.processes)
    ]


def _uncounted(done: int, total: int) -> None:
    """Ignore progress."""
