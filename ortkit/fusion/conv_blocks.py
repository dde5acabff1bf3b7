"""Blocks of convolution nets that one kernel computes with channels innermost.

A block is a convolution with what is done to its result element by element, or the two small
convolutions of squeeze-and-excite. Blocks that feed each other stay in NHWC; see `conv_chains`.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from ortkit.fusion.bf16_factors import (
    Unpacked,
    has_one_use,
    producer_of,
    rounds,
    unpacked_filter,
    widens,
)
from ortkit.fusion.conv_block import Block, Kind
from ortkit.fusion.conv_nodes import is_global_mean, is_read_once, is_scalar
from ortkit.graph.conv_window import Window, pool_window_of, window_of
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
    while True:
        blocks = _found(_Finder(scope, graph, refused), gates)
        kept = _settled(blocks, gates)
        if len(kept) == len(gates):
            break
        gates = kept  # what the others multiplied is no gated source
    pooled = {gate.source for gate in gates}
    blocks = [replace(block, pooled=block.output in pooled) for block in blocks]
    places = {node: place for place, node in enumerate(graph)}
    return sorted([*blocks, *gates], key=lambda block: places[block.last])


def _found(finder: _Finder, gates: list[Block]) -> list[Block]:
    """Return the blocks beside the gates."""
    finder.gates = {gate.output: gate for gate in gates}
    finder.taken = {node for gate in gates for node in gate.nodes}
    found = [finder.convolution(node) or finder.pool(node) for node in finder.graph]
    return [block for block in found if block is not None]


def _settled(blocks: list[Block], gates: list[Block]) -> list[Block]:
    """Return the gates whose means a depthwise block makes and that 1x1 convolutions take in."""
    taken_in = {block.gate for block in blocks}
    depthwise = {block.output for block in blocks if block.kind == "depthwise_conv"}
    return [gate for gate in gates if gate.output in taken_in and gate.source in depthwise]


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
        if source is None or not is_global_mean(site) or not site.only_use(site.output):
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
        weight = unpacked_filter(self.scope, conv.inputs[1])
        if weight is not None:
            return self._lowered(conv, weight)
        kind = self._kind(conv)
        window = self._window(conv)
        if isinstance(kind, Refused):
            outputs = (conv.outputs[0].name or "",)
            self.scope.log.miss(PASS, describe(conv), kind.reason, outputs)
            return None
        assert window is not None
        if (source := conv.inputs[0]) is None:
            return None
        gate, before = None, tuple[ir.Node, ...]()
        if kind == "pointwise_conv":
            source, gate, before = self._gated(source)
        tail, extras, output = self._tail(conv)
        if kind == "depthwise_conv":
            source, before, output = self._narrowed(source, tail, output)
        nodes = (*before, conv, *tail)
        self.taken.update(nodes)
        return Block(kind, (conv,), (window,), nodes, source, gate, extras, output)

    def pool(self, node: ir.Node) -> Block | None:
        """Return the block of a pooling between two values in bfloat16."""
        if node.op_type != "MaxPool" or node.domain or node in self.refused:
            return None
        window = pool_window_of(self.scope.shapes, node)
        source, others = node.inputs[0], node.outputs[1:]
        if window is None or source is None:
            return None
        if any(value.uses() or value.is_graph_output() for value in others):
            return None
        tail = list[ir.Node]()
        source, before, output = self._narrowed(source, tail, node.outputs[0])
        if not before or not tail:
            return None
        nodes = (*before, node, *tail)
        self.taken.update(nodes)
        return Block("max_pool", (node,), (window,), nodes, source, None, (), output)

    def _narrowed(
        self, source: ir.Value, tail: list[ir.Node], output: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Node, ...], ir.Value]:
        """Return the ends of a convolution in float32 as they lie in bfloat16, where they do.

        Args:
            source: What is convolved.
            tail: What follows; gets the node that rounds the result.
            output: The result.

        Returns:
            What is read, the nodes that widen it, and the result.
        """
        before: tuple[ir.Node, ...] = ()
        wide = source.producer()
        if wide is not None and self._may_widen(wide):
            before = (wide,)
            assert wide.inputs[0] is not None
            source = wide.inputs[0]
        if is_read_once(output):
            cast = next(iter(output.uses())).node
            if cast.graph is self.graph and rounds(self.scope, cast):
                tail.append(cast)
                output = cast.outputs[0]
        return source, before, output

    def _lowered(self, conv: ir.Node, weight: Unpacked) -> Block | None:
        """Return the block around a convolution in bfloat16."""
        window, wide = self._window(conv), producer_of(conv.inputs[0])
        if window is None or wide is None or not widens(self.scope, wide) or not has_one_use(wide):
            return None
        source = wide.inputs[0]
        assert source is not None
        gate, before = None, tuple[ir.Node, ...]([wide])
        cast = source.producer()
        if window.is_point and cast is not None and self._may_take(cast):
            # Rows of pixels are rounded as they are read.
            assert cast.inputs[0] is not None
            source, gate, product = self._gated(cast.inputs[0])
            before = (*product, cast, wide)
        tail, extras, output = self._tail(conv, is_lowered=True)
        casts = [use.node for use in output.uses() if rounds(self.scope, use.node)]
        rounded = None
        if len(casts) == 1 and casts[0].graph is self.graph:
            tail.append(casts[0])
            rounded = casts[0].outputs[0]
            if is_read_once(output):
                output, rounded = rounded, None
        nodes = (*before, *weight.nodes, conv, *tail)
        self.taken.update(nodes)
        return Block(
            "bf16_conv", (conv,), (window,), nodes, source, gate, extras, output,
            packed=weight.packed, rounded=rounded,
        )  # fmt: skip

    def _may_take(self, cast: ir.Node) -> bool:
        """Say whether a node rounds for one reader, and is in no block."""
        is_own = cast.graph is self.graph and cast not in self.taken
        return is_own and rounds(self.scope, cast) and has_one_use(cast)

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
        return (
            window_of(self.scope.shapes, conv)
            if conv.op_type == "Conv" and not conv.domain
            else None
        )

    def _is_layer(self, conv: ir.Node) -> bool:
        """Say whether a convolution is a layer of constant weights with a bias."""
        if conv in self.refused or len(conv.inputs) != 3:
            return False
        return self._kind(conv) == "pointwise_conv"

    def _gated(self, source: ir.Value) -> tuple[ir.Value, ir.Value | None, tuple[ir.Node, ...]]:
        """Return what is convolved, its gate, and the product of both if it is taken in."""
        product = source.producer()
        if product is not None and product.op_type == "Mul" and product.domain == "":
            for gate, other in (product.inputs, product.inputs[::-1]):
                found = None if gate is None else self.gates.get(gate)
                if found is None or other is not found.source or product.graph is not self.graph:
                    continue
                if other is not None and is_read_once(source):
                    return other, gate, (product,)
        return source, None, ()

    def _tail(
        self, conv: ir.Node, *, is_lowered: bool = False
    ) -> tuple[list[ir.Node], tuple[ir.Value, ...], ir.Value]:
        """Return the pointwise nodes after a convolution, their further operands, the result.

        Of one in bfloat16 operands may be such too, and the nodes that widen them are returned.
        """
        value, tail, extras = conv.outputs[0], list[ir.Node](), list[ir.Value]()
        while is_read_once(value) and len(tail) < MOST_TAIL:
            node = next(iter(value.uses())).node
            operands = self._operands(node, value)
            if operands is None:
                break
            for operand in operands:
                wide = operand.producer()
                if is_lowered and wide is not None and self._may_widen(wide):
                    tail.append(wide)
                    extras += [each for each in wide.inputs if each is not None]
                else:
                    extras.append(operand)
            tail.append(node)
            value = node.outputs[0]
        return tail, tuple(dict.fromkeys(extras)), value

    def _may_widen(self, cast: ir.Node) -> bool:
        """Say whether a node widens for one reader, and is in no block."""
        is_own = cast.graph is self.graph and cast not in self.taken
        return is_own and widens(self.scope, cast) and has_one_use(cast)

    def _operands(self, node: ir.Node, value: ir.Value) -> list[ir.Value] | None:
        """Return the operands of the result's shape besides `value`; None if `node` ends it."""
        is_quick = (node.domain, node.op_type) == ("com.microsoft", "QuickGelu")
        if node.graph is not self.graph or node in self.taken:
            return None
        if not is_quick and (node.domain or node.op_type not in TAIL):
            return None
        found = []
        for other in node.inputs:
            if other is None or other is value or is_scalar(self.scope, other):
                continue
            if not self.scope.shapes.same_shape(other, value) or self.scope.is_constant(other):
                return None
            found.append(other)
        return found
