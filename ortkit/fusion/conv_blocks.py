"""Blocks of convolution nets that one kernel computes with channels innermost.

A block is a convolution with what is done to its result element by element, or the two small
convolutions of squeeze-and-excite. Blocks that feed each other stay in NHWC; see `conv_chains`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import onnx_ir as ir

from ortkit.fusion.conv_window import Window, window_of
from ortkit.kernels.backend import Refused
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe

PASS = "fuse-convolutions"
#: From more channels than this a first convolution is left to ONNX Runtime's blocked layout.
MOST_STEM_CHANNELS = 4
#: What may follow a convolution in its kernel; further operands are scalars or of its shape.
TAIL = frozenset(
    {
        "Add", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul",
        "Relu", "Selu", "Sigmoid", "Softplus", "Sub", "Swish", "Tanh",
    }
)  # fmt: skip
#: Longer tails are cut.
MOST_TAIL = 8

Kind = Literal[
    "pointwise_conv", "depthwise_conv", "expand_depthwise", "stem_conv", "squeeze_excite"
]


@dataclass(frozen=True)
class Block:
    """Nodes that become one.

    Args:
        kind: What its kernel is.
        convs: One convolution; two for squeeze-and-excite and for a 1x1 convolution with the
            depthwise one of its result.
        windows: Of each.
        nodes: All nodes, in order; of squeeze-and-excite with the pooling.
        source: What is convolved, or what squeeze-and-excite pools.
        gate: [N, C, 1, 1], what a 1x1 convolution's source is multiplied by.
        extras: Further operands of the result's shape.
        output: The result.
        pooled: Whether some squeeze-and-excite pools the result.
        parts: The blocks that it was made of, if it was made of blocks.
    """

    kind: Kind
    convs: tuple[ir.Node, ...]
    windows: tuple[Window, ...]
    nodes: tuple[ir.Node, ...]
    source: ir.Value
    gate: ir.Value | None
    extras: tuple[ir.Value, ...]
    output: ir.Value
    pooled: bool = False
    parts: tuple[Block, ...] = ()

    @property
    def operands(self) -> tuple[ir.Value, ...]:
        """What it reads of other blocks or of the graph."""
        gate = () if self.gate is None else (self.gate,)
        return (self.source, *gate, *self.extras)

    @property
    def last(self) -> ir.Node:
        """Where the fused node goes."""
        return self.nodes[-1]


def find_blocks(
    scope: Scope, graph: ir.Graph, refused: frozenset[ir.Node] = frozenset()
) -> list[Block]:
    """Return the blocks of one graph, in order; no two share a node.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        refused: Convolutions that are no part of a block.
    """
    finder = _Finder(scope, graph, refused)
    gates = [gate for node in graph if (gate := finder.squeeze_excite(node)) is not None]
    finder.gates = {gate.output: gate for gate in gates}
    finder.taken = {node for gate in gates for node in gate.nodes}
    blocks = [block for node in graph if (block := finder.convolution(node)) is not None]
    return _settled(blocks, gates, list(graph))


def _settled(blocks: list[Block], gates: list[Block], order: list[ir.Node]) -> list[Block]:
    """Keep the gates whose means a depthwise block makes and that 1x1 convolutions take in."""
    taken_in = {block.gate for block in blocks}
    depthwise = {block.output for block in blocks if block.kind == "depthwise_conv"}
    gates = [g for g in gates if g.output in taken_in and g.source in depthwise]
    outputs, pooled = {gate.output for gate in gates}, {gate.source for gate in gates}
    kept = [block for block in blocks if block.gate is None or block.gate in outputs]
    kept = [replace(block, pooled=block.output in pooled) for block in kept]
    places = {node: place for place, node in enumerate(order)}
    return sorted([*kept, *gates], key=lambda block: places[block.last])


class _Finder:
    def __init__(self, scope: Scope, graph: ir.Graph, refused: frozenset[ir.Node]) -> None:
        self.scope = scope
        self.refused = refused
        self.graph = graph
        self.gates: dict[ir.Value, Block] = {}
        self.taken: set[ir.Node] = set()

    def squeeze_excite(self, pool: ir.Node) -> Block | None:
        """Return the two layers behind a global mean whose result multiplies what was pooled."""
        site = Site(self.scope, pool, PASS)
        source = site.input(0)
        if source is None or not _is_global_mean(site) or not site.only_use(site.output):
            return None
        nodes = [pool]
        convs: list[ir.Node] = []
        windows: list[Window] = []
        value = site.output
        for _ in range(2):
            conv = next(iter(value.uses())).node
            window = self._window(conv)
            if window is None or not window.is_point or not self._is_layer(conv):
                return None
            tail, extras, value = self._tail(conv)
            if extras or len(value.uses()) != 1 or value.is_graph_output():
                return None
            convs.append(conv)
            windows.append(window)
            nodes += [conv, *tail]
        product = next(iter(value.uses())).node
        if product.op_type != "Mul" or product.domain or source not in product.inputs:
            return None
        return Block(
            "squeeze_excite", tuple(convs), tuple(windows), tuple(nodes), source, None, (), value
        )

    def convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution; one that is refused leaves its reason."""
        if conv.op_type != "Conv" or conv.domain:
            return None
        if conv in self.taken or conv in self.refused:
            return None
        kind = self._kind(conv)
        window = self._window(conv)
        if isinstance(kind, Refused):
            outputs = (conv.outputs[0].name or "",)
            self.scope.log.miss(PASS, describe(conv), kind.reason, outputs)
            return None
        assert window is not None
        source, gate, before = self._source(conv, kind)
        if source is None:
            return None
        tail, extras, output = self._tail(conv)
        nodes = (*before, conv, *tail)
        self.taken.update(nodes)
        return Block(kind, (conv,), (window,), nodes, source, gate, extras, output)

    def _kind(self, conv: ir.Node) -> Kind | Refused:
        """Return which kernel the convolution has, or why it has none."""
        site = Site(self.scope, conv, PASS)
        x, weight = site.input(0), site.input(1)
        shape = None if x is None else self.scope.shapes.shape(x)
        filters = None if weight is None else self.scope.shapes.shape(weight)
        if shape is None or filters is None or len(shape) != 4 or len(filters) != 4:
            return Refused("it is not over two dimensions")
        if site.dtype(site.output) != ir.DataType.FLOAT:
            return Refused("it is not of float32")
        if not all(
            self.scope.is_constant(value) for value in conv.inputs[1:] if value is not None
        ):
            return Refused("its weights are not constants")
        channels, groups, window = shape[1], site.int("group", 1), self._window(conv)
        if not isinstance(channels, int) or window is None:
            return Refused("its number of channels or its pads are not known")
        if groups == channels and groups > 1:
            if filters[0] != channels:
                return Refused("it has several filters for a channel")
            return "depthwise_conv"
        if groups != 1:
            return Refused("it has groups of several channels")
        if window.is_point:
            return "pointwise_conv"
        if channels <= MOST_STEM_CHANNELS:
            return "stem_conv"
        return Refused("ONNX Runtime's blocked kernel is left to it")

    def _window(self, conv: ir.Node) -> Window | None:
        return window_of(self.scope, conv) if conv.op_type == "Conv" and not conv.domain else None

    def _is_layer(self, conv: ir.Node) -> bool:
        """Say whether a convolution is a layer of constant weights with a bias."""
        if conv in self.refused or len(conv.inputs) != 3:
            return False
        return self._kind(conv) == "pointwise_conv"

    def _source(
        self, conv: ir.Node, kind: Kind
    ) -> tuple[ir.Value | None, ir.Value | None, tuple[ir.Node, ...]]:
        """Return what is convolved, its gate, and the product of both if it is taken in."""
        source = conv.inputs[0]
        product = None if source is None else source.producer()
        if source is None or product is None or kind != "pointwise_conv":
            return source, None, ()
        if product.op_type == "Mul" and product.domain == "" and _is_read_once(source):
            for gate, other in (product.inputs, product.inputs[::-1]):
                found = None if gate is None else self.gates.get(gate)
                if found is not None and other is found.source and product.graph is self.graph:
                    return other, gate, (product,)
        return source, None, ()

    def _tail(self, conv: ir.Node) -> tuple[list[ir.Node], tuple[ir.Value, ...], ir.Value]:
        """Return the pointwise nodes after a convolution, their further operands, the result."""
        value, tail, extras = conv.outputs[0], list[ir.Node](), list[ir.Value]()
        while _is_read_once(value) and len(tail) < MOST_TAIL:
            node = next(iter(value.uses())).node
            operands = self._operands(node, value)
            if operands is None:
                break
            tail.append(node)
            extras += operands
            value = node.outputs[0]
        return tail, tuple(dict.fromkeys(extras)), value

    def _operands(self, node: ir.Node, value: ir.Value) -> list[ir.Value] | None:
        """Return the operands of the result's shape besides `value`; None if `node` ends it."""
        is_quick = (node.domain, node.op_type) == ("com.microsoft", "QuickGelu")
        if node.graph is not self.graph or node in self.taken:
            return None
        if not is_quick and (node.domain or node.op_type not in TAIL):
            return None
        found = []
        for other in node.inputs:
            if other is None or other is value or _is_scalar(self.scope, other):
                continue
            if not self.scope.shapes.same_shape(other, value) or self.scope.is_constant(other):
                return None
            found.append(other)
        return found


def _is_read_once(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _is_scalar(scope: Scope, value: ir.Value) -> bool:
    array = scope.array(value, limit=1)
    return array is not None and array.size == 1


def _is_global_mean(site: Site) -> bool:
    """Say whether a node makes the means over both spatial axes, [N, C, 1, 1]."""
    if site.node.domain or site.node.op_type not in ("GlobalAveragePool", "ReduceMean"):
        return False
    x = site.input(0)
    if x is None or site.scope.shapes.rank(x) != 4:
        return False
    if site.node.op_type == "GlobalAveragePool":
        return True
    axes = site.ints("axes")
    if axes is None:
        array = site.scope.array(site.input(1), limit=4)
        axes = None if array is None else tuple(int(axis) for axis in array.flat)
    return (
        axes is not None and {axis % 4 for axis in axes} == {2, 3} and site.int("keepdims", 1) == 1
    )
