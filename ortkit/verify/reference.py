"""What the original computes, on which inputs, and how exact ONNX Runtime is about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.refusal import Refused
from ortkit.runtime.tensor_files import MANIFEST
from ortkit.verify.budget import MORE_TIME, Budget
from ortkit.verify.compare import compare_outputs, is_finite, is_telling
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.expectations import mismatches
from ortkit.verify.inputs.covering import Level
from ortkit.verify.inputs.feeds import FeedMaker, Feeds, Value
from ortkit.verify.inputs.given import load_given
from ortkit.verify.inputs.guard_sets import with_guards_met
from ortkit.verify.inputs.long import long_plan
from ortkit.verify.inputs.sets import InputSet, InputSets
from ortkit.verify.inputs.single_pixels import single_pixel_plans
from ortkit.verify.inputs.sizes import free_inputs
from ortkit.verify.inputs.usual import usual_plans
from ortkit.verify.inputs.usual_sizes import how_to_give
from ortkit.verify.limits import SECONDS, long_loop, time_limit
from ortkit.verify.perturbed.perturbation import RUNS
from ortkit.verify.perturbed.runs import PerturbedRuns
from ortkit.verify.precision import coarsest_type
from ortkit.verify.random_ops import random_outputs
from ortkit.verify.sessions import SessionResult, Setting, run_within
from ortkit.verify.tolerances import OWN_ERROR_FACTOR
from ortkit.verify.user_tolerance import UserTolerance
from ortkit.verify.verification import Gap

#: How many other input sets are tried when the original does not run on the first.
_FALLBACKS = 48
#: How often the original is run again without an input set on which it crashed or did not end.
_ATTEMPTS = 2
#: How many of them are run when the results of the first hold nothing to compare.
_SEARCHED = 6


@dataclass(frozen=True)
class Request:
    """What the caller wants verified, and on what."""

    model: ir.Model
    path: Path
    samples: int | Level = 2
    """Number of random input sets, or how much a covering design covers."""
    inputs: Path | None = None
    shapes: Mapping[str, int] | None = None
    seed: int = 0
    seconds: float | None = None
    """For all sessions of the original and of a candidate; None: as `time_limit` says."""
    memory: int | None = None
    """The bytes that each process may take; None: see `ortkit.verify.limits`."""
    custom_ops: tuple[Path, ...] = ()
    given: Sequence[Feeds | InputSet] = ()
    """The input sets to run on; if there are some, nothing is made or read."""
    most_sets: int | None = None
    """The number of input sets of a covering design that are made at most."""
    budget: Budget | None = None
    """What is left of another verification's; None: a new one."""
    tolerance: UserTolerance | None = None
    """What the user allows a candidate, and expected outputs, to be off."""
    is_usual: bool = False
    """Whether the sets of a covering design have usual numbers only, as for lower precision."""
    candidate: ir.Model | None = None
    """A model that will be compared, if it is known: lengths that it names are tried too."""


