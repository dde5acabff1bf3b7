"""What the original computes, on which inputs, and how exact ONNX Runtime is about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.graph.constants import constant_array
from ortkit.runtime.tensor_files import MANIFEST
from ortkit.verify.compare import TieCheck, compare_outputs, is_telling
from ortkit.verify.covering import Level
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.expectations import mismatches
from ortkit.verify.feeds import FeedMaker, Feeds, Value
from ortkit.verify.given import load_given
from ortkit.verify.input_sets import InputSet, InputSets
from ortkit.verify.limits import long_loop, time_limit
from ortkit.verify.nudged import write_nudged
from ortkit.verify.precision import coarser_origins
from ortkit.verify.random_ops import random_outputs
from ortkit.verify.sessions import SessionResult, Setting, run_sessions
from ortkit.verify.sizes import free_inputs
from ortkit.verify.ties import Roundings, TieSource, tie_check, tie_sources, write_probe
from ortkit.verify.tolerances import OWN_ERROR_FACTOR
from ortkit.verify.user_tolerance import UserTolerance
from ortkit.verify.verification import Gap

#: How many other input sets are tried when the original does not run on the first.
_FALLBACKS = 48
#: How often the original is run again without an input set on which it crashed or did not end.
_ATTEMPTS = 2
#: How many of them are run when the results of the first hold nothing to compare.
_SEARCHED = 6
_GIVEN = "give --shape NAME=SIZE or --inputs FILE.npz"
#: Number of sizes that a message names to choose from.
_NAMED_SIZES = 6


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
    timeout_seconds: float | None = None
    """Seconds for all sessions of one model; None: as `time_limit` says."""
    custom_ops: tuple[Path, ...] = ()
    given: Sequence[Feeds] = ()
    """The input sets to run on; if there are some, nothing is made or read."""
    tolerance: UserTolerance | None = None
    """What the user allows a candidate, and expected outputs, to be off."""


@dataclass(frozen=True)
class Refusal:
    """Why nothing can be verified."""

    reason: str
    fix: str = ""
    """What the user can give to change that; empty if nothing helps."""


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
    own_errors_eps: Mapping[str, float]
    own_problem: str
    """Why the original does not run under deploy settings; empty if it does."""
    ties: Mapping[str, TieSource]
    constants: Mapping[str, Value]
    computed_in: Mapping[str, str]
    """By value, a coarser float type that it was computed in than its own."""
    is_quantized: bool = False
    """Whether `own_errors_eps` is also what neighbouring steps of the original's make."""
    stated: float = 0.0
    """An error that the user accepts, as a part of the output's largest magnitude."""
    rounded: Path | None = None
    """Results with every value rounded to half precision, and with the values that outputs are
    picked or rounded from, if that was looked at."""
    kernel_roundings: float = 1.0
    """How many times as much as sums of products the candidate's kernels round."""
    timeout_seconds: float = 600.0
    """Seconds for all sessions of a candidate."""
    about: tuple[str, ...] = ()
    """By input set, its sizes and kinds of values."""
    dropped: tuple[str, ...] = ()
    """Input sets that are not used, with the reasons."""
    notes: tuple[str, ...] = ()
    """What is odd about given input sets."""
    tolerance: UserTolerance | None = None
    """What the user allows a candidate to be off, besides what is judged anyway."""
    mismatches: tuple[Gap, ...] = ()
    """Expected outputs that came with them and that the original does not give."""
    is_strict: bool = False
    """Whether such values in half precision are off by no more than `rounded` and one epsilon."""

    def expected(self, feeds: Path) -> dict[str, Value]:
        """Return the reference for one input set."""
        return read_values(self.plain / feeds.name)

    def tie(self, name: str, feeds: Path, *, optimized: bool) -> TieCheck | None:
        """Return what judges the differing elements of an output that picks values."""
        checks = []
        if name in self.ties:
            values = {**read_values(feeds), **self.constants, **self.expected(feeds)}
            worst = max(self.own_errors_eps.values(), default=0.0)
            source, given = self.ties[name], values.get(name)
            moved = {} if self.rounded is None else read_values(self.rounded / feeds.name)
            roundings = Roundings(moved) if self.is_strict else None
            checks.append(
                tie_check(source, given, values, worst, self.computed_in, self.stated, roundings)
            )
        if optimized and not self.own_problem:
            checks.append(_equals(read_values(self.optimized / feeds.name).get(name)))
        known = [check for check in checks if check is not None]
        return (lambda actual: _either(known, actual)) if known else None


