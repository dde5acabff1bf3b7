"""Which fused nodes pay: each with its kernel against its function body, in real sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import onnx
import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.isolation.ended import Ended, Failed
from ortkit.isolation.run import stream_isolated
from ortkit.kernels.build.library import toolchain
from ortkit.kernels.tuning.calibration import machine
from ortkit.measure.fused import FusedCase, case_model, fused_cases
from ortkit.measure.known import KnownTimes
from ortkit.measure.region_child import CasesJob, CaseTimes, time_cases
from ortkit.measure.result import Compared, RegionTiming, compare
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.timing.variants import NotTimed, Variant, time_variants

ROUNDS = 6
#: Of one turn; a round has two of each variant.
_TURN_SECONDS = 0.02
_TIMEOUT_SECONDS = 30.0
_LEAST_SECONDS = 0.2
#: Times with more noise are taken again, and are not kept for the next run.
MOST_NOISE = 0.1
_MOST_TRIES = 3


@dataclass(frozen=True)
class RegionJob:
    """A model whose regions are to be timed.

    Args:
        model: Read, not changed.
        saved: The same as a file.
        library: Of its kernels.
        level: Of the processor that they are for.
        feeds: An npz file that the model runs on.
        threads: Of a session; 0: ONNX Runtime decides.
        folder: For small models and profiles.
        timeout_seconds: For the run of the whole model that shows the sizes.
    """

    model: ir.Model
    saved: Path
    library: Path
    level: str
    feeds: Path
    threads: int
    folder: Path
    timeout_seconds: float


def time_regions(job: RegionJob) -> tuple[RegionTiming, ...] | NotTimed:
    """Time each fused operator at each of the sizes that it has in the model.

    Times that are known from an earlier run are taken from the cache.
    """
    shown = time_variants(
        [Variant(job.saved, job.library)],
        [job.feeds],
        job.folder,
        seconds=_LEAST_SECONDS,
        profile_seconds=_LEAST_SECONDS,
        timeout_seconds=job.timeout_seconds,
        threads=job.threads,
    )
    if isinstance(shown, NotTimed):
        return shown
    if shown.profile_file is None:
        return NotTimed("the model was not profiled")
    try:
        cases = fused_cases(job.model, shown.profile_file)
    except UserError as error:
        return NotTimed(str(error))
    known = KnownTimes(_conditions(job))
    before = known.load()
    new = [case for case in cases if _name(case) not in before]
    timed = _settled(job, new)
    low_noise = {name: compared for name, compared in timed.items() if _is_low_noise(compared)}
    if low_noise:
        known.add(low_noise)
    return tuple(
        _region(case, before.get(_name(case)) or timed[_name(case)], _name(case) in before)
        for case in cases
    )


def _conditions(job: RegionJob) -> str:
    ort = import_onnxruntime()
    return "\n".join(
        [machine(), f"threads {job.threads}", ort.__version__, job.level, toolchain()]
    )


def _name(case: FusedCase) -> str:
    weights = "".join("w" if item else "x" for item in case.constant)
    return f"{case.op.rpartition('_')[2]} {weights} {' '.join(case.described)}"


def _is_low_noise(compared: Compared | str) -> TypeGuard[Compared]:
    return isinstance(compared, Compared) and compared.noise <= MOST_NOISE


def _settled(job: RegionJob, cases: Sequence[FusedCase]) -> dict[str, Compared | str]:
    """Time cases by name, noisy ones again; the times with the least noise count."""
    best: dict[str, Compared | str] = {}
    left = list(cases)
    for _ in range(_MOST_TRIES):
        for case, compared in zip(left, _timed(job, left), strict=True):
            before = best.get(_name(case))
            if not isinstance(before, Compared) or (
                isinstance(compared, Compared) and compared.noise < before.noise
            ):
                best[_name(case)] = compared
        # What crashed would do so again.
        left = [case for case in left if isinstance(compared := best[_name(case)], Compared)
                and not _is_low_noise(compared)]  # fmt: skip
        if not left:
            break
    return best


def _timed(job: RegionJob, cases: Sequence[FusedCase]) -> list[Compared | str]:
    """Return for each case its times, or why it has none."""
    models, copies = [], []
    for number, case in enumerate(cases):
        small = case_model(job.model, case)
        models.append(job.folder / f"region{number}.onnx")
        copies.append(len(small.graph.node))
        onnx.save(small, models[-1])
    found: list[Compared | str] = []
    while len(found) < len(cases):
        # A crash ends the process: the case it was at has no times, the others go on.
        left = tuple(models[len(found) :])
        timing = CasesJob(left, job.library, job.threads, ROUNDS, _TURN_SECONDS)
        seconds = _TIMEOUT_SECONDS * len(left)
        for event in stream_isolated(
            time_cases, timing, timeout_seconds=seconds, imports="nothing"
        ):
            found.append(
                _problem(event)
                if isinstance(event, Ended)
                else _compared(event, copies[len(found)])
            )
    return found


def _problem(ended: Ended) -> str:
    return ended.problem if isinstance(ended, Failed) else f"the process {ended}"


def _compared(times: CaseTimes, copies: int) -> Compared | str:
    """Return the microseconds of one of the copies."""
    if times.problem:
        return times.problem
    body, kernel = (
        [1e6 / copies * each for each in elapsed] for elapsed in (times.body, times.kernel)
    )
    return compare(body, kernel)


def _region(case: FusedCase, found: Compared | str, from_cache: bool) -> RegionTiming:
    if isinstance(found, str):
        nothing = (None, None, None, None)
        return RegionTiming(
            case.op, case.nodes, case.described, *nothing, kept=True, from_cache=False,
            problem=found,
        )  # fmt: skip
    return RegionTiming(
        op=case.op,
        nodes=case.nodes,
        inputs=case.described,
        body_us=found.before,
        kernel_us=found.after,
        ratio=found.ratio,
        noise=found.noise,
        kept=found.verdict == "faster",
        from_cache=from_cache,
        problem="",
    )
