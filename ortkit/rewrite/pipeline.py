"""Passes in order, repeated until nothing changes; prints as the text that parses back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import onnx_ir as ir

from ortkit.graph.shapes import Shapes
from ortkit.graph.walk import roots
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.passes import GraphPass, ModelPass, NodePass, Pass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.sweep import sweep
from ortkit.rewrite.target import Target


@dataclass(frozen=True)
class Step:
    """What one group of passes did in one round."""

    passes: tuple[str, ...]
    round: int
    rewrites: int
    nodes_after: int
    seconds: float


@dataclass(frozen=True)
class Instruments:
    """What to do around each group of passes."""

    after: tuple[Callable[[ir.Model, Step], None], ...] = ()
    """Called after each group: to dump the model, to check it, to show progress."""


@dataclass(frozen=True)
class Pipeline:
    """Passes in order, repeated until a whole round changes nothing or `max_rounds` is reached."""

    passes: tuple[Pass, ...]
    max_rounds: int = 6

    @property
    def text(self) -> str:
        """The form that `parse_pipeline` reads back."""
        return ",".join(one.text for one in self.passes)

    def run(
        self,
        model: ir.Model,
        target: Target,
        *,
        denied: frozenset[str] = frozenset(),
        fuel: int | None = None,
        instruments: Instruments = Instruments(),
    ) -> PipelineResult:
        """Rewrite `model` in place.

        Args:
            model: The caller's private copy.
            target: What to be fast on.
            denied: Ids of rewrites that must not happen.
            fuel: Stop rewriting after that many rewrites; None: no end.
            instruments: What to do after each group of passes.

        Raises:
            InternalError: Passes that undo each other's work.
        """
        result = PipelineResult(model, RewriteLog(denied, fuel))
        scopes: list[Scope] = []
        for round_number in range(1, self.max_rounds + 1):
            before = len(result.log.hits)
            for group in _groups(self.passes):
                started, hits = time.perf_counter(), len(result.log.hits)
                scopes = _run_group(group, model, scopes, result.log, target)
                step = Step(
                    tuple(one.name for one in group),
                    round_number,
                    len(result.log.hits) - hits,
                    len(model.graph),
                    time.perf_counter() - started,
                )
                result.steps.append(step)
                for instrument in instruments.after:
                    instrument(model, step)
            if len(result.log.hits) == before:
                result.settled = True
                break
        result.scopes = scopes or _scopes(model, result.log, target)
        return result


@dataclass
class PipelineResult:
    """The rewritten model, with the log that `modified` is counted from."""

    model: ir.Model
    log: RewriteLog
    steps: list[Step] = field(default_factory=list)
    settled: bool = False
    scopes: list[Scope] = field(default_factory=list)
    """The rewritten graphs, main graph first, with shapes and log: for what comes after."""

    @property
    def modified(self) -> bool:
        """Whether anything was rewritten."""
        return bool(self.log.hits)


def _groups(passes: Sequence[Pass]) -> Iterator[tuple[Pass, ...]]:
    """Yield neighbouring node passes together and every graph pass alone."""
    for is_node_pass, run in groupby(passes, key=lambda one: isinstance(one, NodePass)):
        if is_node_pass:
            yield tuple(run)
        else:
            yield from ((one,) for one in run)


def _run_group(
    group: tuple[Pass, ...],
    model: ir.Model,
    scopes: list[Scope],
    log: RewriteLog,
    target: Target,
) -> list[Scope]:
    """Run one group; return the scopes that are still true, none if shapes must be inferred."""
    first = group[0]
    if isinstance(first, ModelPass):
        hits = len(log.hits)
        first.run(model, log)
        return scopes if len(log.hits) == hits else []
    if not scopes:
        scopes = _scopes(model, log, target)
    for scope in scopes:
        if isinstance(first, GraphPass):
            first.run(scope)
        else:
            sweep(scope, [one for one in group if isinstance(one, NodePass)])
    return scopes


def _scopes(model: ir.Model, log: RewriteLog, target: Target) -> list[Scope]:
    shapes = Shapes.infer(model)
    return [Scope(model, root, shapes, log, target) for root in roots(model)]
