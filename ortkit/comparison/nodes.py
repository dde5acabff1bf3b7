"""Two models value by value: where they part, and which node is to blame.

Values of one name are compared as the models compute them, and each once more as B makes it
from what A has before it. Then no error comes in, and what differs is made right there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from ortkit.comparison import reproducer
from ortkit.comparison.cuts import shaken
from ortkit.comparison.inside import where_inside
from ortkit.comparison.node_judge import (
    TRIALS,
    compared,
    is_explained,
    is_next_step,
    rounded_otherwise,
)
from ortkit.comparison.node_result import Divergence, NodeReport, State, ValueRow
from ortkit.comparison.node_runs import Failed, Part, Runner, Values, batches, first_failing
from ortkit.comparison.sides import NodeSide, Prepared, prepare
from ortkit.errors import RunError, UserError
from ortkit.graph.analysis.provenance import align
from ortkit.temporary import TemporaryFolder
from ortkit.verify.compare import OutputComparison
from ortkit.verify.inputs.feeds import Feeds, Value
from ortkit.verify.precision import coarser_origins
from ortkit.verify.tolerances import TOLERANCES

#: This many values are looked at closely; what is off after them is mostly their doing.
_MOST_SUSPECTS = 32
#: Results that are held at a time, of each model.
_LIMIT_BYTES = 256 << 20


def _silent(stage: str) -> None:
    """Ignore progress."""


def compare_nodes(
    before: NodeSide,
    after: NodeSide,
    feeds: Feeds,
    *,
    repro: Path | None = None,
    limit_bytes: int = _LIMIT_BYTES,
    timeout_seconds: float = 600.0,
    progress: Callable[[str], None] = _silent,
) -> NodeReport:
    """Compare all values that two models have in common, on one input set.

    All runs are with ONNX Runtime's optimizations off, in child processes. Nodes after a value are
    inferred from the names of values; see `graph/analysis/provenance.py`.

    Args:
        before: The model that is right by definition, A.
        after: The model to judge, B.
        feeds: Inputs of both.
        repro: A folder for the first value that diverges, as two models with their inputs.
        limit_bytes: Of values that are held on disk at a time, for each model.
        timeout_seconds: Most seconds of one run.
        progress: Called with the name of each stage.

    Raises:
        ModelError: One of them is no valid model.
        RunError: A does not run.
        UserError: Nothing can be compared.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    started = time.perf_counter()
    with TemporaryFolder("nodes") as folder:
        progress("read the models")
        left = prepare(before, feeds, folder / "a")
        right = prepare(after, feeds, folder / "b", left.model)
        runner = Runner(folder, feeds, timeout_seconds)
        comparer = _Comparer(left, right, runner, limit_bytes, progress)
        rows = tuple(comparer.rows())
        first = comparer.divergence(rows, repro)
        outputs = [value.name or "" for value in left.model.graph.outputs]
        return comparer.report(rows, first, outputs, time.perf_counter() - started)


