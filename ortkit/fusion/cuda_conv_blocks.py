"""Blocks of convolution nets that one kernel computes on CUDA with channels innermost.

A block is a convolution in half precision with what is done to its result element by element, the
two small layers of squeeze-and-excite, or a pooling of another block's result. Blocks that feed
each other stay in NHWC; see `cuda_conv_chains`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import onnx_ir as ir

from ortkit.graph.conv_window import Window, window_of
from ortkit.kernels.backend import Refused
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe

PASS = "fuse-convolutions"
#: What may follow a convolution in its kernel; further operands are scalars or of its shape.
TAIL = frozenset(
    {
        "Add", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul",
        "Relu", "Selu", "Sigmoid", "Softplus", "Sub", "Swish", "Tanh",
    }
)  # fmt: skip
#: Longer tails are cut; a kernel reads one further operand.
MOST_TAIL, MOST_EXTRAS = 8, 1
#: Up to this many channels a convolution reads them outermost, as images come.
MOST_PLANAR_CHANNELS = 4
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

Kind = Literal["conv", "depthwise_conv", "squeeze_excite", "max_pool", "global_mean"]


@dataclass(frozen=True)
class Block:
    """Nodes that become one.

    Args:
        kind: What its kernel is.
        nodes: All of them, in order; of squeeze-and-excite with the pooling.
        source: What is convolved or pooled.
        output: The result.
        convs: The convolutions, two for squeeze-and-excite, none for a pooling.
        windows: Of each, or of the pooling.
        gate: [N, C, 1, 1], what a 1x1 convolution's source is multiplied by.
        extras: A further operand of the result's shape, if there is one.
        is_pooled: Whether some squeeze-and-excite pools the result.
        is_planar: Whether the source is NCHW.
    """

    kind: Kind
    nodes: tuple[ir.Node, ...]
    source: ir.Value
    output: ir.Value
    convs: tuple[ir.Node, ...] = ()
    windows: tuple[Window, ...] = ()
    gate: ir.Value | None = None
    extras: tuple[ir.Value, ...] = ()
    is_pooled: bool = False
    is_planar: bool = False

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
        refused: Nodes that no block begins with.
    """
    finder = _Finder(scope, graph, refused)
    gates = [gate for node in graph if (gate := finder.squeeze_excite(node)) is not None]
    finder.gates = {gate.output: gate for gate in gates}
    finder.taken = {node for gate in gates for node in gate.nodes}
    blocks = [block for node in graph if (block := finder.convolution(node)) is not None]
    blocks = _with_gates(blocks, gates)
    made = {block.output for block in blocks}
    finder.taken = {node for block in blocks for node in block.nodes}
    for node in graph:
        if (pool := finder.pooling(node, made)) is not None:
            blocks.append(pool)
            made.add(pool.output)
    places = {node: place for place, node in enumerate(graph)}
    return sorted(blocks, key=lambda block: places[block.last])


def _with_gates(blocks: list[Block], gates: list[Block]) -> list[Block]:
    """Keep the gates whose means a depthwise block makes and that 1x1 convolutions take in."""
    taken_in = {block.gate for block in blocks}
    depthwise = {block.output for block in blocks if block.kind == "depthwise_conv"}
    gates = [g for g in gates if g.output in taken_in and g.source in depthwise]
    outputs, pooled = {gate.output for gate in gates}, {gate.source for gate in gates}
    kept = [block for block in blocks if block.gate is None or block.gate in outputs]
    return [*(replace(block, is_pooled=block.output in pooled) for block in kept), *gates]


