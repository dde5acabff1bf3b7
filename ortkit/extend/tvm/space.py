"""The search that meta-schedule does: its design spaces and mutators, in this process.

Its own tuner measures in processes that it starts, and copies functions as JSON, at which TVM's
interface of 0.1.15 crashes. Here only its rules are used; who asks for schedules measures them.
Source: tvm.s_tir.meta_schedule of apache-tvm 0.27.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.extend.tvm.traces import (
    Expr,
    TracedSchedule,
    module_of,
    plain,
    read_traced,
    schedule_of,
)

#: Of schedules that are proposed at once one in this many is drawn at random, once others are
#: known.
_ANEW_EVERY = 3
#: This many of the fastest are changed, and a schedule at most so often at once.
_PARENTS = 8
_MOST_CHANGES = 3
#: Draws without anything new before a space is taken for exhausted.
_MOST_DRAWS = 200
_INTRINSICS = "tvm.s_tir.tensor_intrin"


@dataclass
class TraceSearch:
    """The schedules of one function, in the order in which they should be tried.

    Args:
        function: Over buffers whose sizes are known.
        sizes: See `TracedSchedule`.
        target: As `tvm.target.Target` takes it.
    """

    function: Expr
    sizes: Mapping[str, int]
    target: Mapping[str, Any]
    _seen: set[int] = field(default_factory=set)
    """Of functions that were proposed: two traces may lead to one."""
    _traces: dict[str, Any] = field(default_factory=dict)
    """By text: proposed, or tried before."""

    def next(self, tried: Mapping[str, float | None], count: int) -> list[str]:
        """Return up to `count` schedules that were not tried yet, as texts.

        Args:
            tried: By text how many times as fast as the default a kernel is, None if it failed.
                Texts that are no schedules for these sizes say nothing.
            count: How many are wanted.

        Raises what TVM does if it has no design space for such a function.
        """
        random = np.random.default_rng(len(tried))
        for text in tried:
            self._remember(text)
        ranked = sorted(
            (-ratio, text) for text, ratio in tried.items() if ratio and text in self._traces
        )
        parents = [text for _, text in ranked[:_PARENTS]]
        found: list[str] = []
        for _ in range(_MOST_DRAWS):
            if len(found) == count:
                break
            is_new = not parents or len(found) % _ANEW_EVERY == 0
            trace = self._drawn(random) if is_new else self._changed(parents, random)
            new = self._scheduled(trace, random)
            found += [] if new is None else [new]
        return found

    def _remember(self, text: str) -> None:
        """Take up what was tried by another run."""
        if text in self._traces or (read := read_traced(text)) is None or read.sizes != self.sizes:
            return
        from tvm.s_tir.schedule import Trace
        from tvm_ffi import structural_hash

        made = schedule_of(self._module)
        with suppress(Exception):  # TVM's own classes: a trace of another version's
            Trace.apply_json_to_schedule(read.trace, made)
            self._seen.add(structural_hash(made.mod))
            self._traces[text] = made.trace

    def _drawn(self, random: np.random.Generator) -> Expr:
        """Return the steps of a design space without their decisions."""
        from tvm.s_tir.schedule import Trace

        space = self._spaces[int(random.integers(len(self._spaces)))]
        return Trace(space.insts, {})

    def _changed(self, parents: list[str], random: np.random.Generator) -> Expr:
        """Return one of the fastest, the first ones most often, with other decisions."""
        index = int(len(parents) * float(random.random()) ** 2)
        trace = self._traces[parents[index]]
        for _ in range(int(random.integers(1, _MOST_CHANGES + 1))):
            trace = self._with_other_decision(trace, random)
        return trace

    def _with_other_decision(self, trace: Expr, random: np.random.Generator) -> Expr:
        """Move a factor between two loops, or draw any decision again."""
        from tvm.s_tir.schedule import Trace

        if random.random() < 0.5 and (moved := self._mutator.apply(trace)) is not None:
            return moved
        decisions = dict(trace.decisions.items())
        if decisions:
            del decisions[list(decisions)[int(random.integers(len(decisions)))]]
        return Trace(trace.insts, decisions)

    def _scheduled(self, trace: Expr, random: np.random.Generator) -> str | None:
        """Return the text of what a trace leads to; None where that cannot be, or is known."""
        from tvm_ffi import structural_hash

        made = schedule_of(self._module, seed=int(random.integers(1, 1 << 30)))
        try:
            trace.apply_to_schedule(made, remove_postproc=True)
            made.enter_postproc()
            if not all(item.apply(made) for item in self._finishing):
                return None
        except Exception:  # noqa: BLE001  TVM's own classes
            return None
        digest = structural_hash(made.mod)
        text = str(TracedSchedule(self.sizes, plain(made.trace.as_json())))
        if digest in self._seen or text in self._traces:
            return None
        self._seen.add(digest)
        self._traces[text] = made.trace
        return text

    # ---- meta-schedule's parts
    @cached_property
    def _module(self) -> Expr:
        return module_of(self.function)

    @cached_property
    def _finishing(self) -> list[Expr]:
        """What carries out the annotations that rules leave."""
        from tvm.s_tir.meta_schedule import postproc

        return [
            postproc.DisallowDynamicLoop(), postproc.RewriteParallelVectorizeUnroll(),
            postproc.RewriteReductionBlock(),
        ]  # fmt: skip

    @cached_property
    def _mutator(self) -> Expr:
        from tvm.s_tir.meta_schedule import mutator

        return mutator.MutateTileSize()

    @cached_property
    def _spaces(self) -> list[Expr]:
        """Traces that lead to all schedules, by their decisions."""
        import tvm
        from tvm.s_tir import meta_schedule
        from tvm.s_tir.meta_schedule import schedule_rule as rules

        applied = [
            rules.InlineConstantScalars(),
            rules.AutoInline(
                into_producer=False, into_consumer=True, inline_const_tensor=True,
                disallow_if_then_else=True, require_injective=True, require_ordered=True,
                disallow_op=["tirx.exp"],
            ),
            rules.AddRFactor(max_jobs_per_core=16, max_innermost_factor=64),
            rules.MultiLevelTiling(
                structure="SSRSRS", max_innermost_factor=64,
                reuse_write=rules.ReuseType(req="may", levels=[1, 2], scope="global"),
            ),
            # A kernel is serial: who calls it has the threads.
            rules.ParallelizeVectorizeUnroll(
                max_jobs_per_core=-1, max_vectorize_extent=64,
                unroll_max_steps=[0, 16, 64, 512], unroll_explicit=True,
            ),
            rules.RandomComputeLocation(),
        ]  # fmt: skip
        generator = meta_schedule.space_generator.PostOrderApply(
            sch_rules=applied, postprocs=self._finishing, mutator_probs={self._mutator: 1.0}
        )
        with _without_intrinsics():
            context = meta_schedule.TuneContext(
                self._module, target=tvm.target.Target(dict(self.target)),
                space_generator=generator, num_threads=1, rand_state=1,
            )  # fmt: skip
        return [item.trace for item in context.generate_design_space()]


@contextmanager
def _without_intrinsics() -> Iterator[None]:
    """Let `TuneContext` find its tensor intrinsics loaded.

    It imports them to register them. Their scripts take 20 s to read, nearly all are GPUs', and no
    rule above asks for one.
    """
    is_absent = _INTRINSICS not in sys.modules
    if is_absent:
        sys.modules[_INTRINSICS] = ModuleType(_INTRINSICS)
    try:
        yield
    finally:
        if is_absent:
            del sys.modules[_INTRINSICS]