@dataclass(frozen=True)
class Reference:
    """The original's results, on disk."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    excluded: tuple[str, ...]
    feeds: tuple[Path, ...]
    plain: Path
    """Results with ONNX Runtime's optimizations off, one folder per input set."""
    optimized: Path
    own_problem: str
    """Why the original does not run under deploy settings; empty if it does."""
    perturbed: PerturbedRuns
    coarsest: str = ""
    """The coarsest type in which a value is computed: in half precision, or `int8` if values are
    quantized; else empty."""
    budget: Budget = field(default_factory=lambda: Budget(SECONDS))
    """The time for all sessions of the original and of a candidate."""
    sessions: tuple[SessionResult, SessionResult] = (SessionResult(), SessionResult())
    """The original's runs with optimizations off and on."""
    late: tuple[Gap, ...] = ()
    """Input sets that there was no time for."""
    unstable: tuple[Path, ...] = ()
    """Input sets of large numbers on which ONNX Runtime's own optimizations change the results:
    outputs cannot be held to a tolerance, single steps can."""
    about: tuple[str, ...] = ()
    """By input set, its sizes and kinds of values."""
    dropped: tuple[str, ...] = ()
    """Input sets that are not used, with the reasons."""
    notes: tuple[str, ...] = ()
    """What is odd about given input sets."""
    tolerance: UserTolerance | None = None
    """What the user allows a candidate to be off, in addition to what is judged anyway."""
    maker: FeedMaker | None = None
    """Makes other input sets; None where sets of a covering design are not wanted."""
    mismatches: tuple[Gap, ...] = ()
    """Expected outputs that came with them and that the original does not give."""

    def expected(self, feeds: Path) -> dict[str, Value]:
        """Return the reference for one input set."""
        return read_values(self.plain / feeds.name)

    def runs(self, feeds: Path, unit: float = 0.0, count: int = RUNS) -> list[dict[str, Value]]:
        """Return other results that are as good: of perturbed runs, and under deploy settings.

        Args:
            feeds: One of the input sets.
            unit: As for `PerturbedRuns.of`.
            count: As for `PerturbedRuns.of`.
        """
        deployed = [] if self.own_problem else [read_values(self.optimized / feeds.name)]
        return [*self.perturbed.of(feeds, unit, count), *deployed]


