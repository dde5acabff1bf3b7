"""`ortkit tune` of kernels that are no regions of a model: those that users wrote for ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ortkit.errors import KernelError, UserError
from ortkit.kernels.backend import Kernel, Refused, Target
from ortkit.kernels.calibration import processor
from ortkit.kernels.cpu import resolve
from ortkit.kernels.folders import temporary_folder
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tuned import Place, cache_file
from ortkit.tune.cases import TuneCase
from ortkit.tune.loop import Loop
from ortkit.tune.options import TuneOptions
from ortkit.tune.region import TuningRegion
from ortkit.tune.result import TuneResult
from ortkit.tune.runners import LOCAL
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, Request, Timer, Times, measured_here, times_of

#: What a named size is taken for where nobody says: alone, and beside others.
_ALONE, _USUAL = 65_536, 512


class WrittenKernel(Protocol):
    """A kernel that a user wrote, with choices of ours."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def signature(self) -> RegionSignature:
        """Its tensors."""
        ...

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """What can be chosen, the default first of each."""
        ...

    @property
    def generator(self) -> str:
        """Names what makes it: trials of another one are repeated."""
        ...

    def sizes(self, given: Mapping[str, int], usual: int) -> tuple[int, ...]:
        """Return a number for each named size; raises UserError where it is for no such sizes."""
        ...

    def compile_as(self, target: Target, folder: Path, choices: str) -> Kernel:
        """Compile it as chosen; raises KernelError where that fails."""
        ...


def tune_kernels(
    kernels: Sequence[WrittenKernel], options: TuneOptions, backend: str, source: str
) -> TuneResult:
    """Tune kernels for this machine's processor, all alike.

    Args:
        kernels: What to tune.
        options: See `TuneOptions`; what it says of models means nothing here.
        backend: What records are kept under.
        source: Where the kernels come from, for the result.

    Raises:
        UserError: Options or a database make no sense, or nothing can be written.
    """
    if options.target != "cpu" or options.runner != LOCAL:
        raise UserError(
            "kernels of ops are tuned for this machine's processor",
            where="--runner" if options.target == "cpu" else "--target", fix="leave it out",
        )  # fmt: skip
    target, store = resolve(Target("cpu", options.cpu)), TuneStore(options.db, options.merge)
    loop = Loop(store, target, options.trials, options.budget, options.progress)
    shapes: dict[str, tuple[int, ...]] = {}
    for one in kernels:
        try:
            case = _case(one, options.shapes, 1 / len(kernels))
        except UserError as error:
            loop.notes.append(str(error))
            continue
        place = Place(processor(), target.level, backend, one.signature.key, case.bucket)
        record = store.record(place, one.name, one.generator)
        loop.regions.append(
            TuningRegion(
                case, backend, target, place, record, _timer(one),
                parameters=dict(one.parameters), name=one.name,
            )
        )  # fmt: skip
        shapes |= {f"{one.name}: {x.name}": case.shape(x) for x in one.signature.inputs}
    loop.search(float("inf") if options.budget is None else options.budget)
    loop.confirm()
    files = [cache_file(), *([options.db] if options.db is not None else [])]
    return TuneResult(
        source=source, machine=processor(), level=target.level, inputs=shapes,
        regions=tuple(one.result() for one in loop.regions), alternatives=(),
        trials=loop.new_trials, predicted_gain=loop.predicted_gain(),
        files=tuple(str(path) for path in files if path.exists()), notes=tuple(loop.notes),
        seconds=round(loop.spent, 2),
    )  # fmt: skip


def _case(kernel: WrittenKernel, given: Mapping[str, int], share: float) -> TuneCase:
    sizes = kernel.sizes(given, _USUAL)
    if len(sizes) == 1:
        sizes = kernel.sizes(given, _ALONE)
    return TuneCase(kernel.signature, sizes, share)


def _timer(kernel: WrittenKernel) -> Timer:
    """Return what compiles a kernel in this process, which has its code, and times it."""

    def time(
        case: TuneCase, target: Target, backend: str, choices: Sequence[str], effort: Effort
    ) -> list[Times]:
        with temporary_folder("tune") as folder:
            made = [
                _compiled(kernel, target, folder / str(number), each)
                for number, each in enumerate(choices)
            ]
            request = Request(case, backend, choices)
            return times_of(measured_here, request, made, effort, folder)

    return time


def _compiled(
    kernel: WrittenKernel, target: Target, folder: Path, choices: str
) -> Kernel | Refused:
    folder.mkdir()
    try:
        return kernel.compile_as(target, folder, choices)
    except KernelError as error:
        return Refused(error.problem)
