"""Blocks of convolution nets, as far as they are the same for all targets.

A block is a convolution with what is done to its result element by element, or another operator on
images that a template has an `ImageAnchor` for. Blocks that feed each other stay in NHWC; see
`chains`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.nodes import is_scalar
from ortkit.fusion.conv.sizes import conv_sizes
from ortkit.fusion.regions.access import is_read_once
from ortkit.fusion.regions.epilogue_ops import EPILOGUE_OPS, is_own_step
from ortkit.fusion.regions.growth import epilogue_steps
from ortkit.graph.shapes.conv_window import window_of
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.operators.window import Window
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe
from ortkit.targets.catalog import load

PASS = "fuse-convolutions"
#: Additional operators of activations that read the result more than once, such as Mish.
INNER = EPILOGUE_OPS | {"Abs", "Div", "Erf", "Exp", "Max", "Min", "Neg"}
#: Longer epilogues are split.
MAX_EPILOGUE_OPS = 8


class BlockFinder:
    """Finds the blocks of one graph; what there are kernels for is a subclass's to say."""

    dtypes: ClassVar[Collection[ir.DataType]]
    """Of the results of convolutions."""
    other_dtype: ClassVar[str]
    """Why those of other types have no kernel."""
    most_extras: ClassVar[int | None] = None
    """Further operands that a kernel reads, None for any number."""
    begins_with_images: ClassVar[bool] = True
    """Whether other operators than convolutions may read what no block makes."""
    needs_sizes: ClassVar[bool] = False
    """Whether kernels are for images of fixed sizes alone."""

    def __init__(self, scope: Scope, graph: ir.Graph, refused: frozenset[ir.Node]) -> None:
        """Look at `graph`, in which the nodes `refused` are no part of a block."""
        self.scope = scope
        self.graph = graph
        self.refused = refused
        self.gates: dict[ir.Value, Block] = {}
        self.excluded: set[ir.Node] = set()
        self._made: set[ir.Value] = set()
        anchors: list[ImageAnchor] = [load(name) for name in scope.traits.image_anchors]
        self._images = {
            each: anchor for anchor in anchors for each in anchor.operators if not anchor.is_gate
        }
        self._gates = {
            each: image_anchor
            for image_anchor in anchors
            for each in image_anchor.operators
            if image_anchor.is_gate
        }

    @classmethod
    def find(
        cls, scope: Scope, graph: ir.Graph, refused: frozenset[ir.Node] = frozenset()
    ) -> list[Block]:
        """Return the blocks of one graph, in order; no two share a node.

        Args:
            scope: The graph's.
            graph: Whose nodes are looked at.
            refused: Convolutions that are no part of a block.
        """
        finder = cls(scope, graph, refused)
        gates = [gate for node in graph if (gate := finder.gate(node)) is not None]
        while True:
            blocks = cls(scope, graph, refused)._beside(gates)
            kept = _settled(blocks, gates)
            if len(kept) == len(gates):
                break
            gates = kept  # what the others multiplied is no gated source
        pooled = {gate.source for gate in gates}
        blocks = [replace(block, pooled=block.output in pooled) for block in blocks]
        indices = {node: index for index, node in enumerate(graph)}
        return sorted([*blocks, *gates], key=lambda block: indices[block.last])

    def convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution; one that is refused leaves its reason."""
        if conv.op_type != "Conv" or conv.domain or conv in self.excluded or conv in self.refused:
            return None
        anchor = self.anchor(conv)
        if isinstance(anchor, Refused):
            self.missed(conv, anchor)
            return None
        window, source = self.window(conv), conv.inputs[0]
        assert window is not None
        assert source is not None
        gate, before = None, tuple[ir.Node, ...]()
        if window.is_point and self._groups(conv) == 1:
            source, gate, before = self.gated(source)
        epilogue, extras, output = self.epilogue(conv)
        if anchor.is_narrow:
            source, before, output = self.narrowed(source, epilogue, output)
        nodes = (*before, conv, *epilogue)
        return Block(
            anchor.kind, (conv,), (window,), nodes, source, output, gate, extras,
            is_planar=anchor.is_planar, anchor=anchor,
        )  # fmt: skip

    def _groups(self, conv: ir.Node) -> int:
        return Site(self.scope, conv, PASS).int("group", 1)

    def anchor(self, conv: ir.Node) -> ConvAnchor | Refused:
        """Return what kernel a convolution has, or why it has none."""
        if (refused := self.refusal(conv)) is not None:
            return refused
        window = self.window(conv)
        assert window is not None
        sizes = conv_sizes(self.scope, conv, window)
        if self.needs_sizes and not sizes.is_image_known:
            return Refused("its image has no fixed size")
        return self.taking(sizes)

    def taking(self, sizes: ConvSizes, dtype: str = "float32") -> ConvAnchor | Refused:
        """Return the first anchor that takes a convolution, or why none does.

        Args:
            sizes: The convolution's.
            dtype: Of the image; kernels for float32 decide for those in 16 bits too.
        """
        for name in self.scope.traits.conv_anchors:
            anchor: ConvAnchor = load(name)
            verdict = anchor.dtype == dtype and anchor.takes(sizes)
            if verdict:
                return verdict if isinstance(verdict, Refused) else anchor
        return Refused("it has groups of several channels")

    def missed(self, conv: ir.Node, why: Refused) -> None:
        """Let the log say why a convolution is in no block."""
        outputs = (conv.outputs[0].name or "",)
        self.scope.log.miss(PASS, describe(conv), why.reason, outputs)

    def is_free(self, node: ir.Node) -> bool:
        """Say whether a node of the graph is in no block, and may be in one."""
        return node.graph is self.graph and node not in self.excluded and node not in self.refused

    def image(self, node: ir.Node) -> Block | None:
        """Return the block of another operator on images; None if it is none."""
        anchor = self._images.get((node.domain, node.op_type))
        if anchor is None or not self.is_free(node):
            return None
        block = self._anchored(anchor, load(anchor.blocks).find(self, node))
        if block is None or self.begins_with_images or block.source in self._made:
            return block
        return None

    def gate(self, node: ir.Node) -> Block | None:
        """Return the block that makes a factor for each channel of what a node pools."""
        anchor = self._gates.get((node.domain, node.op_type))
        if anchor is None:
            return None
        return self._anchored(anchor, load(anchor.blocks).find(self, node, anchor))

    def _anchored(self, anchor: ImageAnchor, block: Block | None) -> Block | None:
        if block is None or not self.excluded.isdisjoint(block.nodes):
            return None
        return replace(block, anchor=anchor)

    def is_layer(self, conv: ir.Node) -> bool:
        """Say whether a 1x1 convolution may be a layer of squeeze-and-excite."""
        has_kernel = conv not in self.refused and isinstance(self.anchor(conv), ConvAnchor)
        return has_kernel and self._groups(conv) == 1

    def window(self, conv: ir.Node) -> Window | None:
        """Return how the filter of a convolution moves; None if it is none."""
        if conv.op_type != "Conv" or conv.domain:
            return None
        return window_of(self.scope.shapes, conv)

    def refusal(self, conv: ir.Node) -> Refused | None:
        """Say why no kernel of the target computes a convolution; None if one may."""
        site = Site(self.scope, conv, PASS)
        if len(self.sizes(site.input(0))) != 4 or len(self.sizes(site.input(1))) != 4:
            return Refused("it is not over two dimensions")
        if site.dtype(site.output) not in self.dtypes:
            return Refused(self.other_dtype)
        weights = [value for value in conv.inputs[1:] if value is not None]
        if not all(self.scope.is_constant(value) for value in weights):
            return Refused("its weights are not constants")
        if not isinstance(self.sizes(site.input(0))[1], int) or self.window(conv) is None:
            return Refused("its number of channels or its pads are not known")
        return None

    def sizes(self, value: ir.Value | None) -> tuple[object, ...]:
        """Return the sizes of a value, none if they are not known."""
        return () if value is None else tuple(self.scope.shapes.shape(value) or ())

    def gated(self, source: ir.Value) -> tuple[ir.Value, ir.Value | None, tuple[ir.Node, ...]]:
        """Return what is convolved, its gate, and the product of both if it is taken in."""
        product = source.producer()
        if product is None or product.op_type != "Mul" or product.domain:
            return source, None, ()
        if not is_read_once(source) or product.graph is not self.graph:
            return source, None, ()
        for gate, other in (product.inputs, product.inputs[::-1]):
            found = None if gate is None else self.gates.get(gate)
            if found is not None and other is found.source and other is not None:
                return other, gate, (product,)
        return source, None, ()

    def epilogue(self, conv: ir.Node) -> tuple[list[ir.Node], tuple[ir.Value, ...], ir.Value]:
        """Return the pointwise nodes after a convolution, their further operands, the result."""
        extras, widening = dict[ir.Value, None](), dict[ir.Node, list[ir.Node]]()

        def is_step(node: ir.Node, value: ir.Value) -> bool:
            operands = self._operands(node, value)
            if operands is None:
                return False
            widening[node], read = self.narrow(conv, operands)
            if self.most_extras is not None and len({*extras, *read}) > self.most_extras:
                return False
            extras.update(dict.fromkeys(read))
            return True

        steps = epilogue_steps(
            self.scope, conv.outputs[0], is_step, self._is_inner, MAX_EPILOGUE_OPS
        )
        nodes = [node for step in steps for node in step]
        found = [item for node in nodes for item in (*widening.get(node, ()), node)]
        return found, tuple(extras), nodes[-1].outputs[0] if nodes else conv.outputs[0]

    def narrow(
        self,
        conv: ir.Node,  # noqa: ARG002
        operands: list[ir.Value],
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        """Return nodes in front of further operands that a kernel takes in, and what it reads."""
        return [], operands

    def narrowed(
        self,
        source: ir.Value,
        epilogue: list[ir.Node],  # noqa: ARG002
        output: ir.Value,
    ) -> tuple[ir.Value, tuple[ir.Node, ...], ir.Value]:
        """Return the ends of a convolution that are stored in bfloat16.

        Args:
            source: What is convolved.
            epilogue: What follows; gets the node that rounds the result.
            output: The result.

        Returns:
            What is read, the nodes that widen it, and the result.
        """
        return source, (), output

    def _is_inner(self, node: ir.Node) -> bool:
        """Say whether a node may be a part of an activation that is written in parts."""
        if node in self.excluded or node.graph is not self.graph:
            return False
        return is_own_step(node) or (not node.domain and node.op_type in INNER)

    def _beside(self, gates: list[Block]) -> list[Block]:
        """Return the blocks beside the gates."""
        self.gates = {gate.output: gate for gate in gates}
        self.excluded = {node for gate in gates for node in gate.nodes}
        found = []
        for node in self.graph:
            block = self.convolution(node) or self.image(node)
            if block is not None:
                self.excluded.update(block.nodes)
                self._made.add(block.output)
                found.append(block)
        return found

    def _operands(self, node: ir.Node, value: ir.Value) -> list[ir.Value] | None:
        """Return the operands of the result's shape in addition to `value`; None if `node` ends
        it."""
        if node.graph is not self.graph or node in self.excluded:
            return None
        if not is_own_step(node) and (node.domain or node.op_type not in EPILOGUE_OPS):
            return None
        found = []
        for other in node.inputs:
            if other is None or other is value or is_scalar(self.scope, other):
                continue
            if not self.scope.shapes.same_shape(other, value) or self.scope.is_constant(other):
                return None
            found.append(other)
        return found


def _settled(blocks: list[Block], gates: list[Block]) -> list[Block]:
    """Return the gates whose means a depthwise block makes and that 1x1 convolutions take in."""
    fused_gates = {block.gate for block in blocks}
    depthwise = {block.output for block in blocks if block.kind == "depthwise_conv"}
    return [gate for gate in gates if gate.output in fused_gates and gate.source in depthwise]
