"""Which of ONNX Runtime's own graph optimizers changes what a model computes, or slows it down.

The search has every optimizer of the level off and switches them on in the order in which they
run. Disabling a single one lets others match what it would have taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ortkit.comparison.batches import batch_axis
from ortkit.comparison.differences import Judge, says_nothing
from ortkit.comparison.feeding import candidates, first_that_runs
from ortkit.comparison.first_node import first_node
from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.refusal import Refused
from ortkit.runtime.installation import Installation
from ortkit.runtime.intervals import Speedup
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.settings import Optimizations, SessionSettings
from ortkit.runtime.workers.interleave import Schedule, run_interleaved
from ortkit.runtime.workers.planning import plan_session
from ortkit.temporary import TemporaryFolder
from ortkit.upgrades.graph_changes import graph_changes
from ortkit.upgrades.names import RULE_GROUP, words
from ortkit.upgrades.result import (
    Culprit,
    Optimizer,
    OptimizerReport,
    Tried,
    Verdict,
    Workaround,
)
from ortkit.upgrades.search import culprits, sufficient
from ortkit.upgrades.slow import SlowSearch
from ortkit.upgrades.trying import Trying
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.random_ops import random_outputs
from ortkit.verify.reference import Request, compute_reference

LEVELS: tuple[Optimizations, ...] = ("off", "basic", "extended", "all")
#: Partners of a culprit that are looked for; more of them say nothing any more.
_MAX_NEEDS = 4


def _silent(stage: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class BisectOptions:
    """How to search."""

    level: Optimizations = "all"
    """The level whose optimizers are searched."""
    target: str = "cpu"
    threads: int = 0
    onnxruntime: Installation | None = None
    """None: the installed one."""
    inputs: Path | None = None
    shapes: Mapping[str, int] = field(default_factory=dict)
    schedule: Schedule | None = field(default_factory=Schedule)
    """Runs of the search for what slows the model; None: it is left out."""
    trust: bool = False
    progress: Callable[[str], None] = _silent


def bisect_optimizers(model: Path, options: BisectOptions | None = None) -> OptimizerReport:
    """Find the optimizers that change a model's results; if none does, those that slow it.

    Args:
        model: Path of the model's file.
        options: What is searched, on which inputs, and for how many runs.

    Raises:
        ModelError: It is no valid model.
        RunError: It does not run without optimizations.
        UserError: The inputs or sizes do not fit, or no result can be compared.
        MissingDependencyError: ONNX Runtime, or a provider asked for, is not installed.
    """
    options = options or BisectOptions()
    started = time.perf_counter()
    if options.level == "off":
        raise UserError("has no optimizers", where="--optimizations", fix="basic, extended or all")
    with TemporaryFolder("bisect") as folder:
        found = _Bisection(model, options, folder).run()
    return found.taking(time.perf_counter() - started)


class _Bisection:
    """One model under one level."""

    def __init__(self, model: Path, options: BisectOptions, folder: Path) -> None:
        self.model = model
        self.options = options
        self.folder = folder
        self.notes: list[str] = []
        self.version = ""

    def run(self) -> OptimizerReport:
        options = self.options
        options.progress("look for inputs")
        plan = self._plan()
        off = replace(plan, settings=replace(plan.settings, optimizations="off"))
        opened = open_model(self.model)
        found = candidates(
            self.model, opened, options.inputs, options.shapes, None, batch_axis(opened)
        )
        timeout = (options.schedule or Schedule()).timeout_seconds
        self.feeds, self.version = first_that_runs(found, off, self.folder, timeout)
        random = random_outputs(opened)
        request = Request(
            opened, plan.model, seconds=2 * timeout, custom_ops=plan.libraries,
            given=(self.feeds,),
        )  # fmt: skip
        options.progress("judge the model without optimizations")
        judge = Judge.of(compute_reference(request, self.folder / "reference"), random)
        self.notes += judge.notes
        with Trying(off, self.folder / "feeds", self.folder, judge, {}, timeout) as trying:
            trying.expected = self._reference(trying)
            if says_nothing(trying.expected, random):
                raise UserError(
                    "every output is random, empty, NaN or infinite: nothing can be compared",
                    where=str(self.model),
                    fix="give other --inputs",
                )
            trying.plan = plan
            return self._searched(trying)

    def _plan(self) -> SessionPlan:
        options = self.options
        settings = SessionSettings(
            target=options.target, threads=options.threads, optimizations=options.level,
            trust=options.trust,
        )  # fmt: skip
        scratch = self.folder / "model"

        def made() -> Path:
            scratch.mkdir(exist_ok=True)
            return scratch

        plan = plan_session(self.model, settings, made, options.onnxruntime)
        self.notes += plan.notes
        return plan

    def _reference(self, trying: Trying) -> Mapping[str, Value]:
        """Return the outputs without optimizations."""
        results = self.folder / "expected"
        run_interleaved(
            [trying.plan], trying.feeds, Schedule(rounds=1, processes=1), results=[results]
        )
        return read_values(results)

    def _searched(self, trying: Trying) -> OptimizerReport:
        self.options.progress("try the levels")
        last = LEVELS.index(self.options.level)
        levels = [("off", Tried("reference", "", 0.0))]
        levels += [(level, trying.without((), level)) for level in LEVELS[1 : last + 1]]
        self.levels = tuple(levels)
        self.optimizers = self._optimizers(trying)
        wrong = trying.without(())
        if wrong.is_bad:
            return self._with_wrong_results(trying, wrong)
        return self._slow(trying)

    def _optimizers(self, trying: Trying) -> tuple[Optimizer, ...]:
        """Return what runs at the level, in order, also what runs only without others."""
        found: dict[str, tuple[str, bool]] = {}
        for level, _ in self.levels[1:]:
            for applied in trying.applied(level):
                first, _modified = found.get(applied.name, (level, False))
                found[applied.name] = first, applied.modified
        # What is still there with all of them off cannot be switched off.
        stays: set[str] = set()
        while True:
            left = {item.name for item in trying.applied("", [*found])}
            if left <= found.keys():
                stays = left
                break
            found |= dict.fromkeys(left - found.keys(), (self.options.level, False))
        if not found:
            self.notes.append("ONNX Runtime does not log its optimizers")
        return tuple(
            Optimizer(name, level, modified, name not in stays)
            for name, (level, modified) in found.items()
        )

    # ---- results ---------------------------------------------------------------------------

    def _with_wrong_results(self, trying: Trying, wrong: Tried) -> OptimizerReport:
        order = [optimizer.name for optimizer in self.optimizers if optimizer.can_be_disabled]
        self.options.progress(f"search {len(order)} optimizers")
        if trying.is_bad(order):
            reason = (
                f"{_what(wrong)}, also with all {len(order)} optimizers off that can be switched "
                "off: a kernel or an optimizer that cannot be is to blame"
            )
            return self._report(trying, "not found", reason, (), None)
        found = culprits(order, trying.is_bad)
        groups: dict[str, str] = {}
        for name in found:
            if name.endswith(RULE_GROUP):
                order, found, groups = self._rules(trying, name, order, found, groups)
        made = tuple(
            self._culprit(trying, name, groups.get(name, ""), found, order, wrong)
            for name in found
        )
        self.options.progress("confirm the session option")
        workaround = Workaround(found, trying.with_option(found), self._cost(trying, found))
        return self._report(trying, "guilty", _what(wrong), made, workaround)

    def _rules(
        self,
        trying: Trying,
        group: str,
        order: Sequence[str],
        found: tuple[str, ...],
        groups: Mapping[str, str],
    ) -> tuple[list[str], tuple[str, ...], dict[str, str]]:
        """Replace an optimizer that applies rules by those of its rules that are to blame.

        Returns:
            The names in order, the culprits, and the optimizer of each rule.
        """
        at = order.index(group)
        others = [name for name in found if name != group]
        rules = self._words(trying)
        if not rules or trying.is_bad([*others, *rules]):
            self.notes.append(f"no rule of {group} alone is to blame")
            return [*order], found, dict(groups)
        blamed = culprits(rules, trying.is_bad, others)
        named = [rule for rule in rules if rule not in order]
        return (
            [*order[:at], *named, *order[at + 1 :]],
            (*others, *blamed),
            {**groups, **dict.fromkeys(blamed, group)},
        )

    def _words(self, trying: Trying) -> tuple[str, ...]:
        from ortkit.upgrades.examine import examine

        known = self.options.onnxruntime or examine(trying.plan.onnxruntime)
        if isinstance(known, str) or known.library is None:
            return ()
        return words(known.library, [optimizer.name for optimizer in self.optimizers])

    def _culprit(
        self,
        trying: Trying,
        name: str,
        group: str,
        found: Sequence[str],
        order: Sequence[str],
        wrong: Tried,
    ) -> Culprit:
        """Return what one of the culprits does, with the others off."""
        self.options.progress(f"look at {name}")
        others = [item for item in found if item != name]
        tried = trying.without(others) if others else wrong
        needs = sufficient(order, name, trying.is_bad, others)[1:] if group else ()
        plans = trying.planned(found), trying.planned(others)
        first = first_node(plans, ("without", "with"), self.feeds, trying.timeout_seconds)
        return Culprit(
            name,
            group,
            self._level_of(group or name),
            "fails" if tried.outcome == "fails" else "different",
            tried.reason,
            trying.without([name]),
            needs[:_MAX_NEEDS],
            first,
            self._changes(name, plans),
        )

    def _changes(self, name: str, plans: tuple[SessionPlan, SessionPlan]) -> tuple[str, ...]:
        """Return what an optimizer does to the graph; a note says why if that is not known."""
        found = graph_changes(*plans)
        if not isinstance(found, Refused):
            return found
        self.notes.append(f"{name}: {found.reason}")
        return ()

    def _level_of(self, name: str) -> str:
        return next(
            (optimizer.level for optimizer in self.optimizers if optimizer.name == name), ""
        )

    def _cost(self, trying: Trying, found: Sequence[str]) -> Speedup | None:
        schedule = self.options.schedule
        if schedule is None or trying.without(()).outcome == "fails":
            return None
        self.options.progress("time the workaround")
        return SlowSearch(trying, schedule, self.options.progress).gain(found)

    # ---- time ------------------------------------------------------------------------------

    def _slow(self, trying: Trying) -> OptimizerReport:
        schedule = self.options.schedule
        worst = trying.without(()).max_error_eps or 0.0
        reason = f"outputs are those without optimizations, up to {worst:.3g} epsilons"
        if schedule is None:
            return self._report(trying, "sound", reason, (), None)
        search = SlowSearch(trying, schedule, self.options.progress)
        self.levels = search.timed_levels(self.levels)
        candidates = [optimizer.name for optimizer in self.optimizers if optimizer.can_be_disabled]
        fired = [
            optimizer.name
            for optimizer in self.optimizers
            if optimizer.can_be_disabled and optimizer.modified
        ]
        found, gains = search.slow(fired, candidates)
        self.notes += search.notes
        if not found:
            text = f"{reason}; none of {len(fired)} that changed the graph slows it"
            return self._report(trying, "sound", text, (), None)
        made = tuple(self._slow_culprit(trying, name, found, gains[name]) for name in found)
        workaround = Workaround(found, trying.with_option(found), search.gain(found))
        names = " and ".join(found)
        text = f"{reason}; the model is faster without {names}"
        return self._report(trying, "guilty", text, made, workaround)

    def _slow_culprit(
        self, trying: Trying, name: str, found: Sequence[str], gain: Speedup
    ) -> Culprit:
        others = [item for item in found if item != name]
        plans = trying.planned(found), trying.planned(others)
        return Culprit(
            name, "", self._level_of(name), "slower", "", trying.without([name]), (), None,
            self._changes(name, plans), gain,
        )  # fmt: skip

    def _report(
        self,
        trying: Trying,
        verdict: Verdict,
        reason: str,
        found: tuple[Culprit, ...],
        workaround: Workaround | None,
    ) -> OptimizerReport:
        folder = trying.plan.onnxruntime
        return OptimizerReport(
            str(self.model), self.version, "" if folder is None else str(folder),
            self.options.level, verdict, reason, self.levels, self.optimizers, found, workaround,
            trying.sessions, tuple(self.notes), 0.0,
        )  # fmt: skip


def _what(tried: Tried) -> str:
    return f"it fails: {tried.reason}" if tried.outcome == "fails" else tried.reason
