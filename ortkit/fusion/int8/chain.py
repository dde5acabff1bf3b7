"""What follows an int8 product or convolution and may be part of its region.

The chain goes on while one node alone reads a value. `steps.py` says how, and where it may end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import onnx_ir as ir

from ortkit.fusion.int8.body import BodyBuilder, Constants
from ortkit.fusion.int8.grids import Grid
from ortkit.fusion.int8.product_body import ProductWriter
from ortkit.fusion.int8.products import IntegerProduct
from ortkit.fusion.int8.rounding import find_rounding
from ortkit.fusion.int8.weights import Weights
from ortkit.fusion.regions.access import only_reader
from ortkit.fusion.regions.describe import tensor_spec
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.sizes import equal_sizes
from ortkit.graph.symbolic.dims import Size
from ortkit.kernels.signature import RegionSignature, TensorSpec, signature_of
from ortkit.rewrite.scope import Scope

KIND = "int8_product"


@dataclass(frozen=True)
class SecondResult:
    """A value in float32 that is read beside the bytes that it becomes.

    Args:
        name: In the body.
        value: In the graph.
    """

    name: str
    value: ir.Value


@dataclass(frozen=True)
class End:
    """Where a chain may end.

    Args:
        nodes: The graph's that it computes.
        body_size: How many nodes of the body compute them.
        name: Of the result in the body.
        value: The result.
        second: None if there is one result.
    """

    nodes: tuple[ir.Node, ...]
    body_size: int
    name: str
    value: ir.Value
    second: SecondResult | None = None


@dataclass
class Chain:
    """A product and nodes behind it, with the body of their region.

    Args:
        scope: The graph's.
        product: What it begins with.
        excluded: Nodes of other regions.
        constants: Those that several regions may share.
        kind: Of the region.
    """

    scope: Scope
    product: IntegerProduct
    excluded: Collection[ir.Node]
    constants: Constants
    kind: str = KIND
    ends: list[End] = field(default_factory=list)
    second: SecondResult | None = None
    is_complete: bool = False
    """Whether nothing may follow."""

    def __post_init__(self) -> None:
        """Write the product, with what rounds it if that is one operation."""
        product = self.product
        self.body = BodyBuilder(product.end.name or "", self.constants)
        self.nodes, self.value = list(product.nodes), product.end
        found = find_rounding(self, product.end) if product.is_merged else None
        rounding = None if found is None else found.grid
        written = ProductWriter(self.scope, product, self.body).write(rounding)
        self.name, self.grid = written.name, product.grid
        if written.is_rounded and found is not None:
            self.go_on(found.nodes, written.name, found.grid)
        else:
            self._end()

    # ---- where it is
    @property
    def matrix(self) -> Weights:
        """The product's constant factor."""
        return self.product.matrix

    @property
    def columns(self) -> int:
        """Numbers of a row of the result."""
        return self.matrix.columns

    def reader(self, value: ir.Value) -> ir.Node | None:
        """Return the only reader of a value, if a region may take it in."""
        node = only_reader(value)
        return node if node is not None and self.is_free(node) else None

    def is_free(self, node: ir.Node) -> bool:
        """Say whether a region may take in a node."""
        return node not in self.excluded and node.graph is self.product.nodes[0].graph

    def keeps_shape(self, node: ir.Node) -> bool:
        """Say whether a result has the sizes of the value that the chain has come to."""
        shape = self.scope.shapes.shape(node.outputs[0])
        return shape is not None and shape == self.scope.shapes.shape(self.value)

    # ---- how it goes on
    def go_on(self, nodes: Sequence[ir.Node], name: str, grid: Grid | None) -> None:
        """Take in nodes, behind which the chain may end.

        Args:
            nodes: They end with the one whose result the chain comes to.
            name: Of that result in the body.
            grid: What its numbers stand for; None if they are float32.
        """
        self.pass_by(nodes, name, grid)
        self._end()

    def pass_by(self, nodes: Sequence[ir.Node], name: str, grid: Grid | None) -> None:
        """Take in nodes, behind which the chain does not end; see `go_on`."""
        self.nodes += nodes
        self.value, self.name, self.grid = nodes[-1].outputs[0], name, grid

    def go_back(self, grid: Grid | None) -> None:
        """Return to where the chain may end last, and to the grid that it had there."""
        end = self.ends[-1]
        self.nodes, self.value, self.name, self.grid = [*end.nodes], end.value, end.name, grid
        del self.body.writer.nodes[end.body_size :]

    def _end(self) -> None:
        size = len(self.body.writer.nodes)
        self.ends.append(End(tuple(self.nodes), size, self.name, self.value, self.second))

    # ---- what it is then
    def region(self, end: End) -> tuple[FusedRegion, RegionSignature]:
        """Return the region that ends somewhere, and its signature."""
        nodes = self.body.writer.nodes[: end.body_size]
        read = {name for node in nodes for name in node.input}
        inputs = {name: value for name, value in self.body.inputs.items() if name in read}
        results = {end.name: end.value}
        if end.second is not None:
            results[end.second.name] = end.second.value
        equal = equal_sizes(self.scope, end.nodes)
        specs, made = (
            {name: self._spec(value, equal) for name, value in values.items()}
            for values in (inputs, results)
        )
        signature = signature_of(self.kind, nodes, self.scope.opset(), specs, made)
        region = FusedRegion(self.kind, end.nodes, (*inputs.values(),), (*results.values(),))
        return region, signature

    def _spec(self, value: ir.Value, equal: Mapping[Size, Size]) -> TensorSpec:
        """Return what a signature says of a value; constants lie as they do everywhere."""
        spec = tensor_spec(self.scope, value, equal)
        if value.const_value is not None:
            return spec
        sizes = self.matrix.lie(spec.shape, is_x=value is self.product.source)
        return replace(spec, shape=tuple(s for s in sizes if isinstance(s, int | str)))


#: Takes in what follows a chain; says whether it could.
Step: TypeAlias = Callable[[Chain], bool]
