"""Stage 3: the steps of a lowered model, which round weights or activations to few bits.

What rounding weights costs is known of each step, so an error beyond that is found although the
user accepts a larger one. What rounding activations costs is held to the accepted error alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.graph.walk import nodes_below, subgraphs
from ortkit.verify.accuracy import measure
from ortkit.verify.compare import OutputComparison
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.lowered.quantization_error import excess
from ortkit.verify.lowered.unrounded_ops import FLOAT8, unround
from ortkit.verify.perturbed.perturbation import RUNS, perturb
from ortkit.verify.perturbed.runs import read_runs
from ortkit.verify.steps import captured, prune
from ortkit.verify.tolerances import TOLERANCES

_FLOAT, _EPSILON = ir.DataType.FLOAT, TOLERANCES["float32"].epsilon
_MICROSOFT = "com.microsoft"
_ROUNDS = frozenset(
    {"ConvInteger", "DequantizeLinear", "GatherBlockQuantized", "MatMulBnb4", "MatMulInteger",
     "MatMulIntegerToFloat", "MatMulNBits", "QuantizeLinear", "Round"}
)  # fmt: skip
_ROUNDING_STARTS = ("DynamicQuantize", "QAttention", "QEmbed", "QGemm", "QLinear", "QMoE")
#: Operators whose ranges were calibrated.
_CALIBRATED_STARTS = ("QGemm", "QLinear", "QuantizeLinear")
_SMALL = FLOAT8 | {"INT4", "UINT4", "INT8", "UINT8"}
#: Folders of results: without rounded activations, with open ends of ranges too, and of runs of
#: that with moved weights.
_EXACT, _OPEN, _MOVED = "exact", "open", "moved"


@dataclass(frozen=True)
class LoweredSteps:
    """Steps of a candidate that round where the original does not, by their results."""

    floats: frozenset[str] = frozenset()
    """Results in float32."""
    others: frozenset[str] = frozenset()
    """Results in other types."""
    explained: frozenset[str] = frozenset()
    """The results in float32 whose errors `models` explain."""
    models: Mapping[str, ir.Model] = field(default_factory=dict)
    """By the folder of their results."""

    @property
    def runs(self) -> list[tuple[str, ir.Model, int]]:
        """The models, each with the folder of its results and how often it is to be run."""
        return [
            (name, model, RUNS if name == _MOVED else 1) for name, model in self.models.items()
        ]

    def without_models(self) -> LoweredSteps:
        """Return this where the models do not run."""
        return replace(self, explained=frozenset(), models={})

    def off(self, folder: Path, feeds: str, stated: float) -> dict[str, OutputComparison]:
        """Return the floats that are off by more than is accepted, or more than is explained.

        Args:
            folder: Holds the results: `expected`, `actual`, and those of `models`.
            feeds: The name of the input set.
            stated: The error that the user accepts.
        """
        if not self.floats:
            return {}
        expected, actual = (read_values(folder / each / feeds) for each in ("expected", "actual"))
        exact, opened = (
            read_values(folder / each / feeds) if each in self.models else {}
            for each in (_EXACT, _OPEN)
        )
        runs = read_runs(folder / _MOVED, feeds)
        found = {}
        for name in sorted(self.floats):
            reason = _over(name, expected[name], actual[name], stated)
            if not reason and name in self.explained:
                moved = [run[name] for run in runs]
                reason = _unexplained(expected[name], exact[name], moved, opened.get(name))
            if reason:
                found[name] = OutputComparison(
                    name, "float32", np.inf, stated / _EPSILON, (), False, reason=reason
                )
        return found


NOT_LOWERED = LoweredSteps()


def lowered_steps(
    candidate: ir.Model, original: ir.Model, halves: Mapping[str, ir.DataType]
) -> LoweredSteps:
    """Find the steps of a candidate that are lowered, and build the models that explain them.

    Args:
        candidate: As steps; not changed.
        original: As the same steps; not changed.
        halves: The candidate's weights that were rounded to half precision; see `half_weights`.
    """
    rounded = _leading_to(candidate, lambda node: _rounds(node) or _reads(node, halves))
    own = _leading_to(original, _rounds)
    floats = {value.name for value in candidate.graph.outputs if value.dtype == _FLOAT}
    found = LoweredSteps(rounded & floats, rounded - floats)
    if not found.floats:
        return found
    exact = _unrounded(candidate, halves)
    explained = found.floats - own - _leading_to(exact, _still_rounds)
    if not explained:
        return found
    noisy = _unrounded(candidate, halves, is_noisy=True, saturates=False)
    models = {_EXACT: exact, _MOVED: noisy}
    perturb(noisy, lambda value: _EPSILON if value.is_graph_input() else 0.0)
    if any(each.op_type.startswith(_CALIBRATED_STARTS) for each in nodes_below(candidate.graph)):
        models[_OPEN] = _unrounded(candidate, halves, saturates=False)
    return replace(found, explained=explained, models=models)


def _over(name: str, expected: Value, actual: Value, stated: float) -> str:
    """Say by how much a value is off, if that is more than the user accepts."""
    found = measure(name, expected, actual)
    if found is None or found.error <= stated:
        return ""
    return f"off by {found.error:.3g}, {stated:g} is allowed"


def _unexplained(expected: Value, exact: Value, moved: list[Value], opened: Value | None) -> str:
    """Say how much of an error rounded weights do not explain, if it is too much."""
    assert isinstance(expected, np.ndarray) and isinstance(exact, np.ndarray)
    assert not isinstance(opened, list)
    runs = [run for run in moved if isinstance(run, np.ndarray)]
    worst = excess(expected, exact, runs, opened)
    if worst.ratio <= 1.0:
        return ""
    where = f": {worst.location}" if worst.location else ""
    return f"off by {worst.ratio:.3g} times what rounding its weights may cost{where}"


def _unrounded(
    model: ir.Model,
    halves: Mapping[str, ir.DataType],
    *,
    is_noisy: bool = False,
    saturates: bool = True,
) -> ir.Model:
    copy = model.clone()
    unround(copy, halves, is_noisy=is_noisy, saturates=saturates)
    prune(copy)
    return copy


def _rounds(node: ir.Node) -> bool:
    """Say whether a node rounds to few bits, or reads numbers of few bits."""
    if node.domain not in ("", _MICROSOFT):
        return False
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int()).name in _SMALL
    return node.op_type in _ROUNDS or node.op_type.startswith(_ROUNDING_STARTS)


def _still_rounds(node: ir.Node) -> bool:
    """Say whether a node rounds in a copy that is to round nothing."""
    if node.op_type == "DynamicQuantizeLinear":  # its scale and zero point are read
        return bool(node.outputs[0].uses())
    return _rounds(node) and node.op_type != "DequantizeLinear"


def _reads(node: ir.Node, names: Mapping[str, ir.DataType]) -> bool:
    return any(value is not None and value.name in names for value in node.inputs)


def _leading_to(model: ir.Model, is_meant: Callable[[ir.Node], bool]) -> frozenset[str]:
    """Return the results of a model that some node leads to."""
    behind: set[ir.Value | None] = set()
    for node in model.graph:
        inside = [inner for body in subgraphs(node) for inner in nodes_below(body)]
        read = {*node.inputs, *captured(node)}
        if not read.isdisjoint(behind) or any(map(is_meant, (node, *inside))):
            behind.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in behind)