@dataclass
class _Comparer:
    before: Prepared
    after: Prepared
    runner: Runner
    limit_bytes: int
    progress: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        common = align(self.before.model, self.after.model).values
        cutter, other = self.before.cutter, self.after.cutter
        shared = [name for name in cutter.makers if name in common and name not in other.inputs]
        self.random = [n for n in shared if n in self.before.random or n in self.after.random]
        left_out = frozenset(self.random)
        self.values = [name for name in shared if name not in left_out]
        self.stops = set(shared)
        if not self.values:
            raise UserError(
                "no computed value has the same name in both",
                where=self.after.side.name,
                fix="compare their outputs without --nodes",
            )
        self.coarse = coarser_origins(self.after.model) | coarser_origins(self.before.model)
        self.broken: tuple[str, str] | None = None
        self.suspects = 0

    def rows(self) -> Iterator[ValueRow]:
        """Yield a row for each value, in A's order."""
        self.runner.find_sizes(self.before, self.values)
        self.runner.forget()
        for number, batch in enumerate(batches(self.before, self.values, self.limit_bytes), 1):
            self.progress(f"compare values, part {number}")
            yield from self._batch(batch)
            self.runner.forget()
        for name in self.random:
            yield replace(self._row(name, "not compared"), reason="it depends on random numbers")

    def _batch(self, batch: Sequence[str]) -> Iterator[ValueRow]:
        expected, whole = self._values(batch)
        steps = self._steps(batch, expected)
        for name in batch:
            yield self._judged(name, expected, whole.get(name), steps[name])

    def _values(self, batch: Sequence[str]) -> tuple[Values, Values]:
        """Return A's values, with all that B's steps read, and B's; sequences are not given."""
        while True:
            read = self.after.cutter.given_to(batch, self.stops)
            wanted = dict.fromkeys((*batch, *(name for name in read if name in self.stops)))
            whole: Values | Failed = {}
            if self.broken is None:
                found, whole = self.runner.both((self.before, list(wanted)), (self.after, batch))
            else:
                found = self.runner.upto(self.before, list(wanted))
            if isinstance(found, Failed):
                self._refuse(found)
            opaque = {name for name, value in found.items() if not isinstance(value, np.ndarray)}
            if not opaque & self.stops:
                return found, self._noted(whole, batch)
            self.stops -= opaque

    def _noted(self, whole: Values | Failed, batch: Sequence[str]) -> Values:
        """Return B's values; none from where it fails on, which is noted."""
        if not isinstance(whole, Failed):
            return whole
        name, reason = first_failing(self.runner, self.after, self.values)
        self.broken = name or batch[0], reason or whole.reason
        self.notes.append(f"B does not run as a whole: {self.broken[1]}")
        return {}

    def _refuse(self, failed: Failed) -> NoReturn:
        name, reason = first_failing(self.runner, self.before, self.values)
        where = self.before.side.name
        if name:
            where = f"{where}, {self._row(name, 'fails').before[-1]}"
        raise RunError(f"ONNX Runtime does not run it: {reason or failed.reason}", where=where)

    def _steps(self, batch: Sequence[str], known: Values) -> dict[str, Value | Failed]:
        """Return what B makes of A's values, or why it makes nothing, narrowed down."""
        found = self.runner.steps(self.after, batch, known, self.stops)
        if not isinstance(found, Failed):
            return dict(found)
        if len(batch) == 1:
            return {batch[0]: found}
        middle = len(batch) // 2
        parts = (self._steps(part, known) for part in (batch[:middle], batch[middle:]))
        return {name: value for part in parts for name, value in part.items()}

    def _judged(self, name: str, known: Values, whole: Value, step: Value | Failed) -> ValueRow:
        expected, coarse = known[name], self.coarse.get(name, "")
        row = self._row(name, "same")
        if isinstance(expected, np.ndarray):
            kind = "string" if expected.dtype.kind == "O" else expected.dtype.name
            row = replace(row, dtype=kind, shape=expected.shape)
        has_whole = self.broken is None
        error = compared(name, expected, whole, coarse) if has_whole else None
        row = replace(row, error_eps=None if error is None else error.max_error_eps)
        if isinstance(step, Failed):
            return replace(row, state="fails", reason=step.reason)
        own = compared(name, expected, step, coarse)
        row = replace(row, own_error_eps=own.max_error_eps, allowed_eps=own.allowed_eps)
        state, reason = self._state(name, own, error, known, step)
        return replace(row, state=state, reason=reason)

    def _state(
        self,
        name: str,
        own: OutputComparison,
        error: OutputComparison | None,
        known: Values,
        step: Value,
    ) -> tuple[State, str]:
        if own.equal:
            if error is not None and not error.equal:
                return "carried", error.reason
            is_same = own.max_error_eps == 0 and (error is None or error.max_error_eps == 0)
            return ("same" if is_same else "rounding"), ""
        ops = [self.before.ops[index] for index in self._nodes(self.before, name)]
        if is_next_step(ops, known[name], step):
            return "rounding", "one step of a quantized number"
        if self.suspects >= _MOST_SUSPECTS:
            return "diverges", own.reason
        self.suspects += 1
        if is_explained(own, known[name], step, self._otherwise(name, known)):
            return "sensitive", own.reason
        return "diverges", own.reason

    def _otherwise(self, name: str, known: Values) -> list[Value]:
        """Return what A makes when its values, and those on the way, are rounded otherwise."""
        read = self.before.cutter.given_to([name], self.stops)
        missing = [item for item in read if item in self.stops and item not in known]
        given = {one: known[one] for one in read if one in known}
        given |= {one: self.runner.feeds[one] for one in read if one in self.runner.feeds}
        if missing:
            more = self.runner.upto(self.before, missing)
            given |= {} if isinstance(more, Failed) else more
        tensors = {one: value for one, value in given.items() if isinstance(value, np.ndarray)}
        value = known[name]
        is_float = isinstance(value, np.ndarray) and value.dtype.name in TOLERANCES
        trials = range(TRIALS) if is_float else range(TRIALS, 2 * TRIALS)
        part = self.before.cutter.step([name], self.runner.give(self.before, tensors)[1])
        factors = shaken(part, self.before.element_types)
        feeds = [
            self.runner.give(self.before, rounded_otherwise(tensors, factors, trial))[0]
            for trial in trials
        ]
        (found,) = self.runner.run([Part(self.before, part)], feeds)
        return [] if isinstance(found, Failed) else [values[name] for values in found]

    def _nodes(self, side: Prepared, name: str) -> list[int]:
        return side.cutter.nodes_to([name], self.stops)

    def _row(self, name: str, state: State) -> ValueRow:
        before, after = self.before, self.after
        last = after.cutter.makers.get(name)
        behind = [index for index in self._nodes(after, name) if index not in after.added]
        return ValueRow(
            name,
            tuple(before.labels[index] for index in self._nodes(before, name)),
            tuple(after.labels[index] for index in behind),
            before.ops[before.cutter.makers[name]],
            "" if last is None else after.ops[behind[-1] if behind else last],
            state,
        )

    def divergence(self, rows: Sequence[ValueRow], repro: Path | None) -> Divergence | None:
        """Look closely at the first value that diverges, if one does."""
        row = next((row for row in rows if row.state in ("diverges", "fails")), None)
        if row is None:
            return None
        self.progress(f"look at {row.value}")
        name = row.value
        cutters = self.before.cutter, self.after.cutter
        read = dict.fromkeys(n for cutter in cutters for n in cutter.given_to([name], self.stops))
        wanted = [name, *(one for one in read if one in self.stops)]
        known = self.runner.upto(self.before, wanted)
        assert not isinstance(known, Failed), "it ran before"
        step = reproducer.Step(
            name, {item: value for item, value in known.items() if item != name}, known[name]
        )
        blame = self._blame(row, known)
        inside = where_inside(self.runner, self.before, self.after, step)
        made = None
        if repro is not None:
            made = reproducer.write(repro, self.runner, self.before, self.after, step)
        return Divergence(row, tuple(read), inside, blame, made)

    def _blame(self, row: ValueRow, known: Values) -> str:
        """Say whether it is a kernel or the function in its place that is wrong."""
        ops = {self.after.ops[index] for index in self._nodes(self.after, row.value)}
        fused = sorted(ops & self.after.fused)
        if not fused or row.state == "fails":
            return ""
        steps = self.runner.steps(self.after, [row.value], known, self.stops, with_kernels=False)
        if isinstance(steps, Failed):
            return ""
        found = compared(row.value, known[row.value], steps[row.value])
        called = ", ".join(fused)
        if found.equal:
            return f"the kernel of {called} is wrong: its function gives what A gives"
        return f"the function of {called} is wrong, as its kernel is"

    def report(
        self,
        rows: tuple[ValueRow, ...],
        first: Divergence | None,
        outputs: Sequence[str],
        seconds: float,
    ) -> NodeReport:
        """Put everything together."""
        found = {row.value: row for row in rows}
        wrong = [
            name
            for name in outputs
            if name in found and found[name].state in ("carried", "diverges", "fails")
        ]
        if lost := [name for name in outputs if name not in found]:
            self.notes.append(f"outputs that are not compared: {', '.join(lost)}")
        suspect = None
        if wrong and first is None:
            judged = [row for row in rows if row.own_error_eps and row.allowed_eps]
            suspect = max(
                judged,
                key=lambda row: (row.own_error_eps or 0) / (row.allowed_eps or 1),
                default=None,
            )
        return NodeReport(
            self.before.side.name,
            self.after.side.name,
            rows,
            first,
            tuple(wrong),
            suspect,
            len(self.before.labels),
            len(self.after.labels) - len(self.after.added),
            tuple(self.notes),
            seconds,
        )
