"""The one call, straight down: open, rewrite, fuse, compile, verify; `save` writes the result."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ortkit.env import ends_on_pass_error
from ortkit.errors import CheckError, KernelError, MissingDependencyError, UserError
from ortkit.fusion.regions.report import RegionReport
from ortkit.graph.analysis.summary import Summary
from ortkit.graph.io.convert import paused_collector
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.shapes.fixed import fix_sizes
from ortkit.isolation.group import ProcessGroup, ending
from ortkit.kernels.metadata import LIBRARY_SUFFIX
from ortkit.kernels.tuning.calibration import stored_calibration
from ortkit.optimization.ahead import VerifierAhead, has_room
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.fused_source import FusedSource, keeping, mark_calls, take_marks
from ortkit.optimization.kernels import compile_kernels, foreign_note
from ortkit.optimization.options import OptimizeOptions as OptimizeOptions
from ortkit.optimization.padding import PADDING_KEY, SKIPPED_KEY, NamedPadding, zero_padding
from ortkit.optimization.passes import (
    lowering_of,
    padding_pipeline,
    pipeline_of,
    rewrite_options,
    tidied,
)
from ortkit.optimization.report import Report
from ortkit.optimization.result import Optimized as Optimized
from ortkit.passes.skip_padding import SkipPadding
from ortkit.rewrite.failures import FailedPass, PassError, blamed
from ortkit.rewrite.pipeline import PipelineResult
from ortkit.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ortkit.fusion.conv.cuda_layout import LayoutAdvice
    from ortkit.measure.measurer import Measurer
    from ortkit.measure.short_timing import ShortTiming
    from ortkit.precision.lowering import CpuLowering
    from ortkit.verify.fixed_batch import BatchVerifier
    from ortkit.verify.kernels.check import KernelReport
    from ortkit.verify.verification import Gap, Verification
    from ortkit.verify.verifier import KernelsOf, Verifier

#: Stages that are left out as a pass is if they raise.
KERNELS, LAYOUT, LOWERING = "kernels", "layout", "precision"

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


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
    folder = TemporaryFolder("optimize")
    verification = None
    try:
        run = _Run(source, options or OptimizeOptions(), folder.path)
        with run.verifiers:
            run.begin_verifying()
            candidate = run.within_budget(run.first())
            if run.options.measure:
                candidate = run.paying(candidate)
            if run.options.verify:
                candidate, verification = run.verified(candidate)
            while run.options.measure and not run.confirms(candidate):
                candidate = run.candidate(frozenset(run.rolled_back))
                if run.options.verify:
                    candidate, verification = run.verified(candidate)
            if run.options.check_load:
                candidate, verification = run.loaded(candidate, verification)
        if run.options.timing:
            run.time(candidate)
    except BaseException:
        folder.cleanup()
        raise
    return Optimized(
        candidate.model,
        candidate.library,
        run.report(candidate, verification),
        folder,
        candidate.sources,
        run.source,
    )


class _Run:
    """One call of `optimize`: what its stages share."""

    def __init__(self, source: Source, options: OptimizeOptions, work: Path) -> None:
        self.source = source
        sizes = {**options.shapes, **options.fixed_shapes}
        self.options = options = replace(options, shapes=sizes)
        self.seconds: dict[str, float] = {}
        self.work = work
        self.rolled_back: tuple[str, ...] = ()
        self.not_loading: tuple[str, ...] = ()
        """Rewrites that keep a result from loading."""
        self.dropped: frozenset[str] = frozenset()
        """Regions whose kernels do not pay."""
        self.slow_kernels = ""
        """Why there are to be no kernels at all, empty if there may be."""
        self.measurer: Measurer | None = None
        self.failed: dict[str, FailedPass] = {}
        """By name, the passes and stages that raised: they are left out of every candidate."""
        self.timing: ShortTiming | None = None
        """Of a run of the source and of the result."""
        self.load_check = ""
        """Whether the result loads; see `Report.load_check`."""
        self.wrong_kernels: dict[str, str] = {}
        """By id, rewrites whose kernels do not give what their bodies do, and how."""
        self.kernel_check: KernelReport | None = None
        """Of the kernels of the latest candidate."""
        self._libraries = 0
        self.pipeline = pipeline_of(options)
        with self._stage("open"):
            self._opened: ir.Model | None = self._open()
            self.before = Summary.of(self._opened)
            self.names = _names(self._opened)
            self.fused = FusedSource.of(self._opened, options)
        self.lowering = _new_lowering(self) if options.has_budget else None
        self.verifiers = VerifierAhead(self._verifier)

    def _open(self) -> ir.Model:
        """Open the source, with the sizes that are to be fixed as numbers."""
        model = open_model(self.source)
        if self.options.fixed_shapes:
            fix_sizes(model, self.options.fixed_shapes)
        if (padding := NamedPadding.of(self.options.skip_padding)) is not None:
            zero_padding(model, padding)
        return model

    def first(self) -> Candidate:
        """Return the candidate in which no fused node of the source has lost its kernel, if any.

        Those that are not formed again are kept, as far as there are kernels for them.
        """
        candidate = self.candidate(frozenset())
        while self.fused.keep_more(candidate):
            candidate = self.candidate(frozenset())
        return candidate

    def candidate(
        self,
        denied: frozenset[str],
        fuel: int | None = None,
        *,
        kernels: bool = True,
        lowered: bool = True,
    ) -> Candidate:
        """Rewrite, fuse and compile a fresh copy of the source, but for the denied rewrites.

        A pass that raises is left out. It may have left half of an edit, so that the next attempt
        starts from another copy; each attempt has a pass less.
        """
        while True:
            try:
                return self._candidate(denied, fuel, kernels=kernels, lowered=lowered)
            except PassError as error:
                self._leave_out(error)

    def _leave_out(self, error: PassError) -> None:
        """Let no further attempt have the pass or stage that raised."""
        if error.failed.name in self.failed or ends_on_pass_error():
            raise error
        self.failed[error.failed.name] = error.failed
        if error.failed.name == LOWERING and self.lowering is not None:
            self.lowering.give_up(f"{error.failed.exception}: {error.failed.message}")

    def _candidate(
        self, denied: frozenset[str], fuel: int | None, *, kernels: bool, lowered: bool
    ) -> Candidate:
        model = self._opened or self._open()
        self._opened = None
        told = rewrite_options(self.options)
        denied = denied | self.options.denied | self.dropped | self.wrong_kernels.keys()
        denied |= frozenset(self.not_loading)
        bodies = self.fused.kept_but(denied) if kernels and not self.slow_kernels else {}
        mark_calls(model)
        with self._stage("rewrite"), paused_collector():
            result = keeping(self.pipeline.without(self.failed), bodies.keys()).run(
                model,
                told,
                denied=denied,
                fuel=self.options.fuel if fuel is None else fuel,
                instruments=self.options.instruments,
            )
            if self.options.precision != "fp32" and not self.options.lowers_products:
                # Once everything is recognized: casts would stand in the way.
                result = (
                    lowering_of(self.options)
                    .without(self.failed)
                    .run(model, told, instruments=self.options.instruments, after=result)
                )
        if self.lowering is not None and lowered and LOWERING not in self.failed:
            with self._stage("precision"), blamed(LOWERING):
                self.lowering.lower(model, result.log)
                result = tidied(result, told, self.failed)
        if self.options.skips_padding:
            with self._stage("padding"):
                passes = padding_pipeline().without(self.failed)
                result = passes.run(
                    model, told, instruments=self.options.instruments, after=result
                )
                if any(hit.pass_name == SkipPadding.name for hit in result.log.hits):
                    model.metadata_props[SKIPPED_KEY] = "yes"
        with self._stage("kernels"):
            regions, library, note = self._regions(result, bodies) if kernels else ((), None, "")
        emitted = frozenset(one.emitted_as for one in regions if one.emitted_as is not None)
        if not emitted:
            library = None
        left = take_marks(model, emitted)
        sources = self._sources() if library is not None and self.options.keep_source else None
        explained = tuple(map(self._explained, regions))
        layout = self._layout(model, result)
        return Candidate(model, result, explained, library, note, layout, sources, left)

    def _layout(self, model: ir.Model, result: PipelineResult) -> LayoutAdvice | None:
        """Let the model say how its convolutions run best where a session has an option for it."""
        if not self.options.machine.traits.has_nhwc_option or LAYOUT in self.failed:
            return None
        from ortkit.fusion.conv.cuda_layout import advise, record_advice

        with blamed(LAYOUT):
            advice = advise(result.scopes)
            record_advice(model, advice)
        return advice

    def _sources(self) -> Path:
        """Return where the code of the latest library's kernels is kept."""
        return self.work / f"sources{self._libraries}"

    def _explained(self, region: RegionReport) -> RegionReport:
        """Return the report of a region, with the reason if its kernel is slow or wrong."""
        is_dropped = any(one.endswith(f":{region.kind}:{region.at}") for one in self.dropped)
        if wrong := self._wrong_kernel(region):
            return replace(region, reason=f"its kernel is wrong: {wrong}")
        if region.emitted_as is None and is_dropped:
            return replace(region, reason="its kernel does not pay, as measured")
        return region

    def _wrong_kernel(self, region: RegionReport) -> str:
        """Return how the kernel of a region that was put back is wrong, empty if it is not."""
        ends = f":{region.kind}:{region.at}"
        found = (why for one, why in self.wrong_kernels.items() if one.endswith(ends))
        return next(found, "") if region.emitted_as is None else ""

    def _regions(
        self, result: PipelineResult, bodies: Mapping[str, onnx.FunctionProto]
    ) -> tuple[tuple[RegionReport, ...], Path | None, str]:
        if not self.options.has_regions:
            return (), None, ""
        if self.slow_kernels:
            return (), None, self.slow_kernels
        if (failed := self.failed.get(KERNELS)) is not None:
            return (), None, f"making them failed: {failed.exception}: {failed.message}"
        # Each candidate has a library of its own: any of them may be the one that is written.
        self._libraries += 1
        library = self.work / f"kernels{self._libraries}{LIBRARY_SUFFIX}"
        with blamed(KERNELS, (MissingDependencyError, KernelError)):
            return compile_kernels(result, self.options, library, self._sources(), bodies)

    def _runnable(self, candidate: Candidate) -> Path | None:
        """Return the library if this machine can load it."""
        return None if foreign_note(candidate.library, self.options) else candidate.library

    def paying(self, candidate: Candidate) -> Candidate:
        """Time the regions of a candidate; without those that do not pay, if there are some."""
        from ortkit.measure.measurer import Measurer
        from ortkit.targets.cpu import native_level

        options = self.options
        if foreign := foreign_note(candidate.library, options):
            raise UserError(foreign, where="--measure", fix="leave --measure or --cpu out")
        with self._stage("measure"):
            self.measurer = Measurer(
                self.original(), options.inputs, options.shapes, options.threads, self.work,
                options.progress,
            )  # fmt: skip
            if candidate.library is None:
                return candidate
            level = native_level() if options.cpu == "native" else options.cpu
            saved, placed = self._saved(candidate), candidate.placed()
            self.dropped = self.measurer.choose(
                candidate.model, saved, candidate.library, level, placed
            )
        return self.candidate(frozenset()) if self.dropped else candidate

    def within_budget(self, candidate: Candidate) -> Candidate:
        """Return products to float32 until the result is off by no more than the user allows."""
        try:
            with blamed(LOWERING, (CheckError, KernelError)):
                return self._within_budget(candidate)
        except PassError as error:
            self._leave_out(error)
        return self.candidate(frozenset())

    def _within_budget(self, candidate: Candidate) -> Candidate:
        if (lowering := self.lowering) is None:
            return candidate
        with self._stage("precision"):
            while True:
                if lowering.return_unfused(candidate.model):
                    candidate = self.candidate(frozenset())
                    continue
                library = self._runnable(candidate)
                error = lowering.measure(self._saved(candidate), library)
                if error <= lowering.max_error or not lowering.has_lowered:
                    break
                if not lowering.return_some(error):
                    lowering.return_all()
                candidate = self.candidate(frozenset())
        if not lowering.has_lowered or foreign_note(candidate.library, self.options):
            return candidate
        from ortkit.runtime.timing.variants import Variant

        plain = self.candidate(frozenset(), lowered=False)
        lower = Variant(self._saved(candidate), candidate.library)
        with self._stage("precision"):
            if lowering.pays(lower, Variant(self._saved(plain, "plain.onnx"), plain.library)):
                return candidate
        lowering.explain(plain.log)
        return plain

    def confirms(self, candidate: Candidate) -> bool:
        """Compare the result with the source; False if kernels make it slower, and must go."""
        from ortkit.runtime.timing.variants import Variant

        measurer = self.measurer
        assert measurer is not None
        if self.slow_kernels:
            return True  # what is left was timed beside them

        def plain() -> Path:
            without = self.candidate(frozenset(self.rolled_back), kernels=False)
            return self._saved(without, "plain.onnx")

        result = Variant(self._saved(candidate), candidate.library)
        ids, ops = candidate.joint()
        together = ops if ids and candidate.placed() else frozenset()
        with self._stage("confirm"):
            kept = measurer.confirm(
                result, plain if candidate.library is not None else None, together
            )
        if not kept and together:
            self.dropped |= ids
        elif not kept:
            self.slow_kernels = "with them the model is slower, as measured"
        return kept

    def with_right_kernels(
        self,
        candidate: Candidate,
        denied: frozenset[str] = frozenset(),
        *,
        is_beside: bool = False,
    ) -> Candidate:
        """Check each kernel beside its body; put back regions of wrong ones.

        Kernels for this CPU are run, kernels for CUDA on a GPU or by Triton's interpreter.

        Args:
            candidate: With kernels, or without any.
            denied: What was denied for it.
            is_beside: Whether that is part of another stage.

        Raises:
            CheckError: A kernel is wrong, and nothing puts its region back.
        """
        from ortkit.verify.kernels.check import SECONDS, check_kernels

        while True:
            self.kernel_check = None
            is_host = self.options.machine.traits.is_host
            # Whether there is a device for them the check itself finds out.
            library = self._runnable(candidate) if is_host else candidate.library
            if library is None:
                return candidate
            with nullcontext() if is_beside else self._stage("check kernels"):
                self.kernel_check = check_kernels(
                    candidate.model,
                    library,
                    seconds=SECONDS[self.options.coverage],
                    interpret=self.options.coverage,
                )
            failed = self.kernel_check.failed
            if not failed:
                return candidate
            wrong = {
                rewrite: row.reason
                for row in failed
                for rewrite in candidate.rewrites_of({row.op_type})
            }
            if not wrong.keys() - self.wrong_kernels.keys():
                raise CheckError(
                    f"the kernel {failed[0].op_type} is wrong: {failed[0].reason}",
                    where=self._name(),
                    fix="report it with the model; --kernels off leaves kernels out",
                )
            self.wrong_kernels |= wrong
            candidate = self.candidate(denied)

    def _verifier(self) -> Verifier | BatchVerifier:
        from ortkit.verify.fixed_batch import verifier_of

        options = self.options
        return verifier_of(
            self.original(),
            samples=options.samples,
            coverage=options.coverage,
            inputs=options.inputs,
            shapes=options.shapes,
            seconds=options.verify_seconds,
            memory_mib=options.verify_memory,
            given=() if self.lowering is None else self.lowering.given,
            tolerance=options.tolerance,
            is_usual=options.precision != "fp32",
        )

    def begin_verifying(self) -> None:
        """Run the original, where that disturbs no measuring and needs no candidate."""
        options = self.options
        if options.verify and not options.measure and self.lowering is None and has_room():
            self.verifiers.begin()

    def verified(self, candidate: Candidate) -> tuple[Candidate, Verification]:
        """Check against the source; roll back the rewrites that break it, and name them.

        Each kernel is checked beside its body too: before the rest, or at the same time.
        """
        from ortkit.optimization.rollback import Attempt, roll_back

        options, is_beside = self.options, has_room()
        if not is_beside:
            candidate = self.with_right_kernels(candidate)
        with self._stage("verify"), self.verifiers.verifier() as verifier:
            if is_beside:
                candidate, verification = self._checked_beside_kernels(verifier, candidate)
            else:
                verification = self._checked(verifier, candidate, self.kernel_check)
            if verification.verdict != "no":
                return candidate, self._with_gaps(verification)

            everything = frozenset(hit.id for hit in candidate.log.hits)

            before = self.rolled_back

            def attempt(denied: frozenset[str]) -> Attempt:
                # Denied rewrites make room for others, which have ids of their own.
                denied |= frozenset(before)
                made = self.candidate(denied, fuel=0 if denied >= everything else None)
                self.kernel_check = None
                if not denied >= everything:
                    made = self.with_right_kernels(made, denied)
                checked = self._checked(verifier, made, self.kernel_check)
                return Attempt(made, checked, self.kernel_check)

            options.progress("find the breaking rewrite")
            found = roll_back(
                Attempt(candidate, verification), attempt, partial(open_model, self.source)
            )
            self.rolled_back = (*before, *found.ids)
            self.kernel_check = found.best.kernels
        return found.best.candidate, self._with_gaps(found.best.verification)

    def _with_gaps(self, verification: Verification) -> Verification:
        """Add the kernels that were not checked alone, and how many were."""
        checked = self.kernel_check
        if checked is None or not checked.rows:
            return verification
        return verification.beside(checked.gaps, checked.summary())

    def loaded(
        self, candidate: Candidate, verification: Verification | None
    ) -> tuple[Candidate, Verification | None]:
        """Return a candidate that loads, and what verification found of that very candidate."""
        while (found := self.loadable(candidate, verification)) is not candidate:
            candidate = found
            if verification is None:
                break
            candidate, verification = self.verified(candidate)
        return candidate, verification

    def loadable(self, candidate: Candidate, verification: Verification | None) -> Candidate:
        """Return a candidate that ONNX Runtime loads, without rewrites that keep it from that.

        Raises:
            RunError: It does not load the source.
            CheckError: It loads no result, not even one without rewrites.
        """
        from ortkit.optimization.load_stage import LOADS, LoadStage
        from ortkit.verify.bisect import find_breaking_rewrites

        is_verified = verification is not None and verification.is_good and verification.has_run
        if is_verified and not self._is_verified_in_other_form:
            self.load_check = LOADS
            return candidate
        stage = LoadStage(self._name(), self.original, self.options)
        best = candidate

        def loads(attempt: Candidate) -> bool:
            nonlocal best
            path, library = self._saved(attempt), self._runnable(attempt)
            is_good, self.load_check = stage.check(
                path, library, is_original_suspect=verification is not None and not is_verified
            )
            best = attempt if is_good else best
            return is_good

        def loads_without(denied: frozenset[str]) -> bool:
            denied |= frozenset(self.rolled_back)
            return loads(self.candidate(denied, fuel=0 if denied >= everything else None))

        with self._stage("load"):
            if loads(candidate):
                return best
            ids = [hit.id for hit in candidate.log.hits]
            everything = frozenset(ids)
            self.options.progress("find the breaking rewrite")
            try:
                breaking = find_breaking_rewrites(ids, loads_without)
            except CheckError as error:
                raise CheckError(
                    f"no result loads in ONNX Runtime, with no rewrite either: {self.load_check}",
                    where=self._name(),
                    fix="report it with the model; nothing was written",
                ) from error
            loads_without(frozenset(breaking))
            self.not_loading = (*self.not_loading, *breaking)
        return best

    @property
    def _is_verified_in_other_form(self) -> bool:
        """Whether what is verified is not the very model that is written."""
        return self.options.precision != "fp32" and self.lowering is None

    def _checked_beside_kernels(
        self, verifier: Verifier | BatchVerifier, candidate: Candidate
    ) -> tuple[Candidate, Verification]:
        """Judge a candidate while its kernels are checked.

        Returns:
            A candidate whose kernels are right, and its verification.
        """
        group = ProcessGroup()
        with ThreadPoolExecutor(1, "kernels") as pool, ending(group):
            check = partial(self.with_right_kernels, candidate, is_beside=True)
            checking = pool.submit(group.call, check)

            def kernels() -> KernelReport | None:
                checking.result()
                return self.kernel_check

            verification = self._checked(verifier, candidate, kernels)
            right = checking.result()
        if right is not candidate:  # a kernel was wrong
            verification = self._checked(verifier, right, self.kernel_check)
        return right, verification

    def _checked(
        self,
        verifier: Verifier | BatchVerifier,
        candidate: Candidate,
        kernels: KernelsOf,
    ) -> Verification:
        """Judge a candidate; in half precision also with every value rounded as on a GPU.

        Args:
            verifier: Has run the original.
            candidate: What is judged.
            kernels: What is known of each kernel beside its body.
        """
        library, precision = candidate.library, self.options.precision
        check = partial(verifier.check, kernels=kernels, keeps_names=True)
        if self.lowering is not None or precision == "fp32":
            stated = 0.0 if self.lowering is None else self.lowering.max_error
            return check(candidate.model, library=library, stated=stated)
        from ortkit.precision.interface import lowered_names, with_float_interface
        from ortkit.precision.lower import HALF_DTYPES
        from ortkit.precision.rounding import rounding_model
        from ortkit.verify.kernels.gaps import bfloat16_gap

        model = with_float_interface(candidate.model, lowered_names(candidate.log.hits))
        half = HALF_DTYPES[precision]
        computed_in = half.numpy().name
        # The CPU provider has no bfloat16, and casts float16 back and forth without rounding.
        gaps: tuple[Gap, ...] = ()
        if precision == "fp16":
            found = check(model, library=library, computed_in=computed_in)
            if not found.is_good:
                return found
            gaps = found.not_compared
        elif library is not None:
            gaps = (bfloat16_gap(self._saved(candidate)),)
        found = check(rounding_model(model, half), computed_in=computed_in)
        return found.beside(gaps, f"every value rounded to {computed_in}")

    def time(self, candidate: Candidate) -> None:
        """Time a run of the source and of the result, if that is a matter of a second or two."""
        from ortkit.measure.short_timing import (
            ShortRequest,
            ShortTiming,
            seconds_after,
            time_shortly,
            too_large,
        )
        from ortkit.runtime.timing.variants import Variant

        if self.measurer is not None and self.measurer.model is not None:
            return  # measured at length
        seconds = seconds_after(sum(self.seconds.values()))
        reason = self._not_timed(candidate) or too_large(self.before.weight_bytes, seconds)
        if reason:
            self.timing = ShortTiming(reason)
            return
        started = time.perf_counter()
        with self._stage("time"), TemporaryFolder("time", inside=self.work) as folder:
            result = Variant(self._saved(candidate), candidate.library)
            request = ShortRequest(
                self.original(), result, folder, self.options.inputs, self.options.shapes,
                self.options.threads,
            )  # fmt: skip
            self.timing = time_shortly(request, seconds - (time.perf_counter() - started))

    def _not_timed(self, candidate: Candidate) -> str:
        """Return why a run is not timed here, empty if it can be."""
        if not self.options.machine.traits.is_timed:
            return f"models for {self.options.target} are not timed here"
        if foreign := foreign_note(candidate.library, self.options):
            return foreign
        if not candidate.log.hits and candidate.library is None:
            return "nothing was rewritten"
        return ""

    def report(self, candidate: Candidate, verification: Verification | None) -> Report:
        """Collect what there is to say."""
        result = candidate.result
        return Report(
            source=self._name(),
            target=self.options.target,
            level=self.options.level,
            before=self.before,
            after=Summary.of(candidate.model),
            steps=tuple(result.steps),
            settled=result.settled,
            hits=tuple(result.log.hits),
            misses=tuple(result.log.misses),
            regions=candidate.regions,
            rolled_back=(*self.wrong_kernels, *self.rolled_back, *self.not_loading),
            denied_in_vain=tuple(sorted(self.options.denied - result.log.met)),
            failed_passes=tuple(self.failed.values()),
            load_check=self.load_check,
            verification=verification,
            measurement=None if self.measurer is None else self.measurer.result(),
            timing=self.timing,
            kernel_note=candidate.kernel_note,
            sizes_note=self._sizes_note(candidate),
            kernel_check=self.kernel_check,
            names=self.names,
            provider_options={} if candidate.layout is None else candidate.layout.options,
            padding=_padding_note(candidate.model),
            layout_note="" if candidate.layout is None else candidate.layout.reason,
            precision=None if self.lowering is None else self.lowering.report(result.log),
            source_kernels=self.fused.note(candidate),
            calibration=str(stored_calibration() or "") if self.options.has_regions else "",
            seconds={stage: round(taken, 4) for stage, taken in self.seconds.items()},
        )

    def _sizes_note(self, candidate: Candidate) -> str:
        if not self.options.has_regions or not self.options.machine.traits.is_host:
            return ""
        from ortkit.fusion.conv.unknown_sizes import unknown_sizes_note

        return unknown_sizes_note(candidate.result.scopes)

    def _name(self) -> str:
        return str(self.source) if isinstance(self.source, str | os.PathLike) else "(memory)"

    def original(self) -> Path:
        """Return the source as a file for the verifying process."""
        padding = NamedPadding.of(self.options.skip_padding)
        if isinstance(self.source, str | os.PathLike) and padding is None:
            return Path(self.source)
        path = self.work / "original.onnx"
        model = open_model(self.source)
        if padding is not None:
            zero_padding(model, padding)
        save_model(model, path, external_data=True, is_temporary=True)
        return path

    def _saved(self, candidate: Candidate, name: str = "candidate.onnx") -> Path:
        path = self.work / name
        save_model(candidate.model, path, external_data=True, is_temporary=True)
        return path

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.options.progress(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + taken


def _padding_note(model: ir.Model) -> str:
    """Return what is done about padding; empty if nothing is."""
    is_skipped = SKIPPED_KEY in model.metadata_props
    said = model.metadata_props.get(PADDING_KEY, "")
    what = "is not computed" if is_skipped else "is computed"
    return f"padding {what}; {said}" if said else "padding is not computed" if is_skipped else ""


def _names(model: ir.Model) -> frozenset[str]:
    """Return what nodes and their outputs are called."""
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    nodes = chain(model.graph.all_nodes(), inner)
    found = {name for node in nodes for name in (node.name, *(v.name for v in node.outputs))}
    return frozenset(filter(None, found))


def _new_lowering(run: _Run) -> CpuLowering:
    from ortkit.precision.fp8 import Fp8Lowering
    from ortkit.precision.lowering import CpuLowering, CpuRequest

    options = run.options
    request = CpuRequest(
        options.precision, options.max_error, options.calibration, options.calibrate,
        options.inputs, options.samples or options.coverage, options.shapes, options.threads,
        options.cpu,
    )  # fmt: skip
    lowering = Fp8Lowering if options.precision == "fp8" else CpuLowering
    return lowering(run.original(), request, run.work / "precision", options.progress)
