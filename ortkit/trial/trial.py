"""One trial, straight down: optimize, time before and after, profile, verify; nothing is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import onnx_ir as ir

from ortkit.errors import ModelError, UserError
from ortkit.graph.analysis.cost import model_cost
from ortkit.graph.analysis.summary import Summary
from ortkit.graph.inline import inline_functions
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.measure.inputs import shapes_in, write_inputs
from ortkit.measure.result import Ceiling
from ortkit.measure.whole import ceiling_of
from ortkit.optimization.call import Optimized, OptimizeOptions, optimize
from ortkit.optimization.options import Precision
from ortkit.runtime.heavy import HEAVY
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.timing.variants import NotTimed, Timing, Variant, speedup, time_variants
from ortkit.targets.catalog import Kind, traits_of
from ortkit.temporary import TemporaryFolder
from ortkit.trial.outlook import Facts, outlook
from ortkit.trial.result import Holder, Latency, Prospect, Trial
from ortkit.verify.budget import check_budget
from ortkit.verify.fixed_batch import verifier_of
from ortkit.verify.inputs.covering import Level
from ortkit.verify.verification import Verification

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
#: How the time is shared out; what a stage leaves over goes to the next.
_FOR_TIMING, _FOR_PROFILE = 0.35, 0.1
_MOST_TIMING_SECONDS, _MOST_PROFILE_SECONDS = 20.0, 4.0
_LEAST_SECONDS = 2.0
_HOLDERS = 8


def _silent(stage: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class TrialOptions:
    """How to try."""

    target: Kind = "cpu"
    level: int = 2
    precision: Precision = "fp32"
    """As for `OptimizeOptions`; in another one than fp32 `optimize` verifies, in its own time."""
    passes: str = ""
    seconds: float = 60.0
    """Time for all of it. Only rewriting a model, once begun, is not cut off."""
    coverage: Level = "quick"
    """How much verification covers."""
    verify_seconds: float | None = None
    """For the sessions of verification; None: what is left of `seconds`."""
    verify_memory: int | None = None
    """MiB for each process of verification; None: as `Verifier` says."""
    inputs: Path | None = None
    """An npz file to run on."""
    shapes: Mapping[str, int] = field(default_factory=dict)
    threads: int = 0
    """Of one session; 0: ONNX Runtime decides."""
    progress: Callable[[str], None] = _silent

    def __post_init__(self) -> None:
        if not _LEAST_SECONDS <= self.seconds < math.inf:
            raise UserError(f"cannot be {self.seconds:g}", where="--seconds", fix="give 2 or more")
        check_budget(self.verify_seconds, self.verify_memory)


class _OutOfTimeError(Exception):
    """The time is over between two stages of optimizing."""


def try_model(source: Path, options: TrialOptions | None = None) -> Trial:
    """Optimize a model and time it before and after; writes nothing but temporary files.

    Raises:
        ModelError: `source` is not a valid model.
        UserError: The inputs or sizes do not fit it.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    require_onnxruntime()
    with TemporaryFolder("try") as folder:
        return _Trial(source, options or TrialOptions(), folder).run()


