"""Comparing candidates with an original whose results are computed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import onnx_ir as ir

from ortkit.errors import InternalError, UserError
from ortkit.graph.open import open_model
from ortkit.graph.save import save_model
from ortkit.graph.text import is_text_suffix
from ortkit.temporary import TemporaryFolder
from ortkit.verify.allowance import Allowance
from ortkit.verify.covering import Level, level_of
from ortkit.verify.feeds import Feeds
from ortkit.verify.judging import RANDOM, judge
from ortkit.verify.kernel_check import KernelReport, check_kernels
from ortkit.verify.kernel_gaps import fused_ops_in, kernel_gaps
from ortkit.verify.picks import give_picks, run_picks, shared_picks
from ortkit.verify.precision import coarsest_type
from ortkit.verify.reference import Reference, Refusal, Request, compute_reference
from ortkit.verify.rewrite_check import RewriteCheck
from ortkit.verify.rewrites import RewriteStage
from ortkit.verify.sessions import Setting, run_sessions
from ortkit.verify.summary import summarise
from ortkit.verify.user_tolerance import UserTolerance
from ortkit.verify.verification import Gap, Verification, told
from ortkit.verify.widening import widened

_HALVES = ("float16", "bfloat16")


class Verifier:
    """Holds an original's inputs and results, and judges candidates by them.

    A context manager: what it holds lies in a temporary folder. The original is run on
    entering, in a child process; each candidate is run in another.
    """

    def __init__(
        self,
        original: Path | ir.Model,
        *,
        samples: int | Level = "quick",
        inputs: Path | None = None,
        shapes: Mapping[str, int] | None = None,
        seed: int = 0,
        timeout_seconds: float | None = None,
        custom_ops: tuple[Path, ...] = (),
        opened: ir.Model | None = None,
        given: Sequence[Feeds] = (),
        tolerance: UserTolerance | None = None,
    ) -> None:
        """Say what to verify against.

        Args:
            original: An ONNX file, or a model that is written to one.
            samples: How many random input sets to make, or how much they are to cover.
            inputs: A file or a folder of input sets, instead of made ones; see `load_given`.
            shapes: Sizes of dynamic dimensions, by name.
            seed: Decides the made inputs.
            timeout_seconds: For all sessions of the original, and of each candidate; by default
                30 s and more for larger models, see `verify/limits.py`.
            custom_ops: Libraries that original and candidates need to load at all.
            opened: What the file `original` holds, to spare reading it again.
            given: Input sets, instead of made ones and of `inputs`.
            tolerance: What results may be off, besides what is judged anyway.
        """
        if isinstance(samples, int) and samples < 1:
            raise UserError(f"{samples} input sets", where="--samples", fix="make at least 1")
        self._original = original
        self._opened = original if isinstance(original, ir.Model) else opened
        self._given = tuple(given)
        self._tolerance = tolerance
        self._options = (samples, inputs, shapes, seed, timeout_seconds, custom_ops)
        self._state: Reference | Refusal = Refusal("the verifier was not entered")
        self._temporary: Path | None = None
        self._checks = 0
        self._only_wide = ""
        """Why models are compared in float32 only; empty if they are not."""
        self._path = Path()
        self._stage: RewriteStage | None = None
        self._beside: dict[tuple[str, ...], Verifier] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Run the original.

        Raises:
            UserError: The inputs or sizes that the user gave do not fit the model.
            ModelError: The original is no valid model.
            MissingDependencyError: ONNX Runtime is not installed.
        """
        self._temporary = self._stack.enter_context(TemporaryFolder("verify"))
        try:
            self._path = path = self._as_file(self._original, "original")
            opened = self._opened or open_model(path)
            request = Request(opened, path, *self._options, self._given, self._tolerance)
            self._state = compute_reference(request, self._folder() / "reference")
            self._widen_if_needed(request)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the temporary folder."""
        self._stack.close()

    def _widen_if_needed(self, request: Request) -> None:
        """Hold candidates to the original in float32 if ONNX Runtime has no kernels for its type.

        It has next to none for bfloat16 on CPUs (1.31.1).
        """
        state = self._state
        if not isinstance(state, Refusal) or coarsest_type(request.model) not in _HALVES:
            return
        model = widened(request.model)
        path = self._as_file(model, "widened")
        wide = replace(request, model=model, path=path)
        found = compute_reference(wide, self._folder() / "widened")
        if isinstance(found, Reference):
            self._state, self._opened, self._path = found, model, path
            self._only_wide = state.reason

    @property
    def refusal(self) -> str:
        """Why no candidate can be judged; empty if one can."""
        return self._state.reason if isinstance(self._state, Refusal) else ""

    def check(
        self,
        candidate: Path | ir.Model,
        *,
        library: Path | None = None,
        refusal: str = "",
        computed_in: str = "",
        stated: float = 0.0,
    ) -> Verification:
        """Judge a candidate.

        It is run with ONNX Runtime's optimizations off, where functions stand in for
        kernels, and then under deploy settings: with its kernels, on CUDA if they are for CUDA
        and this machine has it. Kernels that do not run here are listed as not compared.

        Args:
            candidate: An ONNX file, or a model that is written to one.
            library: The kernel library, registered under deploy settings.
            refusal: Why there is none although the candidate has one, for the report.
            computed_in: A coarser float type that the candidate computes float32 in.
            stated: An error that the user accepts: of each value, computed from the original's
                values, and of each output; see `ortkit.verify.accuracy`.

        Raises:
            MissingDependencyError: ONNX Runtime is not installed.
        """
        state = self._state
        if isinstance(state, Refusal):
            return Verification("not possible", state.reason, fix=state.fix)
        started = time.perf_counter()
        allowance = Allowance(computed_in, stated)
        self._checks += 1
        folder = self._folder() / f"check{self._checks}"
        path = self._as_file(candidate, folder.name)
        if self._only_wide:
            path, library = self._as_file(widened(open_model(path)), f"{folder.name}w"), None
        rewrites = self._rewrites(state).check(open_model(path), allowance)
        if rewrites.wrong:
            return self._wrong_values(state, rewrites, started)
        custom_ops = self._options[5]
        kernels = KernelReport()
        if library is not None:
            kernels = check_kernels(
                open_model(path),
                library,
                custom_ops=custom_ops,
                interpret=level_of(self._options[0]),
            )
            if kernels.failed:
                return self._wrong_kernels(state, kernels, rewrites, started)
        ops = fused_ops_in(path)
        deployed = Setting(
            path, folder / "optimized", True, custom_ops, kernels=library, fused=ops
        )
        settings = [Setting(path, folder / "plain", False, custom_ops), deployed]
        results = run_sessions(
            settings, state.feeds, len(state.feeds), folder / "job", state.timeout_seconds
        )
        judged = judge(state, folder, results, allowance)
        if any(not each.equal or each.is_inconclusive for each in judged.outputs):
            beside = self._beside_picks(
                state,
                path,
                partial(
                    Verifier.check,
                    library=library,
                    refusal=refusal,
                    computed_in=computed_in,
                    stated=stated,
                ),
            )
            if beside is not None and beside.is_good:
                return replace(beside, seconds=time.perf_counter() - started)
        gaps = (
            *_not_covered(judged.gaps, rewrites),
            *kernel_gaps(ops, library, results[1], refusal),
            *kernels.gaps,
        )
        gaps = (*gaps, *state.mismatches)
        if self._only_wide:
            gaps = (*gaps, Gap("what comes out in the model's own types", self._only_wide))
        if not judged.reason and not judged.outputs and not rewrites.compared:
            return Verification("not possible", f"nothing was compared: {told(gaps)}")
        return Verification(
            "no" if judged.reason else "partly" if gaps else "yes",
            judged.reason or summarise(state, judged.outputs, rewrites, stated, gaps),
            judged.outputs,
            len(state.feeds),
            time.perf_counter() - started,
            state.excluded,
            gaps,
            has_run=not self._only_wide,
            values=rewrites,
            notes=state.notes,
        )

    def _wrong_kernels(
        self, state: Reference, kernels: KernelReport, rewrites: RewriteCheck, started: float
    ) -> Verification:
        """Return the verdict on a candidate some of whose kernels differ from their bodies."""
        first = kernels.failed[0]
        return Verification(
            "no",
            f"kernel {first.op_type!r} beside its body: {first.reason}",
            samples=len(state.feeds),
            seconds=time.perf_counter() - started,
            excluded=state.excluded,
            values=rewrites,
            notes=state.notes,
        )

    def _rewrites(self, state: Reference) -> RewriteStage:
        if self._stage is None:
            model = self._opened or open_model(self._path)
            options = (state.timeout_seconds, self._options[5])
            self._stage = RewriteStage(model, state.feeds, self._folder() / "rewrites", *options)
        return self._stage

    def _wrong_values(
        self, state: Reference, rewrites: RewriteCheck, started: float
    ) -> Verification:
        """Return the verdict on a candidate some of whose values are wrong."""
        first = rewrites.wrong[0]
        kind = "output" if first.name in state.outputs else "value"
        more = f" ({len(rewrites.wrong)} values are wrong)" if len(rewrites.wrong) > 1 else ""
        return Verification(
            "no",
            f"{kind} {first.name!r}, computed from the original's values in float32:"
            f" {first.reason}{more}",
            rewrites.wrong,
            len(state.feeds),
            time.perf_counter() - started,
            state.excluded,
            values=rewrites,
            notes=state.notes,
        )

    def _beside_picks(
        self,
        state: Reference,
        path: Path,
        check: Callable[[Verifier, ir.Model], Verification],
    ) -> Verification | None:
        """Judge a candidate on the original's picks; None where that cannot be done.

        Args:
            state: The original's inputs.
            path: The candidate.
            check: Judges it by a verifier of the original that is given its picks.
        """
        original, candidate = open_model(self._path), open_model(path)
        names = shared_picks(original, candidate)
        if not names:
            return None
        if names not in self._beside:
            timeout_seconds, custom_ops = state.timeout_seconds, self._options[5]
            folder = self._folder() / f"picks{len(self._beside)}"
            given = run_picks(original, names, state.feeds, folder, timeout_seconds, custom_ops)
            give_picks(original, names)
            self._beside[names] = self._stack.enter_context(
                Verifier(
                    original,
                    timeout_seconds=timeout_seconds,
                    custom_ops=custom_ops,
                    given=given,
                    tolerance=self._tolerance,
                )
            )
        give_picks(candidate, names)
        found = check(self._beside[names], candidate)
        return replace(
            found, reason=f"{found.reason}; on the original's picks: {', '.join(names)}"
        )

    def _folder(self) -> Path:
        if self._temporary is None:
            raise InternalError("the verifier was not entered")
        return self._temporary

    def _as_file(self, model: Path | ir.Model, name: str) -> Path:
        if not isinstance(model, ir.Model):
            if not is_text_suffix(model.suffix):
                return model
            model = open_model(model)  # ONNX Runtime reads no text
        folder = self._folder() / f"{name}.model"
        folder.mkdir()
        return save_model(model, folder / "model.onnx").model


def verify_models(
    original: Path | ir.Model,
    candidate: Path | ir.Model,
    *,
    samples: int | Level = "quick",
    inputs: Path | None = None,
    shapes: Mapping[str, int] | None = None,
    library: Path | None = None,
    refusal: str = "",
    tolerance: UserTolerance | None = None,
    computed_in: str = "",
    stated: float = 0.0,
) -> Verification:
    """Compare two models on the same inputs; see `Verifier` and `Verifier.check`.

    Raises:
        UserError: The inputs or sizes that the user gave do not fit the original.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    with Verifier(
        original, samples=samples, inputs=inputs, shapes=shapes, tolerance=tolerance
    ) as verifier:
        return verifier.check(
            candidate, library=library, refusal=refusal, computed_in=computed_in, stated=stated
        )


def _not_covered(gaps: tuple[Gap, ...], rewrites: RewriteCheck) -> tuple[Gap, ...]:
    """Return the gaps that the comparison of values leaves, with its own.

    What depends on random numbers is compared there on the same numbers.
    """
    covered = {f"output {name!r}" for name in rewrites.compared}
    found = [gap for gap in gaps if gap.reason != RANDOM or gap.what not in covered]
    if rewrites.problem:
        found.append(Gap("the values between the inputs and the outputs", rewrites.problem))
    return tuple(found)