def compute_reference(request: Request, folder: Path) -> Reference | Refused:
    """Make input sets and run the original on them, with optimizations off and on.

    Raises:
        UserError: The inputs or sizes that the user gave do not fit the model.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    outputs = tuple(value.name or "" for value in request.model.graph.outputs)
    if request.tolerance is not None:
        request.tolerance.check_names(outputs)
    excluded = random_outputs(request.model)
    if reason := long_loop(request.model):
        return Refused(reason)
    try:
        made = input_sets(request)
    except ModelError as error:
        return Refused(error.problem, error.fix or how_to_give(request.model))
    if request.seconds is None:
        feeds = (each.feeds for each in made.first)
        request = replace(request, seconds=time_limit(request.model, *feeds))
    runner = _Runner(request, folder)
    level, maker = request.samples, made.maker
    if request.most_sets is not None or request.is_usual or isinstance(level, int):
        maker = None
    elif maker is not None:
        rest = (runner.budget, folder / "guards", request.custom_ops)
        made = with_guards_met(made, request.model, level, *rest)
    plain, optimized = runner.run_without_hung("first", made.first, len(made.first))
    good = runner.usable(plain, optimized, excluded)
    if (len(good) < len(runner.sets) or not good) and plain.is_loaded and not plain.is_ended:
        kept = [runner.sets[int(name)] for name in good]
        lost = [each for each in runner.sets if each not in kept]
        wanted = made.wanted if good else max(made.wanted, _SEARCHED)
        more = islice(made.instead_of(lost, found=len(good)), _FALLBACKS)
        problem = plain.problem
        plain, optimized = runner.run_without_hung("more", [*kept, *more], wanted)
        plain.problem = problem or plain.problem
        good = runner.usable(plain, optimized, excluded)[: made.wanted]
    if not plain.is_loaded:
        reason = f"ONNX Runtime does not load the original: {plain.problem}"
        return Refused(reason, MORE_TIME if plain.is_late else "")
    if plain.is_ended or not plain.done:
        reason = f"ONNX Runtime does not run the original: {plain.problem}"
        fix = _other_inputs(request)
        return Refused(reason, f"{MORE_TIME}, or {fix}" if plain.is_late else fix)
    if not good:
        reason = "on the inputs tried, every output is empty, NaN or infinite"
        return Refused(reason, _other_inputs(request))
    reference = runner.reference(outputs, excluded, good, (plain, optimized))
    expected = [(runner.sets[int(each)].text, runner.sets[int(each)].expected) for each in good]
    actual = [reference.expected(path) for path in reference.feeds]
    return replace(
        reference,
        dropped=(*made.dropped, *reference.dropped),
        notes=made.notes,
        tolerance=request.tolerance,
        maker=maker,
        mismatches=mismatches(expected, actual, excluded, request.tolerance),
    )


def _other_inputs(request: Request) -> str:
    """Return what the user can give where the original does not run on what it was given."""
    if request.memory is not None:
        return "give more with --verify-memory MIB"
    if request.inputs is not None:
        return "give other inputs with --inputs FILE.npz"
    return how_to_give(request.model)


def input_sets(request: Request) -> InputSets:
    """Return the input sets that a request asks for.

    Raises:
        UserError: The inputs or sizes that the user gave do not fit the model.
        ModelError: None can be made.
    """
    if request.given:
        return InputSets.of_feeds(request.given)
    if request.inputs is not None:
        return InputSets.given(load_given(request.inputs, request.model))
    maker = FeedMaker.of(request.model, request.shapes or {})
    samples, seed = request.samples, request.seed
    if isinstance(samples, int):
        return InputSets.made(maker, samples, seed)
    if request.is_usual:
        plans = usual_plans(maker, request.model, samples, seed)
    else:
        plans = maker.covering(samples, seed)
        long = long_plan(maker, request.model, seed + len(plans), request.candidate)
        plans = plans if long is None else (*plans, long)
        plans = (*plans, *single_pixel_plans(maker, request.model, seed + len(plans)))
    return InputSets.made(maker, plans, seed, request.most_sets)


class _Runner:
    """Runs the original; remembers where the latest results lie."""

    def __init__(self, request: Request, folder: Path) -> None:
        self.request = request
        seconds = SECONDS if request.seconds is None else request.seconds
        self.budget = request.budget or Budget(seconds, request.memory)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.stage = folder
        self.sets: Sequence[InputSet] = ()
        """The input sets of the latest run, by their names 0, 1, ..."""
        self.dropped: dict[str, None] = {}
        self.late: list[Gap] = []
        self.unstable: list[Path] = []

    def run_without_hung(
        self, name: str, sets: Sequence[InputSet], wanted: int
    ) -> tuple[SessionResult, SessionResult]:
        """As `run`; sets on which a process crashed or did not end are left out."""
        plain, optimized = self.run(name, sets, wanted)
        for attempt in range(_ATTEMPTS):
            ended = next((each for each in (plain, optimized) if each.is_ended), None)
            if ended is None or not ended.running or not self.budget.left:
                break
            at = int(ended.running)
            # Where time ran out, what comes behind takes as long.
            end = len(self.sets) if ended.is_late else at + 1
            left = [*self.sets[:at], *self.sets[end:]]
            if not left:
                break
            for each in self.sets[at:end]:
                self.dropped[f"{each.text}: the original {ended.problem}"] = None
                if ended.is_late:
                    why = f"the original {ended.problem}"
                    self.late.append(Gap(f"input set {each.text}", why, MORE_TIME))
            plain, optimized = self.run(f"{name}{attempt}", left, wanted)
        return plain, optimized

    def run(
        self, name: str, sets: Sequence[InputSet], wanted: int
    ) -> tuple[SessionResult, SessionResult]:
        """Run the original with optimizations off, then on; input sets are named 0, 1, ..."""
        self.stage = self.folder / name
        self.sets = sets
        feeds = [each.feeds for each in sets]
        for index, each in enumerate(feeds):
            write_feeds(self.stage / "feeds" / str(index), each)
        libraries = self.request.custom_ops
        settings = [
            Setting(self.request.path, self.stage / "plain", False, libraries),
            Setting(self.request.path, self.stage / "optimized", True, libraries),
        ]
        paths = [self.stage / "feeds" / str(index) for index in range(len(feeds))]
        # Where some sets do not end, the others are run again.
        kept = max(0.0, self.budget.left - self.budget.seconds / 2)
        plain, optimized = run_within(self.budget, settings, paths, wanted, kept_seconds=kept)
        return plain, optimized

    def usable(
        self, plain: SessionResult, optimized: SessionResult, excluded: Sequence[str]
    ) -> list[str]:
        """Return the input sets whose results can be compared; note why others cannot."""
        # Where no set runs under deploy settings, the results without optimizations are judged.
        needed = set(optimized.done) if optimized.done else set(plain.done)
        used = []
        for name, why in plain.failed.items():
            self._drop(name, why)
        for name in plain.done:
            if name not in needed:
                self._drop(name, optimized.failed.get(name, "not run under deploy settings"))
                continue
            values = read_values(self.stage / "plain" / name)
            # Outputs that depend on random numbers tell something if there are no others.
            left_out = () if len(excluded) == len(values) else excluded
            compared = {n: value for n, value in values.items() if n not in left_out}
            if not any(is_telling(value) for value in compared.values()):
                self._drop(name, "every output is empty, NaN or infinite")
            elif self._keeps_nan(name, compared):
                self._drop(name, "NaN of its inputs comes out")
            elif not self._is_stable(name, compared):
                self._drop(name, "ONNX Runtime's own optimizations change the results")
                self._keep_for_steps(self.sets[int(name)])
            else:
                used.append(name)
        return used

    def _is_stable(self, name: str, values: Mapping[str, Value]) -> bool:
        """Say whether a set of extreme numbers gives results that can be held to a tolerance."""
        other = self.stage / "optimized" / name
        if not self.sets[int(name)].is_extreme or not (other / MANIFEST).is_file():
            return True
        actual = read_values(other)
        # Values that outputs are picked from are computed without optimizations only.
        pairs = ((n, value, actual[n]) for n, value in values.items() if n in actual)
        found = (compare_outputs(*pair) for pair in pairs)
        # What decides how far a candidate may be off must not come from extreme numbers.
        return all(
            each.equal and OWN_ERROR_FACTOR * each.max_error_eps <= each.allowed_eps
            for each in found
        )

    def _keeps_nan(self, name: str, values: Mapping[str, Value]) -> bool:
        """Say whether a set with NaN is of no use: a model that guards against it gives none."""
        plan = self.sets[int(name)].plan
        if plan is None or plan.floats != "NaN":
            return False
        arrays = (value for value in values.values() if isinstance(value, np.ndarray))
        return any(not is_finite(each) for each in arrays)

    def _keep_for_steps(self, unstable: InputSet) -> None:
        """Write a set of large numbers once more: names of later ones are those of this one."""
        if unstable.plan is not None and unstable.plan.floats == "large":
            folder = self.folder / "unstable" / f"unstable{len(self.unstable)}"
            write_feeds(folder, unstable.feeds)
            self.unstable.append(folder)

    def _drop(self, name: str, why: str) -> None:
        self.dropped[f"{self.sets[int(name)].text}: {why}"] = None

    def reference(
        self,
        outputs: tuple[str, ...],
        excluded: tuple[str, ...],
        good: Sequence[str],
        sessions: tuple[SessionResult, SessionResult],
    ) -> Reference:
        optimized = sessions[1]
        missing = [name for name in good if name not in optimized.done]
        model, feeds = self.request.model, tuple(self.stage / "feeds" / each for each in good)
        return Reference(
            inputs=tuple(v.name or "" for v in free_inputs(model)),
            outputs=outputs,
            excluded=excluded,
            feeds=feeds,
            plain=self.stage / "plain",
            optimized=self.stage / "optimized",
            own_problem=optimized.problem if missing else "",
            perturbed=PerturbedRuns(
                self.request.path, self.folder, self.budget, self.request.custom_ops
            ),
            coarsest=coarsest_type(model),
            budget=self.budget,
            sessions=sessions,
            late=tuple(self.late),
            unstable=tuple(self.unstable),
            about=tuple(self.sets[int(each)].text for each in good),
            dropped=tuple(self.dropped),
        )