class _Trial:
    """One call of `try_model`: what its stages share."""

    def __init__(self, source: Path, options: TrialOptions, folder: Path) -> None:
        self.source = source
        self.options = options
        self.folder = folder
        self.candidate = folder / "candidate.onnx"
        self.started = time.perf_counter()
        self.notes: list[str] = []
        self.providers = traits_of(options.target).providers

    def left(self) -> float:
        """Return the seconds that are left, never less than a moment."""
        return max(_LEAST_SECONDS, self.options.seconds - self.spent())

    def spent(self) -> float:
        """Return the seconds that are over."""
        return time.perf_counter() - self.started

    def run(self) -> Trial:
        """Do one stage after the other."""
        model = open_model(self.source)
        inputs = self._inputs(model)
        optimized = self._optimized()
        timing = self._timing(optimized, inputs)
        checked = self._checked(optimized)
        shapes = shapes_in(timing.feeds) if timing is not None else {}
        flops = self._flops(shapes)
        before = _latency(timing, 0)
        after = _latency(timing, 1)
        profile = timing.profile if timing is not None else None
        report = optimized.report if optimized is not None else None
        self.notes += [failed.text for failed in report.failed_passes] if report else []
        return Trial(
            source=str(self.source),
            inputs=shapes,
            providers=self.providers,
            nodes_before=sum(1 for _ in ir.traversal.RecursiveGraphIterator(model.graph)),
            nodes_after=report.after.nodes if report is not None else 0,
            rewrites=len(report.hits) if report is not None else 0,
            kernels=sum(region.emitted_as is not None for region in report.regions)
            if report
            else 0,
            before=before,
            after=after,
            speedup=speedup(*timing.seconds) if timing and len(timing.seconds) == 2 else None,
            ceiling=_ceiling(before, profile),
            holders=_holders(before, profile),
            flops=flops,
            outlook=self._outlook(before, profile, flops, model),
            checked=checked,
            notes=tuple(self.notes),
            seconds=round(self.spent(), 1),
        )

    def _inputs(self, model: ir.Model) -> tuple[Path, ...]:
        try:
            return write_inputs(model, self.options.inputs, self.options.shapes, self.folder)
        except ModelError as error:
            self.notes.append(f"not timed: {error}")
            return ()

    def _optimized(self) -> Optimized | None:
        """Optimize; when half of the time is over, stop before the next stage."""

        def stage(name: str) -> None:
            self.options.progress(name)
            if self.spent() > self.options.seconds / 2:
                raise _OutOfTimeError

        is_lowered = self.options.precision != "fp32"
        try:
            found = optimize(
                self.source,
                OptimizeOptions(
                    target=self.options.target,
                    level=self.options.level,
                    passes=self.options.passes,
                    precision=self.options.precision,
                    verify=self.options.coverage if is_lowered else False,
                    verify_seconds=self.options.verify_seconds if is_lowered else None,
                    verify_memory=self.options.verify_memory if is_lowered else None,
                    inputs=self.options.inputs,
                    shapes=self.options.shapes,
                    check_load=False,
                    progress=stage,
                ),
            )
        except _OutOfTimeError:
            self.notes.append("not optimized: that takes longer than half of the time given")
            return None
        save_model(found.model, self.candidate, is_temporary=True)
        return found

    def _timing(self, optimized: Optimized | None, inputs: tuple[Path, ...]) -> Timing | None:
        if not inputs:
            return None
        self.options.progress("time")
        variants = [Variant(self.source)]
        if optimized is not None:
            variants.append(Variant(self.candidate, optimized.library))
        left = self.left()
        found = time_variants(
            variants,
            inputs,
            self.folder,
            seconds=min(_MOST_TIMING_SECONDS, _FOR_TIMING * left),
            profile_seconds=min(_MOST_PROFILE_SECONDS, _FOR_PROFILE * left),
            timeout_seconds=left,
            providers=self.providers,
            threads=self.options.threads,
        )
        if isinstance(found, NotTimed):
            self.notes.append(f"not timed: {found.reason}")
            return None
        return found

    def _checked(self, optimized: Optimized | None) -> Verification:
        if optimized is None:
            return _unchecked("there is no optimized model")
        if optimized.report.verification is not None:
            return optimized.report.verification
        left = self.options.seconds - self.spent()
        if self.options.verify_seconds is None and left < _LEAST_SECONDS:
            return _unchecked("no time is left for it")
        self.options.progress("verify")
        with verifier_of(
            self.source,
            coverage=self.options.coverage,
            inputs=self.options.inputs,
            shapes=self.options.shapes,
            seconds=self.options.verify_seconds or left,
            memory_mib=self.options.verify_memory,
        ) as verifier:
            return verifier.check(self.candidate, library=optimized.library, keeps_names=True)

    def _flops(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Count the arithmetic of a run on these shapes."""
        model = open_model(self.source)
        for value in model.graph.inputs:
            if (known := shapes.get(value.name or "")) is not None:
                value.shape = ir.Shape(known)
        if model.functions:
            inline_functions(model)
        return model_cost(model, {}).flops if shapes else 0

    def _outlook(
        self, before: Latency | None, profile: Profile | None, flops: int, model: ir.Model
    ) -> tuple[Prospect, ...]:
        if before is None or profile is None or not traits_of(self.options.target).is_host:
            return ()
        facts = Facts(
            milliseconds=before.median_ms,
            heavy_share=profile.share(HEAVY),
            ops=frozenset(op.op for op in profile.ops),
            calls=round(sum(op_row.calls for op_row in profile.ops)),
            flops=flops,
            parameters=Summary.of(model).parameters,
        )
        return outlook(facts)


def _unchecked(reason: str) -> Verification:
    return Verification("not possible", reason, fix="give more time with --seconds S")


def _latency(timing: Timing | None, index: int) -> Latency | None:
    if timing is None or index >= len(timing.seconds):
        return None
    rounds = timing.seconds[index]
    return Latency(1e3 * median(rounds), 1e3 * timing.fastest[index], len(rounds))


def _ceiling(before: Latency | None, profile: Profile | None) -> Ceiling | None:
    if before is None or profile is None:
        return None
    return ceiling_of(before.median_ms, profile)


def _holders(before: Latency | None, profile: Profile | None) -> tuple[Holder, ...]:
    if before is None or profile is None:
        return ()
    whole = profile.overall.profiled.median_us
    found = [(op_row.op, op_row.own_us / whole, round(op_row.calls)) for op_row in profile.ops]
    found.append(("(runtime)", max(0.0, 1 - profile.overall.covered_us / whole), 0))
    found.sort(key=lambda one: -one[1])
    return tuple(
        Holder(op, share * before.median_ms, share, calls) for op, share, calls in found[:_HOLDERS]
    )
