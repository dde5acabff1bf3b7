"""Where the tokens of a batch are in the values of a graph: axes of samples and of positions.

Each rule of `ortkit.graph.batch` says what becomes of one axis whose rows are independent. It is
asked twice, for samples and for positions. A node that keeps both apart computes each token from
the same token of its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ortkit.graph.batch.place import Mixed, Rows
from ortkit.graph.batch.site import Site, UnknownShapeError
from ortkit.graph.batch.table import rule_of
from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.scope import Scope


@dataclass(frozen=True)
class Tokens:
    """The axes of a value that count samples and positions."""

    samples: Rows
    positions: Rows

    @property
    def are_separate(self) -> bool:
        """Whether samples and positions have an axis each, and nothing else is on these."""
        is_plain = self.samples.is_plain and self.positions.is_plain
        return is_plain and self.samples.axis != self.positions.axis

    @property
    def are_merged(self) -> bool:
        """Whether one axis counts all tokens, samples first."""
        first, second = self.samples, self.positions
        same = first.axis == second.axis
        return same and first.outer == second.inner == 1 and first.inner != 1


#: [samples, positions, ...]
FIRST = Tokens(Rows(0), Rows(1))


@dataclass
class RowSite(Site):
    """A node that is asked about one axis; other inputs may hold a number for each row."""

    shared: list[tuple[int, int]] = field(default_factory=list)
    """Inputs without tokens that are not repeated along the axis, and which axis of theirs."""
    is_target: bool = False
    """Whether an input says the shape of the output."""

    def takes_rows(self, index: int, axis: int, rows: Rows) -> bool:  # noqa: ARG002
        """Note an input with a number for each row: rows stay independent."""
        self.shared.append((index, axis))
        return True

    def set_target(self, index: int, rows: Rows, other: int) -> bool:  # noqa: ARG002
        """Note that the shape of the output is an input."""
        self.is_target = True
        return True


@dataclass(frozen=True)
class Step:
    """A node that computes each token from the same token of its inputs."""

    node: ir.Node
    inputs: Mapping[int, Tokens]
    """By index, inputs that hold tokens."""
    outputs: tuple[Tokens, ...]
    by_sample: tuple[tuple[int, int], ...]
    """Other inputs that differ by sample, and along which of their axes."""
    by_position: tuple[tuple[int, int], ...]
    """Other inputs that differ by position, and along which of their axes."""
    is_target: bool
    """Whether input 1 is the shape of the output."""


@dataclass(frozen=True)
class Grid:
    """How many samples and positions there are."""

    samples: Size
    positions: Size

    @property
    def sizes(self) -> tuple[Size, Size]:
        """Samples and positions."""
        return self.samples, self.positions


def step_of(
    scope: Scope, node: ir.Node, known: Mapping[ir.Value, Tokens], grid: Grid
) -> Step | None:
    """Return what a node does to tokens, None if it may mix them or reads none."""
    inputs = {
        index: known[value]
        for index, value in enumerate(node.inputs)
        if value is not None and value in known
    }
    rule = rule_of(node.domain, node.op_type)
    if not inputs or rule is None or any(a.type in _GRAPHS for a in node.attributes.values()):
        return None
    sites = []
    found: list[tuple[Rows, ...]] = []
    for is_position, size in enumerate(grid.sizes):
        states = [
            None if (one := inputs.get(index)) is None
            else (one.positions if is_position else one.samples)
            for index in range(len(node.inputs))
        ]  # fmt: skip
        site = RowSite(node, scope.shapes, states, scope.opset(node.domain), size, 1)
        try:
            rows = rule(site)
        except UnknownShapeError:
            return None
        if isinstance(rows, Mixed):
            return None
        found.append(rows if isinstance(rows, tuple) else (rows,) * len(node.outputs))
        sites.append(site)
    outputs = tuple(Tokens(*pair) for pair in zip(*found, strict=True))
    for value, tokens in zip(node.outputs, outputs, strict=False):
        is_read = bool(value.uses()) or value.is_graph_output()
        if is_read and not _fits(scope.shapes.shape(value), tokens, grid):
            return None
    first, second = sites
    return Step(
        node, inputs, outputs, tuple(first.shared), tuple(second.shared),
        first.is_target or second.is_target,
    )  # fmt: skip


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _fits(shape: tuple[Size, ...] | None, tokens: Tokens, grid: Grid) -> bool:
    """Say whether a value has as many samples and positions as its tokens say."""
    if shape is None:
        return False
    pairs = ((tokens.samples, grid.samples), (tokens.positions, grid.positions))
    return all(rows.axis < len(shape) and shape[rows.axis] == rows.size(n) for rows, n in pairs)
