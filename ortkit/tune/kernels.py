"""`ortkit tune` of kernels that are no regions of a model: those that users wrote for ops."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from ortkit.errors import UserError
from ortkit.isolation.ended import Ended, Failed
from ortkit.isolation.forked import in_processes
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.compiler import cores
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.tuning.calibration import processor
from ortkit.kernels.tuning.database import RecordKey, cache_file
from ortkit.refusal import Refused
from ortkit.targets.catalog import traits_of
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder
from ortkit.tune.cases import TuneCase
from ortkit.tune.loop import Loop
from ortkit.tune.options import TuneOptions
from ortkit.tune.region import BATCH, Proposer, TuningRegion
from ortkit.tune.result import TuneResult
from ortkit.tune.runners import LOCAL
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, Request, Timer, Times, measured_here, times_of

#: What a named size is taken for where nobody says: alone, and beside others.
_ALONE, _USUAL = 65_536, 512
#: Schedules that unroll everything compile for minutes, and are no faster.
_COMPILE_SECONDS = 15.0
#: The part of the time for searches before the one that is asked for.
_EARLIER = 0.25


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
    def backend(self) -> str:
        """What records are kept under."""
        ...

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """What can be chosen, the default first of each."""
        ...

    @property
    def generator(self) -> str:
        """Names what makes it: trials of another one are repeated."""
        ...

    @property
    def bucket(self) -> str:
        """The sizes that records are kept under; empty: as those of regions are."""
        ...

    @property
    def first(self) -> str:
        """Choices to try first; empty for none."""
        ...

    @property
    def propose(self) -> Proposer | None:
        """What says what to try next; None: the search through `parameters`."""
        ...

    def sizes(self, given: Mapping[str, int], usual: int) -> tuple[int, ...]:
        """Return a number for each named size; raises UserError where it is for no such sizes."""
        ...

    def compile_as(self, target: Target, folder: Path, choices: str) -> Kernel:
        """Compile it as chosen; raises KernelError where that fails."""
        ...


def tune_kernels(
    searches: Sequence[Sequence[WrittenKernel]],
    options: TuneOptions,
    source: str,
    notes: Sequence[str] = (),
) -> TuneResult:
    """Tune kernels for this machine's processor, all alike.

    Args:
        searches: What to tune. Of several searches the last one is what is asked for. One before
            is done as far as it was not yet, with a batch for each kernel, so that what it finds
            can be compared.
        options: See `TuneOptions`; what it says of models means nothing here.
        source: Where the kernels come from, for the result.
        notes: What was left undone before.

    Raises:
        UserError: Options or a database make no sense, or nothing can be written.
    """
    is_host = traits_of(options.target).is_host
    if not is_host or options.runner != LOCAL:
        raise UserError(
            "kernels of ops are tuned for this machine's processor",
            where="--runner" if is_host else "--target", fix="leave it out",
        )  # fmt: skip
    _check_names(options.shapes, [kernel for kernels in searches for kernel in kernels])
    target, store = (
        Target(options.target, options.cpu).resolved(),
        TuneStore(options.db, options.merge),
    )
    began, said = time.monotonic(), [*notes]
    regions: list[TuningRegion] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for index, kernels in enumerate(searches):
        is_last = index == len(searches) - 1
        tried = sum(region.new_trials for region in regions)
        trials = None if options.trials is None else options.trials - tried
        loop = Loop(store, target, trials, options.seconds, options.progress, notes=said,
                    began=began, in_turns=True)  # fmt: skip
        for kernel in kernels:
            try:
                case = _case(kernel, options.shapes, 1 / len(kernels))
            except UserError as error:
                said.append(str(error))
                continue
            loop.regions.append(_region(kernel, case, store, target))
            if is_last:
                shapes |= {
                    f"{kernel.name}: {x.name}": case.shape(x) for x in kernel.signature.inputs
                }
        until = float("inf") if options.seconds is None else options.seconds
        if not is_last:
            loop.regions = [region for region in loop.regions if not region.record.confirmed]
            batches = BATCH * len(loop.regions)
            loop.trials = batches if trials is None else min(batches, trials // 2)
            until *= _EARLIER
        loop.search(until)
        loop.confirm()
        regions += loop.regions
    said += (
        f"{region.name}: of {len(region.record.trials)} kernels none is faster than the default"
        for region in loop.regions
        if region.record.confirmed == len(region.record.trials) > 0 and not region.record.best
    )
    files = [cache_file(), *([options.db] if options.db is not None else [])]
    return TuneResult(
        source=source, machine=processor(), level=target.level, inputs=shapes,
        regions=tuple(region.result() for region in regions), alternatives=(),
        trials=sum(region.new_trials for region in regions), predicted_gain=_gain(regions),
        files=tuple(str(path) for path in files if path.exists()), notes=tuple(said),
        seconds=round(loop.spent, 2),
    )  # fmt: skip


def _check_names(given: Mapping[str, int], kernels: Sequence[WrittenKernel]) -> None:
    known = dict.fromkeys(
        name
        for kernel in kernels
        for name in symbols_of((*kernel.signature.inputs, *kernel.signature.outputs))
    )
    for name in given:
        if name not in known:
            raise UserError(
                f"no kernel has a size {name!r}", where="--shape",
                fix=f"known: {', '.join(known) or 'none'}",
            )  # fmt: skip


def _gain(regions: Sequence[TuningRegion]) -> float:
    """Return how many times as fast all kernels are together, each after its best search."""
    gains: dict[str, float] = {}
    for region in regions:
        gains[region.record_key.key] = max(
            region.record.gain, gains.get(region.record_key.key, 1.0)
        )
    return len(gains) / sum(1 / gain for gain in gains.values()) if gains else 1.0


def _region(
    kernel: WrittenKernel, case: TuneCase, store: TuneStore, target: Target
) -> TuningRegion:
    bucket = kernel.bucket or case.bucket
    record_key = RecordKey(processor(), target.level, kernel.backend, kernel.signature.key, bucket)
    record = store.record(record_key, kernel.name, kernel.generator)
    return TuningRegion(
        case, kernel.backend, target, record_key, record, _timer(kernel), shipped=kernel.first,
        parameters=dict(kernel.parameters), name=kernel.name, propose=kernel.propose,
    )  # fmt: skip


def _case(kernel: WrittenKernel, given: Mapping[str, int], share: float) -> TuneCase:
    sizes = kernel.sizes(given, _USUAL)
    if len(sizes) == 1:
        sizes = kernel.sizes(given, _ALONE)
    return TuneCase(kernel.signature, sizes, share)


def _timer(kernel: WrittenKernel) -> Timer:
    """Return what times a kernel; copies of this process, which has its code, compile it."""

    def time(
        case: TuneCase, target: Target, backend: str, choices: Sequence[str], effort: Effort
    ) -> list[Times]:
        with TemporaryFolder("tune") as folder:
            calls = [
                partial(_compiled, kernel, target, folder / str(number), each)
                for number, each in enumerate(choices)
            ]
            found = in_processes(calls, cores(), _COMPILE_SECONDS)
            made = [_refused(each) if isinstance(each, Ended) else each for each in found]
            request = Request(case, backend, choices)
            return times_of(measured_here, request, made, effort, folder)

    return time


def _refused(ended: Ended) -> Refused:
    if isinstance(ended, Failed) and ended.status == 1:
        return Refused(ended.problem)
    return Refused(f"the process that compiles it {ended}")


def _compiled(kernel: WrittenKernel, target: Target, folder: Path, choices: str) -> Kernel:
    folder.mkdir()
    return kernel.compile_as(target, folder, choices)
