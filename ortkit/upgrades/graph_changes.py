"""What the graphs of two sessions differ by, in counts of operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ortkit.comparison.optimized_graph import optimized_side
from ortkit.comparison.sides import NodeSide
from ortkit.errors import OrtkitError
from ortkit.graph.analysis.diff import operator
from ortkit.graph.io.open import open_model
from ortkit.graph.walk import nodes_below
from ortkit.refusal import Refused
from ortkit.runtime.opening import SessionPlan
from ortkit.temporary import TemporaryFolder


def graph_changes(before: SessionPlan, after: SessionPlan) -> tuple[str, ...] | Refused:
    """Return how often operators are in the graphs that two sessions run: `Add 12 -> 0`.

    It is refused if ONNX Runtime does not write one of the graphs.
    """
    try:
        with TemporaryFolder("changes") as folder:
            first, second = (
                _counted(plan, folder / str(number)) for number, plan in enumerate((before, after))
            )
    except OrtkitError as error:
        return Refused(f"the graphs cannot be compared: {error}")
    names = sorted({*first, *second})
    return tuple(
        f"{name} {first[name]} -> {second[name]}" for name in names if first[name] != second[name]
    )


def _counted(plan: SessionPlan, folder: Path) -> Counter[str]:
    side = NodeSide(
        plan.model,
        tuple(name for name, _ in plan.providers),
        custom_ops=plan.libraries,
        onnxruntime=plan.onnxruntime,
    )
    level = plan.settings.optimizations
    written = optimized_side(side, level, folder, plan.disabled_optimizers)
    return Counter(operator(node) for node in nodes_below(open_model(written.model).graph))
