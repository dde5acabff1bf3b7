"""The one call, straight down: open, rewrite, fuse, compile, verify; `save` writes the result."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ortkit.graph.analysis.summary import Summary
from ortkit.kernels.tuning.calibration import stored_calibration
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.candidates import Candidates
from ortkit.optimization.options import OptimizeOptions as OptimizeOptions
from ortkit.optimization.padding import padding_note
from ortkit.optimization.precision_stage import new_lowering, within_budget
from ortkit.optimization.report import Report
from ortkit.optimization.result import Optimized as Optimized
from ortkit.optimization.workspace import Source as Source
from ortkit.optimization.workspace import Workspace
from ortkit.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ortkit.measure.result import Measurement
    from ortkit.measure.short_timing import ShortTiming
    from ortkit.verify.kernels.report import KernelReport
    from ortkit.verify.verification import Verification


def optimize(source: Source, options: OptimizeOptions | None = None) -> Optimized:
    """Rewrite, fuse and verify a model. The source is never changed.

    Args:
        source: A path, a serialized model, a `ModelProto` or an `ir.Model`.
        options: How; see `OptimizeOptions`.

    Raises:
        ModelError: The source is not a valid model.
        UserError: The options ask for something that cannot be.
        MissingDependencyError: A runtime that is needed is not installed.
        RunError: ONNX Runtime does not load the source.
        InternalError: A bug in ortkit.
    """
    options = options or OptimizeOptions()
    options = replace(options, shapes={**options.shapes, **options.fixed_shapes})
    folder = TemporaryFolder("optimize")
    try:
        candidates = Candidates(Workspace(source, options, folder.path))
        candidate, findings = _best(candidates)
    except BaseException:
        folder.cleanup()
        raise
    report = _report(candidates, candidate, findings)
    return Optimized(candidate.model, candidate.library, report, folder, candidate.sources, source)


@dataclass(frozen=True)
class _Findings:
    """What the stages found of the candidate that is returned; None where one was not run."""

    verification: Verification | None
    kernel_check: KernelReport | None
    measurement: Measurement | None
    load_check: str
    timing: ShortTiming | None


def _best(candidates: Candidates) -> tuple[Candidate, _Findings]:
    """Run the stages: each judges the candidate, and has another made where it must."""
    work, options = candidates.work, candidates.work.options
    verify = measure = verification = timing = None
    load_check = ""
    if options.has_budget:
        candidates.lowering = new_lowering(work)
    with ExitStack() as stack:
        if options.verify:
            from ortkit.optimization.verify_stage import VerifyStage

            verify = VerifyStage(candidates)
            stack.enter_context(verify.verifiers)
            verify.begin()
        candidate = within_budget(candidates, candidates.first())
        if options.measure:
            from ortkit.optimization.measure_stage import MeasureStage

            measure = MeasureStage(candidates)
            candidate = measure.paying(candidate)
        if verify is not None:
            candidate, verification = verify.verified(candidate)
        while measure is not None and not measure.confirms(candidate):
            candidate = candidates.make()
            if verify is not None:
                candidate, verification = verify.verified(candidate)
        if options.check_load:
            from ortkit.optimization.load_stage import LoadStage

            load = LoadStage(candidates)
            while (found := load.loadable(candidate, verification)) is not candidate:
                candidate = found
                if verify is None:
                    break
                candidate, verification = verify.verified(candidate)
            load_check = load.outcome
    if options.timing and (measure is None or measure.measurer.model is None):
        from ortkit.optimization.time_stage import timed

        timing = timed(work, candidate, candidates.before.weight_bytes)
    return candidate, _Findings(
        verification,
        None if verify is None else verify.kernels.report,
        None if measure is None else measure.measurer.result(),
        load_check,
        timing,
    )


def _report(candidates: Candidates, candidate: Candidate, findings: _Findings) -> Report:
    """Collect what there is to say."""
    options, result = candidates.work.options, candidate.result
    lowering = candidates.lowering
    rolled_back = (*candidates.wrong_kernels, *candidates.rolled_back, *candidates.not_loading)
    return Report(
        source=candidates.work.name,
        target=options.target,
        level=options.level,
        before=candidates.before,
        after=Summary.of(candidate.model),
        steps=tuple(result.steps),
        settled=result.settled,
        hits=tuple(result.log.hits),
        misses=tuple(result.log.misses),
        regions=candidate.regions,
        rolled_back=rolled_back,
        denied_in_vain=tuple(sorted(options.denied - result.log.met)),
        failed_passes=tuple(candidates.failed.values()),
        load_check=findings.load_check,
        verification=findings.verification,
        measurement=findings.measurement,
        timing=findings.timing,
        kernel_note=candidate.kernel_note,
        sizes_note=_sizes_note(options, candidate),
        kernel_check=findings.kernel_check,
        names=candidates.names,
        provider_options={} if candidate.layout is None else candidate.layout.options,
        padding=padding_note(candidate.model),
        layout_note="" if candidate.layout is None else candidate.layout.reason,
        precision=None if lowering is None else lowering.report(result.log),
        source_kernels=candidates.fused.note(candidate),
        calibration=str(stored_calibration() or "") if options.has_regions else "",
        seconds={stage: round(elapsed, 4) for stage, elapsed in candidates.work.seconds.items()},
    )


def _sizes_note(options: OptimizeOptions, candidate: Candidate) -> str:
    """Say which sizes of images convolutions lack for kernels; empty if they lack none."""
    if not options.has_regions or not options.machine.traits.is_host:
        return ""
    from ortkit.fusion.conv.unknown_sizes import unknown_sizes_note

    return unknown_sizes_note(candidate.result.scopes)
