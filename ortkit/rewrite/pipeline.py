"""Passes in order, repeated until nothing changes; prints as the text that parses back."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import roots
from ortkit.rewrite.failures import blamed
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import GraphPass, ModelPass, NodePass, Pass
from ortkit.rewrite.scope import Scope, Whole
from ortkit.rewrite.site import describe
from ortkit.rewrite.sweep import sweep


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


#: Times that a settled model is looked at, its sizes derived again.
MOST_LOOKS = 3


@dataclass(frozen=True)
class Pipeline:
    """Passes in order, repeated until a whole round changes nothing or `max_rounds` is reached.

    Where unknown sizes were found out on the way, the result is looked at again.
    """

    passes: tuple[Pass, ...]
    max_rounds: int = 6

    @property
    def text(self) -> str:
        """The form that `parse_pipeline` reads back."""
        return ",".join(pass_.text for pass_ in self.passes)

    def without(self, names: Container[str]) -> Pipeline:
        """Return this pipeline with the passes of these names left out."""
        return replace(
            self, passes=tuple(pass_ for pass_ in self.passes if pass_.name not in names)
        )

    def run(
        self,
        model: ir.Model,
        options: RewriteOptions,
        *,
        denied: frozenset[str] = frozenset(),
        fuel: int | None = None,
        instruments: Instruments = Instruments(),
        after: PipelineResult | None = None,
    ) -> PipelineResult:
        """Rewrite `model` in place.

        Args:
            model: The caller's private copy.
            options: What to be fast on, and how far to go.
            denied: Ids of rewrites that must not happen.
            fuel: Stop rewriting after that many rewrites; None: no end.
            instruments: What to do after each group of passes.
            after: Of another pipeline on this model, whose log and steps are gone on with.

        Raises:
            PassError: A pass raised, or undoes the work of others. The model must be dropped: it
                may hold half of an edit. `without` gives the pipeline to try next.
        """
        result = after or PipelineResult(model, RewriteLog(denied, fuel))
        with _without_old_garbage():
            self._rewrite(result, options, instruments)
        return result

    def _rewrite(
        self, result: PipelineResult, options: RewriteOptions, instruments: Instruments
    ) -> None:
        model, log = result.model, result.log
        # Watched one by one, passes cannot share a worklist.
        groups = list(_groups(self.passes, shared=not instruments.after))
        settled_at: list[int | None] = [None] * len(groups)
        inferred_at, last_round, round_number = 0, self.max_rounds, 0
        while round_number < last_round:
            round_number += 1
            for index, group in enumerate(groups):
                hits = len(log.hits)
                if settled_at[index] == hits:
                    continue  # nothing changed since this group last found nothing to do
                step = _run_group(group, result, options, round_number)
                # A sweep ends at its own fixed point; a graph pass says so by finding nothing.
                is_fixed = step.rewrites == 0 or isinstance(group[0], NodePass)
                settled_at[index] = len(log.hits) if is_fixed else None
                result.steps.append(step)
                for instrument in instruments.after:
                    instrument(model, step)
            result.settled = all(at == len(log.hits) for at in settled_at)
            if not result.settled:
                continue
            has_reported_any = any(scope.shapes.has_reported for scope in result.scopes)
            if len(log.hits) == inferred_at or not has_reported_any:
                break
            # What was derived before it was known may be plain when it is derived again.
            inferred_at = len(log.hits)
            last_round = min(round_number + self.max_rounds, MOST_LOOKS * self.max_rounds)
            result.scopes = []
            settled_at = [None] * len(groups)
        result.scopes = result.scopes or _scopes(model, log, options)
        log.forget_gone({describe(node) for scope in result.scopes for node in scope.nodes()})


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


@contextmanager
def _without_old_garbage() -> Iterator[None]:
    """Keep the garbage collector off everything that is there already.

    One collection over all that onnx and the caller's program have made takes up to half a
    second, several times what recognition takes, and finds nothing.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _groups(passes: Sequence[Pass], *, shared: bool) -> Iterator[tuple[Pass, ...]]:
    """Yield neighbouring node passes together, if they may share a worklist, others alone."""
    for is_node_pass, run in groupby(passes, key=lambda one: isinstance(one, NodePass)):
        if is_node_pass and shared:
            yield tuple(run)
        else:
            yield from ((item,) for item in run)


def _run_group(
    group: tuple[Pass, ...], result: PipelineResult, options: RewriteOptions, round_number: int
) -> Step:
    """Run one group; `result.scopes` is empty afterwards if shapes must be inferred again."""
    started, log, first = time.perf_counter(), result.log, group[0]
    hits = len(log.hits)
    if isinstance(first, ModelPass):
        with blamed(first.name):
            first.run(result.model, log)
        if len(log.hits) > hits:
            result.scopes = []
    else:
        result.scopes = result.scopes or _scopes(result.model, log, options)
        for scope in result.scopes:
            if isinstance(first, GraphPass):
                with blamed(first.name):
                    first.run(scope)
            else:
                sweep(scope, [one for one in group if isinstance(one, NodePass)])
    return Step(
        tuple(item.name for item in group),
        round_number,
        len(log.hits) - hits,
        len(result.model.graph),
        time.perf_counter() - started,
    )


def _scopes(model: ir.Model, log: RewriteLog, options: RewriteOptions) -> list[Scope]:
    shapes, whole = Shapes.infer(model), Whole.of(model)
    return [Scope(model, root, shapes, log, options, whole) for root in roots(model)]
