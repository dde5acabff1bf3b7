"""What the original computes, on which inputs, and how exact ONNX Runtime is about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.verify.compare import is_telling
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.feeds import FeedMaker, Feeds, Value, load_feeds
from ortkit.verify.limits import long_loop, time_limit
from ortkit.verify.perturbation import RUNS
from ortkit.verify.perturbed_runs import PerturbedRuns
from ortkit.verify.precision import coarsest_type
from ortkit.verify.random_ops import random_outputs
from ortkit.verify.sessions import SessionResult, Setting, run_sessions
from ortkit.verify.sizes import free_inputs

#: How many other input sets are tried when the original does not run on the first.
_FALLBACKS = 24
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
    samples: int = 2
    inputs: Path | None = None
    shapes: Mapping[str, int] | None = None
    seed: int = 0
    timeout_seconds: float | None = None
    """Seconds for all sessions of one model; None: as `time_limit` says."""
    custom_ops: tuple[Path, ...] = ()
    given: Sequence[Feeds] = ()
    """The input sets to run on; if there are some, nothing is made or read."""


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
    own_problem: str
    """Why the original does not run under deploy settings; empty if it does."""
    perturbed: PerturbedRuns
    coarsest: str = ""
    """The coarsest type in which a value is computed: in half precision, or `int8` if values are
    quantized; else empty."""
    timeout_seconds: float = 600.0
    """Seconds for all sessions of a candidate."""

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


def compute_reference(request: Request, folder: Path) -> Reference | Refusal:
    """Make input sets and run the original on them, with optimizations off and on.

    Raises:
        UserError: The inputs or sizes that the user gave do not fit the model.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    outputs = tuple(value.name or "" for value in request.model.graph.outputs)
    excluded = random_outputs(request.model)
    if reason := long_loop(request.model):
        return Refusal(reason)
    try:
        first, more = _input_sets(request)
    except ModelError as error:
        return Refusal(error.problem, error.fix or _GIVEN)
    if request.timeout_seconds is None:
        request = replace(request, timeout_seconds=time_limit(request.model, first[0]))
    runner = _Runner(request, folder)
    plain, optimized = runner.run("first", first, len(first))
    good = runner.telling("first", plain.done, excluded)
    if (len(plain.done) < len(first) or not good) and plain.is_loaded and not plain.is_ended:
        wanted = request.samples if good else _SEARCHED
        problem = plain.problem
        good_feeds = [first[int(name)] for name in good]
        plain, optimized = runner.run("more", [*good_feeds, *islice(more, _FALLBACKS)], wanted)
        plain.problem = problem or plain.problem
        good = runner.telling("more", plain.done, excluded)[: request.samples]
    if not plain.is_loaded:
        return Refusal(f"ONNX Runtime does not load the original: {plain.problem}")
    if plain.is_ended or not plain.done:
        reason = f"ONNX Runtime does not run the original: {plain.problem}"
        return Refusal(reason, _other_inputs(request))
    if not good:
        reason = "on the inputs tried, every output is empty, NaN or infinite"
        return Refusal(reason, _other_inputs(request))
    return runner.reference(outputs, excluded, good, optimized)


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


def _input_sets(request: Request) -> tuple[Sequence[Feeds], Iterator[Feeds]]:
    if request.given:
        return request.given, iter(())
    if request.inputs is not None:
        return [load_feeds(request.inputs, request.model)], iter(())
    maker = FeedMaker.of(request.model, request.shapes or {})
    count = request.samples if maker.inputs else 1
    return maker.first(count, request.seed), maker.fallbacks(request.seed + count)


class _Runner:
    """Runs the original; remembers where the latest results lie."""

    def __init__(self, request: Request, folder: Path) -> None:
        self.request = request
        self.seconds = 0.0 if request.timeout_seconds is None else request.timeout_seconds
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.stage = folder

    def run(
        self, name: str, feeds: Sequence[Feeds], wanted: int
    ) -> tuple[SessionResult, SessionResult]:
        """Run the original with optimizations off, then on; input sets are named 0, 1, ..."""
        self.stage = self.folder / name
        for index, each in enumerate(feeds):
            write_feeds(self.stage / "feeds" / str(index), each)
        libraries = self.request.custom_ops
        settings = [
            Setting(self.request.path, self.stage / "plain", False, libraries),
            Setting(self.request.path, self.stage / "optimized", True, libraries),
        ]
        paths = [self.stage / "feeds" / str(index) for index in range(len(feeds))]
        plain, optimized = run_sessions(settings, paths, wanted, self.stage / "job", self.seconds)
        return plain, optimized

    def telling(self, name: str, done: Sequence[str], excluded: Sequence[str]) -> list[str]:
        """Return the input sets whose results hold something to compare.

        Outputs that depend on random numbers tell something if there are no others.
        """
        found = {each: read_values(self.folder / name / "plain" / each) for each in done}
        return [
            each
            for each, values in found.items()
            if any(
                is_telling(value)
                for output, value in values.items()
                if output not in excluded or len(excluded) == len(values)
            )
        ]

    def reference(
        self,
        outputs: tuple[str, ...],
        excluded: tuple[str, ...],
        good: Sequence[str],
        optimized: SessionResult,
    ) -> Reference:
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
                self.request.path, feeds, self.folder, self.seconds, self.request.custom_ops
            ),
            coarsest=coarsest_type(model),
            timeout_seconds=self.seconds,
        )
