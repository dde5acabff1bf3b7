"""Comparing candidates with an original whose results are computed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import onnx_ir as ir

from ortkit.errors import InternalError, UserError
from ortkit.graph.io.open import open_model
from ortkit.isolation.group import begun
from ortkit.refusal import Refused
from ortkit.temporary import TemporaryFolder
from ortkit.verify.accuracy import Allowance
from ortkit.verify.batch_judging import judges_here
from ortkit.verify.budget import Budget, check_budget
from ortkit.verify.empty_batch import empty_batch
from ortkit.verify.inputs.covering import Level
from ortkit.verify.inputs.feeds import FeedMaker, Feeds
from ortkit.verify.inputs.own_limits import own_limit_sets
from ortkit.verify.inputs.sets import InputSet
from ortkit.verify.judging import Judged, judge
from ortkit.verify.kernels.check import SECONDS, KernelReport, check_kernels
from ortkit.verify.kernels.gaps import fused_ops_in, kernel_gaps
from ortkit.verify.lowered.exact_products import (
    make_products_exact,
    with_exact_products,
)
from ortkit.verify.model_file import as_file
from ortkit.verify.perturbed.runs import PerturbedRuns
from ortkit.verify.precision import coarsest_type
from ortkit.verify.reference import Reference, Request, compute_reference
from ortkit.verify.rejections import not_covered, wrong_kernels, wrong_values
from ortkit.verify.rewrite_check import RewriteCheck
from ortkit.verify.rewrites import RewriteStage
from ortkit.verify.selection import expose_picks, give_picks, run_picks, shared_picks
from ortkit.verify.sessions import CandidateRun, SessionResult, run_within
from ortkit.verify.summary import summarise
from ortkit.verify.undefined_rows import zero_undefined
from ortkit.verify.user_tolerance import UserTolerance
from ortkit.verify.verification import Gap, Verification, gaps_text
from ortkit.verify.widening import widened

_HALVES = ("float16", "bfloat16")
KernelsOf: TypeAlias = KernelReport | Callable[[], KernelReport | None] | None
"""What is known of a model's kernels alone, or what returns it."""
#: For the start of a process, on a busy machine.
_START_SECONDS = 5.0


