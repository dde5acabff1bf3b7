"""The first node that differs between two sessions of one model: each as its ONNX Runtime
optimizes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ortkit.comparison.node_result import ValueRow
from ortkit.comparison.nodes import compare_nodes
from ortkit.comparison.optimized_graph import optimized_side
from ortkit.comparison.sides import NodeSide
from ortkit.errors import OrtkitError
from ortkit.runtime.opening import SessionPlan
from ortkit.temporary import TemporaryFolder
from ortkit.verify.inputs.feeds import Feeds


@dataclass(frozen=True)
class FirstNode:
    """Where two sessions part, as `compare --nodes` finds it."""

    value: str
    """The first value that is not the same; empty if none was found."""
    before: tuple[str, ...] = ()
    """The nodes that make it in the first session, the last one first."""
    after: tuple[str, ...] = ()
    """... and in the second."""
    ops: tuple[str, str] = ("", "")
    """The operators that make it."""
    reason: str = ""
    """How it differs, or why nothing was found."""

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return asdict(self)


def first_node(
    plans: tuple[SessionPlan, SessionPlan],
    names: tuple[str, str],
    feeds: Feeds,
    timeout_seconds: float = 600.0,
) -> FirstNode:
    """Compare the graphs that two sessions run, value by value.

    Args:
        plans: The sessions: of one model, with different ONNX Runtimes or optimizers.
        names: What reports call them.
        feeds: Inputs.
        timeout_seconds: Most seconds of one run.
    """
    try:
        with TemporaryFolder("first") as folder:
            before, after = (
                _optimized(plan, name, folder / str(number))
                for number, (plan, name) in enumerate(zip(plans, names, strict=True))
            )
            found = compare_nodes(before, after, feeds, timeout_seconds=timeout_seconds)
    except OrtkitError as error:
        return FirstNode("", reason=str(error))
    row = found.suspect if found.first is None else found.first.row
    if row is None:
        return FirstNode("", reason="value by value both compute the same within the tolerance")
    reason = row.reason or "no value diverges; this one has the largest error of its own"
    return _of(row, reason)


def _optimized(plan: SessionPlan, name: str, folder: Path) -> NodeSide:
    """Return a session's graph as its ONNX Runtime optimizes it."""
    level = plan.settings.optimizations
    return optimized_side(_side(plan, name), level, folder, plan.disabled_optimizers)


def _side(plan: SessionPlan, name: str) -> NodeSide:
    # Where kernels are loaded, their library is the first.
    kernels = plan.libraries[0] if plan.libraries and not plan.runs_bodies else None
    return NodeSide(
        plan.model,
        tuple(provider for provider, _ in plan.providers),
        kernels,
        plan.libraries if kernels is None else plan.libraries[1:],
        name,
        plan.onnxruntime,
    )


def _of(row: ValueRow, reason: str) -> FirstNode:
    ops = row.op_before, row.op_after
    return FirstNode(row.value, row.before[::-1], row.after[::-1], ops, reason)