def _equals(other: Value) -> TieCheck | None:
    """Under the same settings the original may have picked the same."""
    if not isinstance(other, np.ndarray):
        return None
    return lambda actual: np.asarray(
        actual == other if actual.shape == other.shape else np.zeros(actual.shape, bool)
    )


def _either(checks: Sequence[TieCheck], actual: np.ndarray) -> np.ndarray:
    result = np.zeros(actual.shape, bool)
    for check in checks:
        result |= check(actual)
    return result


def compute_reference(request: Request, folder: Path) -> Reference | Refusal:
    """Make input sets and run the original on them, with optimizations off and on.

    Raises:
        UserError: The inputs or sizes that the user gave do not fit the model.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    outputs = tuple(value.name or "" for value in request.model.graph.outputs)
    if request.tolerance is not None:
        request.tolerance.check_names(outputs)
    excluded = random_outputs(request.model)
    if outputs and set(outputs) == set(excluded):
        return Refusal(f"every output depends on random numbers: {', '.join(excluded)}")
    if reason := long_loop(request.model):
        return Refusal(reason)
    try:
        made = _input_sets(request)
    except ModelError as error:
        return Refusal(error.problem, error.fix or _GIVEN)
    if request.timeout_seconds is None:
        feeds = (each.feeds for each in made.first)
        request = replace(request, timeout_seconds=time_limit(request.model, *feeds))
    runner = _Runner(request, folder, tie_sources(request.model))
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
        return Refusal(f"ONNX Runtime does not load the original: {plain.problem}")
    if plain.is_ended or not plain.done:
        reason = f"ONNX Runtime does not run the original: {plain.problem}"
        return Refusal(reason, _other_inputs(request))
    if not good:
        reason = "on the inputs tried, every output is empty, NaN or infinite"
        return Refusal(reason, _other_inputs(request))
    reference = runner.reference(outputs, excluded, good, optimized)
    expected = [(runner.sets[int(each)].text, runner.sets[int(each)].expected) for each in good]
    actual = [reference.expected(path) for path in reference.feeds]
    return replace(
        reference,
        dropped=(*made.dropped, *reference.dropped),
        notes=made.notes,
        tolerance=request.tolerance,
        mismatches=mismatches(expected, actual, excluded, request.tolerance),
    )


def _other_inputs(request: Request) -> str:
    """Return what the user can give where the original does not run on what it was given."""
    if request.inputs is not None:
        return "give other inputs with --inputs FILE.npz"
    sizes = sorted(
        {
            dim.value
            for value in free_inputs(request.model)
            for dim in value.shape or ()
            if not isinstance(dim, int) and dim.value
        }
    )
    if not sizes:
        return "give --inputs FILE.npz"
    named = ", ".join(sizes[:_NAMED_SIZES]) + (", ..." if len(sizes) > _NAMED_SIZES else "")
    return f"{_GIVEN} (sizes: {named})"


def _input_sets(request: Request) -> InputSets:
    if request.given:
        return InputSets.of_feeds(request.given)
    if request.inputs is not None:
        return InputSets.given(load_given(request.inputs, request.model))
    maker = FeedMaker.of(request.model, request.shapes or {})
    return InputSets.made(maker, request.samples, request.seed)


class _Runner:
    """Runs the original; remembers where the latest results lie."""

    def __init__(self, request: Request, folder: Path, ties: Mapping[str, TieSource]) -> None:
        self.request = request
        self.seconds = 0.0 if request.timeout_seconds is None else request.timeout_seconds
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ties = dict(ties)
        self.stage = folder
        self.sets: Sequence[InputSet] = ()
        """The input sets of the latest run, by their names 0, 1, ..."""
        self.dropped: dict[str, None] = {}
        self.moved: set[str] = set()
        """Input sets on which the nudged original ran, too."""
        probe = folder / "probe.onnx"
        self.probe = probe if ties and write_probe(request.path, ties, probe) else None
        self.nudged = write_nudged(request.path, folder / "nudged")

    def run_without_hung(
        self, name: str, sets: Sequence[InputSet], wanted: int
    ) -> tuple[SessionResult, SessionResult]:
        """As `run`; sets on which a process crashed or did not end are left out."""
        plain, optimized = self.run(name, sets, wanted)
        for attempt in range(_ATTEMPTS):
            ended = next((each for each in (plain, optimized) if each.is_ended), None)
            if ended is None or not ended.running:
                break
            at = int(ended.running)
            # Where time ran out, what comes behind takes as long.
            end = len(self.sets) if ended.is_late else at + 1
            left = [*self.sets[:at], *self.sets[end:]]
            if not left:
                break
            for each in self.sets[at:end]:
                self.dropped[f"{each.text}: the original {ended.problem}"] = None
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
        weights = self.request.path.parent.resolve() if self.probe else None
        libraries = self.request.custom_ops
        settings = [
            Setting(self.probe or self.request.path, self.stage / "plain", False, libraries,
                    weights_folder=weights),
            Setting(self.request.path, self.stage / "optimized", True, libraries),
        ]  # fmt: skip
        if self.nudged is not None:
            settings.append(Setting(self.nudged, self.stage / "nudged", False, libraries))
        paths = [self.stage / "feeds" / str(index) for index in range(len(feeds))]
        plain, optimized, *nudged = run_sessions(
            settings, paths, wanted, self.stage / "job", self.seconds
        )
        self.moved = {name for each in nudged for name in each.done}
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
            compared = {n: value for n, value in values.items() if n not in excluded}
            if not any(is_telling(value) for value in compared.values()):
                self._drop(name, "every output is empty, NaN or infinite")
            elif not self._is_stable(name, compared):
                self._drop(name, "ONNX Runtime's own optimizations change the results")
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

    def _drop(self, name: str, why: str) -> None:
        self.dropped[f"{self.sets[int(name)].text}: {why}"] = None

    def reference(
        self,
        outputs: tuple[str, ...],
        excluded: tuple[str, ...],
        good: Sequence[str],
        optimized: SessionResult,
    ) -> Reference:
        missing = [name for name in good if name not in optimized.done]
        compared = [name for name in outputs if name not in excluded]
        errors: dict[str, float] = {}
        for each in good:
            expected = read_values(self.stage / "plain" / each)
            others = [self.stage / "optimized" / each] if not missing else []
            if each in self.moved:
                others.append(self.stage / "nudged" / each)
            for actual in map(read_values, others):
                for name in compared:
                    found = compare_outputs(name, expected[name], actual[name]).max_error_eps
                    errors[name] = max(errors.get(name, 0.0), found if np.isfinite(found) else 0.0)
        model = self.request.model
        return Reference(
            inputs=tuple(v.name or "" for v in free_inputs(model)),
            outputs=outputs,
            excluded=excluded,
            feeds=tuple(self.stage / "feeds" / each for each in good),
            plain=self.stage / "plain",
            optimized=self.stage / "optimized",
            own_errors_eps=errors,
            own_problem=optimized.problem if missing else "",
            ties=self.ties,
            constants=_constants(model, self.ties),
            computed_in=coarser_origins(model),
            is_quantized=not self.moved.isdisjoint(good),
            timeout_seconds=self.seconds,
            about=tuple(self.sets[int(each)].text for each in good),
            dropped=tuple(self.dropped),
        )


def _constants(model: ir.Model, ties: Mapping[str, TieSource]) -> dict[str, Value]:
    """Return the initializers that an output is picked from or compared with."""
    wanted = {name for source in ties.values() for name in source.values}
    values = [model.graph.initializers[n] for n in wanted if n in model.graph.initializers]
    return {value.name or "": constant_array(value) for value in values}