class Verifier:
    """Holds an original's inputs and results, and judges candidates by them.

    A context manager: what it holds lies in a temporary folder. The original is run on
    entering, in a child process; each candidate is run in another.
    """

    def __init__(
        self,
        original: Path | ir.Model,
        *,
        samples: int | None = None,
        coverage: Level = "quick",
        inputs: Path | None = None,
        shapes: Mapping[str, int] | None = None,
        seed: int = 0,
        seconds: float | None = None,
        memory_mib: int | None = None,
        custom_ops: tuple[Path, ...] = (),
        given: Sequence[Feeds | InputSet] = (),
        tolerance: UserTolerance | None = None,
        most_sets: int | None = None,
        is_usual: bool = False,
        budget: Budget | None = None,
        candidate: ir.Model | None = None,
        exact: frozenset[str] = frozenset(),
    ) -> None:
        """Say what to verify against.

        Args:
            original: An ONNX file, or a model that is written to one.
            samples: The number of random input sets to make; None: those of a covering design.
            coverage: How much the covering design and the sizes of kernels cover.
            inputs: A file or a folder of input sets, instead of made ones; see `load_given`.
            shapes: Sizes of dynamic dimensions, by name.
            seed: Decides the made inputs.
            seconds: For all sessions of the original and a candidate; by default 60 s, and more
                for larger models, see `verify/limits.py`. Beyond them the verdict is `partly`.
            memory_mib: For each process; by default 1.5 times the weights in float32, and 512.
            custom_ops: Libraries that original and candidates need to load at all.
            given: Input sets, instead of made ones and of `inputs`.
            tolerance: What results may be off, in addition to what is judged anyway.
            most_sets: The number of input sets of a covering design at most.
            is_usual: Whether these have usual numbers only, as for candidates in lower precision.
            budget: What is left of another verification's time, instead of `seconds`.
            candidate: What will be judged, if it is known: input sets meet its lengths too.
            exact: Weights of the original that another verification has made uint8 in it; see
                `make_products_exact`.
        """
        if samples is not None and samples < 1:
            raise UserError(f"{samples} input sets", where="--samples", fix="make at least 1")
        check_budget(seconds, memory_mib)
        self._original = original
        self._opened: ir.Model | None = None
        self._tolerance = tolerance
        self._coverage = coverage
        memory = None if memory_mib is None else memory_mib << 20
        self._custom_ops = custom_ops
        self._memory_mib = memory_mib
        self._request = partial(
            Request,
            samples=samples or coverage,
            inputs=inputs,
            shapes=shapes,
            seed=seed,
            seconds=seconds,
            memory=memory,
            custom_ops=custom_ops,
            given=tuple(given),
            tolerance=tolerance,
            most_sets=most_sets,
            is_usual=is_usual,
            budget=budget,
            candidate=candidate,
        )
        self._shares_time = budget is not None
        self._state: Reference | Refused = Refused("the verifier was not entered")
        self._temporary: Path | None = None
        self._checks = 0
        self._only_wide = ""
        """Why models are compared in float32 only; empty if they are not."""
        self._path = Path()
        self._exact = exact
        """The original's weights with which ONNX Runtime's products saturate here."""
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
            self._opened = opened = open_model(path)
            is_changed = zero_undefined(opened, "original")
            raised = make_products_exact(opened)
            self._exact |= raised
            if is_changed or raised:
                self._path = path = self._as_file(opened, "defined")
            request = self._request(opened, path)
            self._state = self._reference(request, self._folder() / "reference")
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

        It has next to none for bfloat16 on CPUs (1.31.1). Constants that a rewrite folds are
        rounded to that type all the same: its roundings are what perturbs the original.
        """
        state = self._state
        if not isinstance(state, Refused) or coarsest_type(request.model) not in _HALVES:
            return
        model = widened(request.model)
        path = self._as_file(model, "widened")
        wide = replace(request, model=model, path=path)
        folder = self._folder() / "widened"
        found = compute_reference(wide, folder)
        if isinstance(found, Reference):
            perturbed = PerturbedRuns(request.path, folder, found.budget, self._custom_ops)
            coarsest = coarsest_type(request.model)
            self._state = replace(found, perturbed=perturbed, coarsest=coarsest)
            self._opened, self._path = model, path
            self._only_wide = state.reason

    @property
    def budget(self) -> Budget | None:
        """The time for all sessions; None if no candidate can be judged."""
        return self._state.budget if isinstance(self._state, Reference) else None

    @property
    def reference(self) -> Reference | None:
        """What the original computes in its own types; None if no candidate can be held to it."""
        is_own = isinstance(self._state, Reference) and not self._only_wide
        return self._state if is_own else None  # type: ignore[return-value]

    def prepare(self) -> None:
        """Do what a candidate's values are compared by and needs the original alone.

        Otherwise it is done when the first candidate is judged.
        """
        if isinstance(self._state, Reference):
            self._rewrites(self._state)

    @property
    def refusal(self) -> str:
        """Why no candidate can be judged; empty if one can."""
        return self._state.reason if isinstance(self._state, Refused) else ""

    def check(
        self,
        candidate: Path | ir.Model,
        *,
        library: Path | None = None,
        refusal: str = "",
        computed_in: str = "",
        stated: float = 0.0,
        values: RewriteCheck | None = None,
        kernels: KernelsOf = None,
        keeps_names: bool = False,
    ) -> Verification:
        """Judge a candidate.

        It is run with ONNX Runtime's optimizations off, where functions stand in for kernels, and
        then under deploy settings. Those are with its kernels, on CUDA if they are for CUDA and
        this machine has it. Kernels that do not run here are listed as not compared.

        Args:
            candidate: An ONNX file, or a model that is written to one.
            library: The kernel library, registered under deploy settings.
            refusal: Why there is none although the candidate has one, for the report.
            computed_in: A coarser float type that the candidate computes float32 in.
            stated: An error that the user accepts: of each value, computed from the original's
                values, and of each output; see `ortkit.verify.accuracy`.
            values: What is known of the values in between; None: they are compared.
            kernels: What is known of each kernel beside its body, or what returns it, which is
                called once the values are compared; None: they are run.
            keeps_names: Whether values of one name are the same value, as in what ortkit rewrites.

        Raises:
            MissingDependencyError: ONNX Runtime is not installed.
        """
        options = (refusal, computed_in, stated, values, kernels, keeps_names)
        found = self._checked(candidate, library, *options)
        state = self._state
        if isinstance(state, Refused):
            return found
        found = replace(found, input_sets=state.about, dropped_sets=state.dropped)
        if state.maker is None or stated or not found.is_good:
            return found
        again = partial(
            Verifier.check,
            library=library,
            refusal=refusal,
            computed_in=computed_in,
            kernels=kernels,
            keeps_names=keeps_names,
        )
        return self._at_own_limits(state, state.maker, candidate, found, again)

    def _checked(
        self,
        candidate: Path | ir.Model,
        library: Path | None,
        refusal: str,
        computed_in: str,
        stated: float,
        values: RewriteCheck | None,
        kernels: KernelsOf,
        keeps_names: bool,
    ) -> Verification:
        """Judge a candidate on the original's input sets; see `check`."""
        state = self._state
        if isinstance(state, Refused):
            return Verification("not possible", state.reason, fix=state.fix)
        started = time.perf_counter()
        allowance = Allowance(computed_in, stated)
        if self._checks and not self._shares_time:
            state.budget.restart()
        self._checks += 1
        # What the deployed whole is likely to take is kept for it.
        own = sum(each.seconds for each in state.sessions)
        kept = min(2 * own + _START_SECONDS, state.budget.left / 2)
        folder = self._folder() / f"check{self._checks}"
        path = self._as_file(candidate, folder.name)
        opened = open_model(path)
        if zero_undefined(opened, "candidate"):
            path = self._as_file(opened, f"{folder.name}d")
        if self._only_wide:
            # Not read again: a file does not say which values were in half precision.
            opened = widened(opened)
            path, library = self._as_file(opened, f"{folder.name}w"), None
        ops, custom_ops = fused_ops_in(path), self._custom_ops
        paths = self._exact_files(opened, path, folder.name)
        run = partial(self._run, state, CandidateRun(*paths, folder, library, ops, custom_ops))
        with begun(run) if self._runs_beside(state, library, values) else nullcontext(run) as ran:
            rewrites = values or self._rewrites(state).check(opened, allowance, kept, keeps_names)
            if rewrites.wrong:
                found = wrong_values(state, rewrites)
                return replace(found, seconds=time.perf_counter() - started)
            if callable(kernels):
                kernels = kernels()
            if kernels is None and library is not None:
                kernels = check_kernels(
                    opened,
                    library,
                    custom_ops=custom_ops,
                    seconds=SECONDS[self._coverage],
                    interpret=self._coverage,
                )
            kernels = kernels or KernelReport()
            if kernels.failed:
                found = wrong_kernels(state, kernels, rewrites)
                return replace(found, seconds=time.perf_counter() - started)
            results = ran()
        judged = self._judged(state, folder, results, allowance)
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
                    kernels=kernels,
                    keeps_names=keeps_names,
                ),
            )
            if beside is not None and beside.is_good:
                return replace(beside, seconds=time.perf_counter() - started)
        gaps = (
            *not_covered(judged.gaps, rewrites),
            *kernel_gaps(ops, library, results[1], refusal),
            *kernels.gaps,
        )
        gaps = (*gaps, *state.mismatches, *state.late)
        if self._only_wide:
            gaps = (*gaps, Gap("what comes out in the model's own types", self._only_wide))
        if not judged.reason and not judged.outputs and not rewrites.compared:
            fix = next((gap.fix for gap in gaps if gap.fix), "")
            return Verification(
                "not possible", f"nothing was compared: {gaps_text(gaps)}", fix=fix
            )
        assert self._opened is not None
        empty = empty_batch(self._opened, opened, has_kernels=library is not None)
        return Verification(
            "no" if judged.reason else "partly" if gaps else "yes",
            judged.reason or summarise(state, judged.outputs, rewrites, stated, gaps) + empty,
            judged.outputs,
            len(state.feeds),
            time.perf_counter() - started,
            state.excluded,
            gaps,
            has_run=not self._only_wide,
            values=rewrites,
            notes=state.notes,
        )

    def _reference(self, request: Request, folder: Path) -> Reference | Refused:
        """Return the original's results."""
        return compute_reference(request, folder)

    def _judged(
        self,
        state: Reference,
        folder: Path,
        results: Sequence[SessionResult],
        allowance: Allowance,
    ) -> Judged:
        """Compare a candidate's results with the original's; see `judge`."""
        return judge(state, folder, results, allowance)

    def _run(self, state: Reference, candidate: CandidateRun) -> list[SessionResult]:
        """Run a candidate with optimizations off, and under deploy settings."""
        settings = [candidate.undeployed(), candidate.deployed()]
        return run_within(state.budget, settings, state.feeds, len(state.feeds))

    def _exact_files(self, candidate: ir.Model, path: Path, name: str) -> tuple[Path, Path]:
        """Return a candidate's files without optimizations and deployed, with exact products.

        Deployed those products may saturate with which the original's do; no others.
        """
        plain = with_exact_products(candidate)
        if plain is candidate:
            return path, path
        deployed = candidate.clone()
        is_changed = make_products_exact(deployed, self._exact)
        return (
            self._as_file(plain, f"{name}p"),
            self._as_file(deployed, f"{name}e") if is_changed else path,
        )

    def _runs_beside(
        self, state: Reference, library: Path | None, values: RewriteCheck | None
    ) -> bool:
        """Return whether a candidate runs while its values are compared.

        It does where the machine has cores for both and memory is not limited, and functions
        stand in for kernels: these run once they are known to be right.
        """
        has_room = judges_here() > 1 and state.budget.memory is None
        return has_room and library is None and values is None

    def _rewrites(self, state: Reference) -> RewriteStage:
        if self._stage is None:
            assert self._opened is not None
            options = (state.budget, self._custom_ops)
            self._stage = RewriteStage(
                self._opened,
                (*state.feeds, *state.unstable),
                self._folder() / "rewrites",
                *options,
            )
        return self._stage

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
        expose_picks(candidate)
        names = shared_picks(original, candidate)
        if not names:
            return None
        if names not in self._beside:
            folder = self._folder() / f"picks{len(self._beside)}"
            given = run_picks(original, names, state.feeds, folder, state.budget, self._custom_ops)
            if given is None:
                return None
            give_picks(original, names)
            self._beside[names] = self._stack.enter_context(
                self._on_other_inputs(original, given, seconds=state.budget.left)
            )
        give_picks(candidate, names)
        found = check(self._beside[names], candidate)
        return replace(
            found, reason=f"{found.reason}; on the original's picks: {', '.join(names)}"
        )

    def _at_own_limits(
        self,
        state: Reference,
        maker: FeedMaker,
        candidate: Path | ir.Model,
        found: Verification,
        check: Callable[[Verifier, ir.Model], Verification],
    ) -> Verification:
        """Judge a candidate at numbers that only it names, too; see `own_limit_sets`.

        Args:
            state: The original's results.
            maker: Makes input sets of the original.
            candidate: The model that is judged.
            found: On the original's input sets.
            check: Judges it by another verifier.
        """
        original = open_model(self._path)
        opened = candidate if isinstance(candidate, ir.Model) else open_model(candidate)
        opened = widened(opened) if self._only_wide else opened
        folder = self._folder() / f"limits{self._checks}"
        rest = (state.budget, folder, self._custom_ops)
        own = own_limit_sets(maker, original, opened, state.feeds, *rest)
        if not own:
            return found
        with self._on_other_inputs(original, own, budget=state.budget) as verifier:
            if verifier.refusal:
                return found
            beside = check(verifier, opened)
        seconds = found.seconds + beside.seconds
        if beside.verdict == "not possible":
            return found
        sets = (*found.input_sets, *beside.input_sets)
        if not beside.is_good:
            samples = found.samples + beside.samples
            return replace(beside, samples=samples, input_sets=sets, seconds=seconds)
        remark = f"and on {beside.samples} at numbers that only the candidate compares with"
        return replace(
            found.beside(beside.not_compared, remark),
            samples=found.samples + beside.samples,
            input_sets=sets,
            seconds=seconds,
        )

    def _on_other_inputs(
        self, original: ir.Model, given: Sequence[Feeds | InputSet], **time: Any
    ) -> Verifier:
        """Return a verifier of the original as it became here, on other input sets."""
        return Verifier(
            original,
            memory_mib=self._memory_mib,
            custom_ops=self._custom_ops,
            given=given,
            tolerance=self._tolerance,
            exact=self._exact,
            **time,
        )

    def _folder(self) -> Path:
        if self._temporary is None:
            raise InternalError("the verifier was not entered")
        return self._temporary

    def _as_file(self, model: Path | ir.Model, name: str) -> Path:
        return as_file(model, self._folder() / f"{name}.model")
