"""Stage 1: the rewritten graph against the original, step by step, in float32.

Both graphs are widened (`widening.py`), and kernels are left out: the bodies of their functions
stand for them. Every value that both graphs name is computed by the candidate from the original's
values (`steps.py`), so that each rewrite is judged where it is, at the tolerance of float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock

import onnx_ir as ir

from ortkit.graph.analysis.channels_last import restore_channels_first
from ortkit.graph.analysis.provenance import align
from ortkit.graph.analysis.weights import weights_of
from ortkit.graph.io.parts import share_weights, write_part
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.shapes.rules.call import Shape
from ortkit.verify.accuracy import DEFAULT, Allowance
from ortkit.verify.batch_judging import Judging, judges_here
from ortkit.verify.budget import Budget
from ortkit.verify.compare import OutputComparison
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.guard_coverage import (
    GuardCoverage,
    add_probes,
    guards_in_bodies,
    probe_names,
    read_coverage,
)
from ortkit.verify.limits import value_bytes
from ortkit.verify.lowered.exact_products import make_products_exact
from ortkit.verify.lowered.saturation import saturate
from ortkit.verify.lowered.steps import NOT_LOWERED, LoweredSteps, lowered_steps
from ortkit.verify.lowered.whole_biases import round_biases
from ortkit.verify.perturbed.runs import unit_of
from ortkit.verify.perturbed.steps import LIMITS, Side, StepJudge
from ortkit.verify.random_ops import drawn_names, drawn_otherwise, draws
from ortkit.verify.resumption import Batch, Stop, live_values, resume
from ortkit.verify.rewrite_check import RewriteCheck
from ortkit.verify.rounded_constants import (
    RoundedConstants,
    half_weights,
    rounded_constants,
)
from ortkit.verify.same_constants import different_constants
from ortkit.verify.sessions import SessionResult, Setting, run_within
from ortkit.verify.steps import (
    as_steps,
    bytes_of_values,
    computed_values,
    give,
    prune,
)
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.widening import widened, widened_feeds


class RewriteStage:
    """Compares the values of candidates with those of one original, on the same inputs."""

    def __init__(
        self,
        original: ir.Model,
        feeds: Sequence[Path],
        folder: Path,
        budget: Budget,
        custom_ops: tuple[Path, ...] = (),
    ) -> None:
        """Prepare the original.

        Args:
            original: The original, left as it is.
            feeds: Folders of input sets, in the original's types.
            folder: For all files of this stage; made here.
            budget: The time that is left.
            custom_ops: Libraries that the models need to load at all.
        """
        self._original = widened(original)
        make_products_exact(self._original)
        round_biases(self._original)
        self._values = computed_values(self._original)
        self._shapes = Shapes.infer(self._original)
        for value in self._values.values():
            if value.type is None and (dtype := self._shapes.dtype(value)) is not None:
                value.type = ir.TensorType(dtype)
        self._folder = folder
        self._budget = budget
        self._kept_seconds = 0.0
        self._custom_ops = custom_ops
        self._checks = 0
        self._candidate_weights = folder
        self._allowance = DEFAULT
        self._rounded: RoundedConstants | None = None
        """Of the candidate that is compared; None until they are asked for."""
        self._guards: GuardCoverage | None = None
        self._lock = Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._feeds = [widened_feeds(each, folder / "feeds") for each in feeds]
        self._weights = share_weights(self._original, folder / "original.onnx")
        self._most_bytes = value_bytes(weights_of(self._original).bytes, budget.memory)
        times = _TIMES_LIVE if budget.memory is None else 1
        self._most_live_bytes = times * self._most_bytes
        self._bytes = bytes_of_values(self._original, self._feeds)

    def check(
        self,
        candidate: ir.Model,
        allowance: Allowance = DEFAULT,
        kept_seconds: float = 0.0,
        keeps_names: bool = False,
    ) -> RewriteCheck:
        """Compare every value that a candidate shares with the original.

        Args:
            candidate: The candidate, left as it is.
            allowance: What it may do that the original does not.
            kept_seconds: What is to be left on the budget.
            keeps_names: Whether values of one name are the same value.

        Raises:
            MissingDependencyError: ONNX Runtime is not installed.
        """
        self._checks += 1
        self._allowance = allowance
        self._rounded = None
        self._kept_seconds = kept_seconds
        folder = self._folder / f"rewrites{self._checks}"
        wide = widened(candidate)
        make_products_exact(wide)
        round_biases(wide)
        if allowance.stated:
            saturate(wide, self._original)
        folder.mkdir()
        self._candidate_weights = share_weights(wide, folder / "candidate.onnx")
        # A name in a function's body is no name of the graph.
        own = set(computed_values(candidate))
        restored = restore_channels_first(wide, self._original)
        own.update(value.name or "" for node in restored for value in node.outputs)
        names = self._shared(wide, own)
        if drawn := self._drawn_otherwise(wide, names):
            return RewriteCheck(wrong=drawn)
        if constants := self._other_constants(wide, names, keeps_names):
            return RewriteCheck(wrong=constants)
        found = self._compared(wide, names, folder / "all")
        if not found.problem and (keeps_names or not found.wrong):
            return replace(found, guards=self._guards)
        # Another tool may give a name to another value. What is computed of it is compared then.
        doubtful = set(names) - align(self._original, wide).values
        if found.wrong:
            doubtful &= {each.name for each in found.wrong}
        if not doubtful:
            return found
        certain = [name for name in names if name not in doubtful]
        return replace(self._compared(wide, certain, folder / "certain"), guards=self._guards)

    def _drawn_otherwise(
        self, wide: ir.Model, names: Sequence[str]
    ) -> tuple[OutputComparison, ...]:
        """Return the values that are drawn of other random numbers than the original's."""
        theirs = computed_values(wide)
        found = []
        for name in names:
            node = self._values[name].producer()
            if node is None or not draws(node):
                continue
            if reason := drawn_otherwise(node, theirs[name].producer()):
                kind = str(self._shapes.dtype(self._values[name]))
                found.append(OutputComparison(name, kind, math.inf, 0.0, (), False, 0, reason))
        return tuple(found)

    def _other_constants(
        self, wide: ir.Model, names: Sequence[str], keeps_names: bool
    ) -> tuple[OutputComparison, ...]:
        """Return the values that are computed from constants which are not the original's."""
        if self._allowance != DEFAULT:
            return ()  # its constants are rounded
        theirs = computed_values(wide)
        found = tuple(different_constants(self._values, theirs, names, LIMITS))
        if not found or keeps_names:
            return found
        certain = align(self._original, wide).values
        return tuple(each for each in found if self._computed(each.name) <= certain)

    def _computed(self, name: str) -> set[str]:
        """Return a value's name, and those of the values that its node computes it from."""
        node = self._values[name].producer()
        read = {value.name or "" for value in (node.inputs if node else ()) if value is not None}
        return {name, *(read & self._values.keys())}

    def _compared(self, wide: ir.Model, names: Sequence[str], folder: Path) -> RewriteCheck:
        """Compare the values named, each computed from the others; as many at a time as fit.

        The models run on the values of a batch while those of the batches before are judged.
        """
        compared = [name for name in names if not draws(self._values[name].producer())]
        batches = [self._batch(wide, names, each) for each in self._batches(compared)]
        batches = [each for each in batches if each.names]
        total, stop = RewriteCheck(), Stop()
        with Judging(judges_here()) as judging:
            for number, batch in enumerate(batches):
                if judging.is_over:
                    break
                part = folder / str(number)
                part.mkdir(parents=True)
                live = self._live(batch, batches[number + 1 :])
                problem = self._run_batch(batch, part, stop, live)
                judging.add(part, partial(self._judge_batch, wide, batch, part), problem)
                stop = Stop(frozenset(live), part / "expected")
        for check in judging.checks:
            total = total.with_part(check)
        if total.late and not total.problem:
            left = batches[len(judging.checks) :]
            total = total.with_part(
                RewriteCheck(late=tuple(n for each in left for n in each.names))
            )
        return total

    def _batch(self, wide: ir.Model, names: Sequence[str], compared: Sequence[str]) -> Batch:
        """Return the steps of both models that compute some of the values."""
        steps, own_steps = wide.clone(), self._original.clone()
        for model in (steps, own_steps):
            as_steps(model, names, compared)
            prune(model)
        # Where the two draw under different names, their numbers have nothing in common.
        drawn = {name for model in (steps, own_steps) for name in drawn_names(model)}
        return Batch(tuple(name for name in compared if name not in drawn), steps, own_steps)

    def _live(self, batch: Batch, later: Sequence[Batch]) -> set[str]:
        """Return the values at which the run of a batch stops; none if they take much memory."""
        if not later:
            return set()
        given = set().union(*(each.needed for each in later))
        found = live_values(self._original, batch.needed, given)
        found = {name for name in found if name in self._values and self._can_be_given(name)}
        size = sum(self._bytes.get(name, _UNKNOWN_BYTES) for name in found)
        return found if size <= self._most_live_bytes else set()

    def _can_be_given(self, name: str) -> bool:
        """Return whether the type of a value is known, and ONNX Runtime takes it as an input."""
        value = self._values[name]
        return isinstance(value.type, ir.TensorType) and value.dtype != ir.DataType.STRING

    def _run_batch(
        self, batch: Batch, folder: Path, stop: Stop, live: set[str]
    ) -> RewriteCheck | None:
        """Run the original, and the candidate's steps; return what stopped them, None if nothing.

        Args:
            batch: What is compared.
            folder: For the results.
            stop: Where the run of the batch before stopped.
            live: The values at which this one does.
        """
        steps, compared = batch.steps, batch.names
        whole = self._original.clone()
        wanted = batch.needed | live
        guards = None
        if self._guards is None:  # the original's run says which guards the input sets meet
            guards = add_probes(whole)
            wanted.update(value.name or "" for value in whole.graph.outputs)
        resume(whole, stop.values)
        give(whole, wanted)
        given = folder / "expected"
        results = self.run(
            [
                self.setting(whole, self._weights, given, given=stop.results),
                self.setting(steps, self._candidate_weights, folder / "actual", given=given),
            ]
        )
        if any(each.is_late for each in results):
            return RewriteCheck(late=tuple(compared))
        problem = next((each.problem for each in results if each.problem), "")
        if problem:
            return RewriteCheck(problem=problem)
        if guards is not None:
            probes = probe_names(len(guards))
            runs = [read_values(folder / "expected" / each.name, probes) for each in self._feeds]
            self._guards = read_coverage(guards, runs, guards_in_bodies(self._original))
        return None

    def _judge_batch(self, wide: ir.Model, batch: Batch, folder: Path) -> RewriteCheck:
        """Compare the values of a batch that has run."""
        steps, own_steps, compared = batch.steps, batch.own_steps, batch.names
        lowered = self._lowered(wide, steps, own_steps, folder)
        rounded = lowered.floats | lowered.others
        exact = [name for name in compared if name not in rounded]
        choices = [name for name in compared if name in lowered.others]
        sides = Side(own_steps, self._weights), Side(steps, self._candidate_weights)
        judge = StepJudge(sides, self._feeds, folder, lambda: self._rounded_constants(wide), self)
        off, late = judge.judge(exact, TOLERANCES["float32"].epsilon)
        others = judge.judge(choices, unit_of(self._allowance.stated))
        off, late = off | others[0], late | others[1]
        for feeds in self._feeds:
            off |= lowered.off(folder, feeds.name, self._allowance.stated)
        return RewriteCheck(
            tuple(name for name in compared if name not in late),
            tuple(each for name, each in off.items() if not each.equal and name not in late),
            tuple(each for each in off.values() if each.is_inconclusive),
            tuple(sorted(late)),
        )

    def _rounded_constants(self, wide: ir.Model) -> RoundedConstants:
        """Return the constants in half precision that only one of the two has; found once."""
        with self._lock:  # batches are judged in several threads
            if self._rounded is None:
                self._rounded = rounded_constants(self._original, wide, self._allowance.half)
            return self._rounded

    def _lowered(
        self, wide: ir.Model, steps: ir.Model, own_steps: ir.Model, folder: Path
    ) -> LoweredSteps:
        """Find the steps that are lowered, if any may be, and run what explains their errors."""
        if not self._allowance.stated:
            return NOT_LOWERED
        found = lowered_steps(steps, own_steps, half_weights(self._original, wide))
        given, weights = folder / "expected", self._candidate_weights
        settings = [
            self.setting(model, weights, folder / name, given, count)
            for name, model, count in found.runs
        ]
        results = self.run(settings)
        return found.without_models() if any(each.problem for each in results) else found

    def _batches(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Split values into lists whose results on the largest input set fit the limit."""
        batch: list[str] = []
        size = 0
        for name in names:
            more = self._bytes.get(name, _UNKNOWN_BYTES)
            if batch and size + more > self._most_bytes:
                yield batch
                batch, size = [], 0
            batch.append(name)
            size += more
        if batch:
            yield batch

    def _shared(self, wide: ir.Model, own: set[str]) -> list[str]:
        """Return the values that both compute, whose type ONNX Runtime takes as an input.

        Values of one name whose shapes contradict each other are not the same value: each model
        numbers the values of the functions that were inlined into it.
        """
        theirs, shapes = computed_values(wide), Shapes.infer(wide)
        names = []
        for name, value in self._values.items():
            if name not in own or name not in theirs or not self._can_be_given(name):
                continue
            if _contradict(self._shapes.shape(value), shapes.shape(theirs[name])):
                continue
            theirs[name].type = value.type
            names.append(name)
        return names

    def setting(
        self,
        model: ir.Model,
        weights: Path,
        results: Path,
        given: Path | None = None,
        repeats: int = 1,
        first: int = 0,
    ) -> Setting:
        """Write a part of one of the models, and return how it is run; see `Setting`."""
        prune(model)
        return Setting(
            write_part(model, results.parent / f"{results.name}{first or ''}.onnx", weights),
            results,
            libraries=self._custom_ops,
            weights_folder=weights,
            given=given,
            repeats=repeats,
            first=first,
        )

    def run(
        self, settings: Sequence[Setting], feeds: Sequence[Path] | None = None
    ) -> list[SessionResult]:
        """Run parts of the models in the time that is left for this stage.

        Args:
            settings: As `setting` returns them.
            feeds: Folders of input sets; None for all.
        """
        if not settings:
            return []
        feeds, kept = self._feeds if feeds is None else feeds, self._kept_seconds
        return run_within(self._budget, settings, feeds, len(feeds), kept_seconds=kept)


_UNKNOWN_BYTES = 1 << 20
#: How many times the bytes of a batch the values may take at which the run of the original stops.
#: A run holds as much at that point; it is held beside the batch, though.
_TIMES_LIVE = 2


def _contradict(one: Shape | None, other: Shape | None) -> bool:
    """Return whether two shapes cannot be the same for any sizes of the named dimensions."""
    if one is None or other is None:
        return False
    return len(one) != len(other) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(one, other, strict=True)
    )