class _Finder:
    def __init__(self, scope: Scope, graph: ir.Graph, refused: frozenset[ir.Node]) -> None:
        self.scope = scope
        self.graph = graph
        self.refused = refused
        self.gates: dict[ir.Value, Block] = {}
        self.taken: set[ir.Node] = set()

    def squeeze_excite(self, pool: ir.Node) -> Block | None:
        """Return the two layers behind a global mean whose result multiplies what was pooled."""
        site = Site(self.scope, pool, PASS)
        source = site.input(0)
        if source is None or not _is_global_mean(site) or not site.only_use(site.output):
            return None
        nodes, convs, windows, value = [pool], list[ir.Node](), list[Window](), site.output
        for _ in range(2):
            conv = next(iter(value.uses())).node
            window = None if isinstance(self._refusal(conv), Refused) else self._window(conv)
            if window is None or not window.is_point:
                return None
            tail, extras, value = self._tail(conv)
            if extras or not _is_read_once(value):
                return None
            convs.append(conv)
            windows.append(window)
            nodes += [conv, *tail]
        product = next(iter(value.uses())).node
        if product.op_type != "Mul" or product.domain or source not in product.inputs:
            return None
        return Block("squeeze_excite", tuple(nodes), source, value, tuple(convs), tuple(windows))

    def convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution; one that is refused leaves its reason."""
        if conv.op_type != "Conv" or conv.domain or conv in self.taken or conv in self.refused:
            return None
        if (refused := self._refusal(conv)) is not None:
            outputs = (conv.outputs[0].name or "",)
            self.scope.log.miss(PASS, describe(conv), refused.reason, outputs)
            return None
        window, source = self._window(conv), conv.inputs[0]
        assert window is not None
        assert source is not None
        channels, groups = self._sizes(source)[1], Site(self.scope, conv, PASS).int("group", 1)
        gate, before = None, tuple[ir.Node, ...]()
        if window.is_point and groups == 1:
            source, gate, before = self._gated(source)
        tail, extras, output = self._tail(conv)
        nodes = (*before, conv, *tail)
        self.taken.update(nodes)
        is_planar = groups == 1 and int(channels) <= MOST_PLANAR_CHANNELS  # type: ignore[call-overload]
        return Block(
            "depthwise_conv" if groups > 1 else "conv", nodes, source, output, (conv,), (window,),
            gate, extras, is_planar=is_planar,
        )  # fmt: skip

    def pooling(self, node: ir.Node, made: set[ir.Value]) -> Block | None:
        """Return a pooling of a block's result."""
        site = Site(self.scope, node, PASS)
        source = site.input(0)
        if source not in made or source is None or node in self.taken or node in self.refused:
            return None
        if _is_global_mean(site):
            return Block("global_mean", (node,), source, node.outputs[0])
        window = _pool_window(site)
        if window is None:
            return None
        return Block("max_pool", (node,), source, node.outputs[0], windows=(window,))

    def _refusal(self, conv: ir.Node) -> Refused | None:
        """Say why the convolution has no kernel."""
        site = Site(self.scope, conv, PASS)
        x, weight = site.input(0), site.input(1)
        if conv.op_type != "Conv" or conv.domain or x is None or weight is None:
            return Refused("it is no convolution")
        shape, filters = self._sizes(x), self._sizes(weight)
        if len(shape) != 4 or len(filters) != 4:
            return Refused("it is not over two dimensions")
        if site.dtype(site.output) not in HALVES:
            return Refused("it is not in half precision")
        if not all(
            self.scope.is_constant(value) for value in conv.inputs[1:] if value is not None
        ):
            return Refused("its weights are not constants")
        if not all(isinstance(size, int) for size in (*shape[1:], *filters)):
            return Refused("its image has no fixed size")
        if self._window(conv) is None:
            return Refused("its pads are not known")
        groups = site.int("group", 1)
        if groups != 1 and (groups != shape[1] or filters[0] != shape[1]):
            return Refused("it has groups of several channels")
        return None

    def _window(self, conv: ir.Node) -> Window | None:
        return window_of(self.scope.shapes, conv)

    def _sizes(self, value: ir.Value) -> tuple[object, ...]:
        return tuple(self.scope.shapes.shape(value) or ())

    def _gated(self, source: ir.Value) -> tuple[ir.Value, ir.Value | None, tuple[ir.Node, ...]]:
        """Return what is convolved, its gate, and the product of both if it is taken in."""
        product = source.producer()
        if product is None or product.op_type != "Mul" or product.domain:
            return source, None, ()
        if not _is_read_once(source) or product.graph is not self.graph:
            return source, None, ()
        for gate, other in (product.inputs, product.inputs[::-1]):
            found = None if gate is None else self.gates.get(gate)
            if found is not None and other is found.source and other is not None:
                return other, gate, (product,)
        return source, None, ()

    def _tail(self, conv: ir.Node) -> tuple[list[ir.Node], tuple[ir.Value, ...], ir.Value]:
        """Return the pointwise nodes after a convolution, their further operands, the result."""
        value, tail, extras = conv.outputs[0], list[ir.Node](), dict[ir.Value, None]()
        while _is_read_once(value) and len(tail) < MOST_TAIL:
            node = next(iter(value.uses())).node
            operands = self._operands(node, value)
            if operands is None or len({*extras, *operands}) > MOST_EXTRAS:
                break
            tail.append(node)
            extras |= dict.fromkeys(operands)
            value = node.outputs[0]
        return tail, tuple(extras), value

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


def _pool_window(site: Site) -> Window | None:
    """Return how a MaxPool's window moves; None if it is none, or one that is not stated."""
    if site.node.op_type != "MaxPool" or site.node.domain or len(site.node.outputs) != 1:
        return None
    kernel, x = site.ints("kernel_shape"), site.input(0)
    stated = site.string("auto_pad", "NOTSET") == "NOTSET" and not site.int("ceil_mode", 0)
    if kernel is None or len(kernel) != 2 or not stated or x is None:
        return None
    strides, dilations = site.ints("strides") or (1, 1), site.ints("dilations") or (1, 1)
    pads = site.ints("pads") or (0, 0, 0, 0)
    return Window(
        (kernel[0], kernel[1]), (strides[0], strides[1]), (dilations[0], dilations[1]),
        (pads[0], pads[1], pads[2], pads[3]),
    )  # fmt: skip
