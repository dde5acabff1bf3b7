"""channels-last: NHWC for the nodes between images that are NHWC already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.permutation import Permuted, is_contrib_unary, is_inverse, permuted
from ortkit.analysis.pixel_blocks import (
    PixelBlocks,
    blocks_of,
    channel_transpose_of,
    known_sizes,
    with_channels_transposed,
)
from ortkit.analysis.pointwise_conv import is_pointwise
from ortkit.analysis.transposed_resize import REASON, breaks_resize
from ortkit.graph.analysis.value_names import CHANNELS_LAST
from ortkit.operators import where
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
#: A size that is not known, of which only products are compared.
_NOMINAL = 64
_ACTIVATIONS = where(activation=True)
#: What is computed in any layout.
_FREE = where(access="elementwise") | {"ReduceMean", "ReduceMax", "ReduceSum"}
_BLOCKS = ("DepthToSpace", "SpaceToDepth")
_AXES_INPUT_SINCE = 18


@dataclass(frozen=True)
class ChannelsLast(GraphPass):
    """Compute in NHWC what stands between values that are transposed from and to NHWC.

    Before:
        i = Transpose<perm = [0, 3, 1, 2]>(LayerNormalization(t))
        s = Add(Conv(i, W, b), x)                                   # W: [f, c, 1, 1]
        u = Transpose<perm = [0, 2, 3, 1]>(s)
    After:
        u = Add(Add(MatMul(LayerNormalization(t), Wt), b), Transpose<perm = [0, 2, 3, 1]>(x))

    Nodes that read each other's images are taken together: 1x1 convolutions, which become
    products, elementwise operators, halves of channels, means over an image. DepthToSpace and
    SpaceToDepth become Transposes that copy rows of a block, and the order of channels that a
    DepthToSpace wants goes into the matrix before it. Depthwise convolutions stay between
    Transposes, which are their kernel's layout.

    Skips:
        * Where more would be transposed than is now.
        * What a Resize reads that ONNX Runtime breaks as it moves a Transpose over it.
        * Other convolutions, which have kernels for blocked layouts.
        * DepthToSpace and SpaceToDepth of images of unknown size.
        * CUDA, where nothing was measured with it.

    Source:
        f(Transpose(x)) = Transpose(f(x)) for every f that does not look at the order of axes.
    """

    name: ClassVar[str] = "channels-last"

    def run(self, scope: Scope) -> None:
        if not scope.traits.is_host or not isinstance(scope.root, ir.Graph):
            return
        if not any(_is_transpose(node, _TO_NHWC) for node in scope.root):
            return
        for part in _parts(scope, self.name):
            if not part.is_current or part.gain <= 0:
                continue
            last = part.nodes[-1].node
            if breaks_resize(part.leaving):
                Site(scope, last, self.name).miss(REASON)
                continue
            name = last.outputs[0].name or ""
            if scope.log.claim(self.name, "nhwc", name, describe(last)):
                part.rewrite()


@dataclass(frozen=True)
class _Member:
    """A node that may be computed in NHWC.

    Args:
        node: As it is.
        kind: `product` for a 1x1 convolution, `depthwise`, `activation` for one that alone reads
            a depthwise convolution, `split`, `pool`, else `free`. DepthToSpace and SpaceToDepth
            are `blocks`. A Gather that transposes channels is `channel_transpose`.
        images: Its inputs that are images.
        plan: Of a free one, its counterpart.
        blocks: What `blocks` moves.
        sizes: Of `channel_transpose`: height, width, and both parts of the channels.
    """

    node: ir.Node
    kind: str
    images: tuple[ir.Value, ...]
    plan: Permuted | None = None
    blocks: PixelBlocks | None = None
    sizes: tuple[int, int, int, int] | None = None

    @property
    def keeps(self) -> bool:
        """Whether it stays in NCHW, between Transposes."""
        return self.kind in ("depthwise", "activation")


@dataclass
class _Part:
    """Members that read each other's images, in the order of the graph."""

    scope: Scope
    nodes: list[_Member] = field(default_factory=list)
    ordered: set[ir.Value] = field(default_factory=set)
    """Results of products whose channels are in the order that a DepthToSpace wants."""
    nhwc: dict[ir.Value, ir.Value] = field(default_factory=dict)
    nchw: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """New results of what stays between Transposes."""

    @property
    def is_current(self) -> bool:
        """Whether its nodes still read what they did before other parts were rewritten."""
        return all(value in member.node.inputs for member in self.nodes for value in member.images)

    @property
    def gain(self) -> int:
        """Elements that are transposed now and not afterwards, less those the other way around."""
        inside = {member.node for member in self.nodes}
        made = {value for member in self.nodes for value in member.node.outputs}
        entering = dict.fromkeys(
            value for member in self.nodes for value in member.images if value not in made
        )
        own = {value for member in self.nodes if not member.keeps for value in member.images}
        gain = 0
        for value in entering:
            source = value.producer()
            if source is None or not _is_transpose(source, _TO_NCHW):
                gain -= self._elements(value)
            elif value in own and set(value.consumers()) <= inside:
                gain += self._elements(value)
        for member in self.nodes:
            # ONNX Runtime moves single pixels in NCHW, rows of a block in NHWC.
            if member.kind == "blocks":
                gain += self._elements(member.images[0])
            for value in member.node.outputs:
                outside = [node for node in value.consumers() if node not in inside]
                ends = [node for node in outside if is_inverse(node, _TO_NCHW)]
                gain += 0 if member.keeps else len(ends) * self._elements(value)
                if len(ends) < len(outside) or value.is_graph_output():
                    gain -= 0 if member.keeps else self._elements(value)
        return gain

    @property
    def leaving(self) -> list[ir.Value]:
        """What other nodes read."""
        inside = {member.node for member in self.nodes}
        made = [value for member in self.nodes for value in member.node.outputs]
        return [value for value in made if not inside.issuperset(value.consumers())]

    def rewrite(self) -> None:
        """Write the nodes again, then what they are read by."""
        for member in self.nodes:
            self._emit(member, Site(self.scope, member.node, ChannelsLast.name))
        inside = {member.node for member in self.nodes}
        for member in self.nodes:
            for value in member.node.outputs:
                self._read_outside(member.node, value, inside)
        for member in reversed(self.nodes):
            if member.node.graph is not None:
                self.scope.drop_if_unused(member.node)

    def _read_outside(self, node: ir.Node, value: ir.Value, inside: set[ir.Node]) -> None:
        """Let other nodes read a value as it is now."""
        scope, site = self.scope, Site(self.scope, node, ChannelsLast.name)
        for end in [consumer for consumer in value.consumers() if is_inverse(consumer, _TO_NCHW)]:
            new = self._read(value, site)
            if scope.can_replace(end.outputs[0], new) is None and end.graph is node.graph:
                scope.replace(end.outputs[0], new)
        if value.is_graph_output() or any(
            consumer not in inside for consumer in value.consumers()
        ):
            back = self.nchw.get(value)
            if back is None:
                new, name = self._read(value, site), f"{value.name}/nchw"
                back = site.op("Transpose", [new], {"perm": _TO_NCHW}, name=name)
            scope.replace(value, back)

    def _emit(self, member: _Member, site: Site) -> None:
        node, name = member.node, f"{site.output.name}{CHANNELS_LAST}"
        attributes = {key: attribute.value for key, attribute in node.attributes.items()}
        if member.keeps:
            image = self.nchw.get(member.images[0])
            if image is None:
                read_one = [self._read(member.images[0], site)]
                image = site.op("Transpose", read_one, {"perm": _TO_NCHW})
            inputs = [image, *node.inputs[1:]]
            made = site.op(node.op_type, inputs, attributes, domain=node.domain)
            self.nchw[site.output] = made
            return
        read = {value: self._read(value, site) for value in member.images}
        if member.kind == "product":
            order = self._wanted_order(site)
            # In another order of channels it is not the original's value under its name.
            name = name if order is None else ""
            self.nhwc[site.output] = _product(site, read[member.images[0]], name, order)
        elif member.blocks is not None:
            blocks = member.blocks
            if member.images[0] in self.ordered:
                blocks = replace(blocks, is_inner=False)
            self.nhwc[site.output] = blocks.emit(site, read[member.images[0]], name)
        elif member.sizes is not None:
            image = read[member.images[0]]
            self.nhwc[site.output] = with_channels_transposed(site, image, member.sizes, name)
        elif member.kind == "split":
            made_all = self.scope.insert(
                node, "Split", [read[member.images[0]], *node.inputs[1:]],
                {**attributes, "axis": 3}, outputs=len(node.outputs), name=name,
            )  # fmt: skip
            for value, new in zip(node.outputs, made_all, strict=True):
                self.scope.rename(new, f"{value.name}{CHANNELS_LAST}")
                self.nhwc[value] = new
        elif member.kind == "pool":
            self.nhwc[site.output] = _mean(site, read[member.images[0]], name)
        else:
            assert member.plan is not None
            inputs = [
                site.constant(member.plan.constants[index])
                if index in member.plan.constants
                else value if value is None else read.get(value, value)
                for index, value in enumerate(node.inputs)
            ]  # fmt: skip
            attributes.update(member.plan.attributes)
            made = site.op(node.op_type, inputs, attributes, domain=node.domain, name=name)
            self.nhwc[site.output] = made

    def _wanted_order(self, site: Site) -> np.ndarray | None:
        """Return the order of channels that the only reader wants, a DepthToSpace."""
        if not site.only_use(site.output):
            return None
        blocks = self._blocks.get(next(iter(site.output.uses())).node)
        if blocks is None or not blocks.is_inner:
            return None
        self.ordered.add(site.output)
        return blocks.outer_order

    @cached_property
    def _blocks(self) -> dict[ir.Node, PixelBlocks]:
        return {each.node: each.blocks for each in self.nodes if each.blocks is not None}

    def _read(self, value: ir.Value, site: Site) -> ir.Value:
        """Return an image in NHWC."""
        if value not in self.nhwc:
            image = self.nchw.get(value, value)
            source = image.producer()
            if source is not None and _is_transpose(source, _TO_NCHW) and source.inputs[0]:
                self.nhwc[value] = source.inputs[0]
            else:
                name = f"{value.name}{CHANNELS_LAST}"
                self.nhwc[value] = site.op("Transpose", [image], {"perm": _TO_NHWC}, name=name)
        return self.nhwc[value]

    def _elements(self, value: ir.Value) -> int:
        shape = self.scope.shapes.shape(value) or ()
        return prod(size if isinstance(size, int) else _NOMINAL for size in shape[1:])


def _parts(scope: Scope, name: str) -> Iterator[_Part]:
    """Yield what could be computed in NHWC, in the order of the graph."""
    members: dict[ir.Node, _Member] = {}
    group: dict[ir.Node, ir.Node] = {}

    def root(node: ir.Node) -> ir.Node:
        while group[node] is not node:
            group[node] = node = group[group[node]]
        return node

    for node in scope.root if isinstance(scope.root, ir.Graph) else ():
        member = _member(Site(scope, node, name), members)
        if member is None:
            continue
        members[node], group[node] = member, node
        for value in member.images:
            source = value.producer()
            if source is not None and source in members:
                group[root(source)] = root(node)
    parts: dict[ir.Node, _Part] = {}
    for node, member in members.items():
        parts.setdefault(root(node), _Part(scope)).nodes.append(member)
    yield from parts.values()


def _member(site: Site, members: dict[ir.Node, _Member]) -> _Member | None:
    """Return a node as a member, None if it may be none."""
    node = site.node
    if not node.outputs or not all(_is_image(site, value) for value in node.outputs):
        return None
    images = tuple(value for value in node.inputs if value is not None and _is_read(site, value))
    if not images:
        return None
    first, own_type = (images[0],), "" if node.domain else node.op_type
    source = images[0].producer()
    before = None if source is None else members.get(source)
    is_activation = len(images) == 1 and (is_contrib_unary(node) or own_type in _ACTIVATIONS)
    after_depthwise = before is not None and before.kind == "depthwise"
    if is_activation and after_depthwise and site.only_use(images[0]):
        return _Member(node, "activation", first)
    if own_type == "Conv":
        weights = [value for value in node.inputs[1:] if value is not None]
        if images != (node.inputs[0],) or not all(map(site.scope.is_constant, weights)):
            return None
        if is_pointwise(site):
            return _Member(node, "product", first)
        return _Member(node, "depthwise", first) if _is_depthwise(site) else None
    if own_type == "Split":
        is_own = site.int("axis", 0) in (1, -3) and images == (node.inputs[0],)
        return _Member(node, "split", first) if is_own else None
    if own_type in _BLOCKS:
        blocks = blocks_of(site)
        return None if blocks is None else _Member(node, "blocks", first, blocks=blocks)
    if own_type == "Gather":
        sizes = _channel_transpose(site)
        return None if sizes is None else _Member(node, "channel_transpose", first, sizes=sizes)
    if own_type == "GlobalAveragePool":
        return _Member(node, "pool", first)
    if own_type and own_type not in _FREE:
        return None
    plan = permuted(site, [_TO_NCHW if value in images else None for value in node.inputs])
    if plan is None or plan.is_plain:
        return None
    if node.op_type == "ReduceMean" and site.int("keepdims", 1):
        axes = plan.constants.get(1, plan.attributes.get("axes", ()))
        if sorted(int(axis) for axis in np.ravel(axes)) == [1, 2]:
            return _Member(node, "pool", first)
    return _Member(node, "free", images, plan)


def _is_image(site: Site, value: ir.Value) -> bool:
    shape = site.shape(value)
    return shape is not None and len(shape) == 4 and site.dtype(value) == ir.DataType.FLOAT


def _is_read(site: Site, value: ir.Value) -> bool:
    return not site.scope.is_constant(value) and _is_image(site, value)


def _is_depthwise(site: Site) -> bool:
    """Say whether a convolution has one filter for each channel, over rows of known width."""
    image, filters = site.shape(site.input(0)), site.shape(site.input(1))
    if image is None or filters is None or len(filters) != 4:
        return False
    groups = site.int("group", 1)
    return groups > 1 and groups == image[1] == filters[0] and isinstance(image[3], int)


def _channel_transpose(site: Site) -> tuple[int, int, int, int] | None:
    """Return height, width and both parts of the channels that a Gather transposes."""
    known, indices = known_sizes(site, site.input(0)), site.array(site.input(1))
    if known is None or indices is None or indices.ndim != 1 or site.int("axis", 0) not in (1, -3):
        return None
    pair = (
        channel_transpose_of([int(index) for index in indices])
        if len(indices) == known[0]
        else None
    )
    return None if pair is None else (*known[1:], *pair)


def _product(site: Site, pixels: ir.Value, name: str, order: np.ndarray | None = None) -> ir.Value:
    """Multiply pixels by the matrix of a 1x1 convolution, and add its bias.

    `order` says which filter makes each channel; None: the filters' own order.
    """
    weight, bias = site.array(site.input(1)), site.input(2)
    assert weight is not None, "the weight of a member is a constant"
    if order is not None:
        weight, numbers = weight[order], site.array(bias)
        bias = None if numbers is None else site.constant(numbers[order])
    matrix = np.ascontiguousarray(weight.reshape(weight.shape[:2]).T)
    constant = site.constant(matrix, f"{site.output.name}/matrix")
    if bias is None:
        return site.op("MatMul", [pixels, constant], name=name)
    return site.op("Add", [site.op("MatMul", [pixels, constant]), bias], name=name)


def _mean(site: Site, pixels: ir.Value, name: str) -> ir.Value:
    """Return the means of an NHWC image, [N, 1, 1, C]: first those of rows.

    ONNX Runtime adds up the pixels of a channel one by one, which loses 80 epsilons of float32 in
    65,536 of them (1.31.1). Those of a row and then the rows are far fewer.
    """
    for axis, own_name in ((2, f"{name}/rows"), (1, name)):
        if site.opset < _AXES_INPUT_SINCE:
            pixels = site.op(
                "ReduceMean", [pixels], {"axes": [axis], "keepdims": 1}, name=own_name
            )
        else:
            inputs = [pixels, site.constant([axis])]
            pixels = site.op("ReduceMean", inputs, {"keepdims": 1}, name=own_name)
    return pixels


def _is_transpose(node: ir.Node, perm: Sequence[int]) -> bool:
    if (node.domain, node.op_type) != ("", "Transpose") or "perm" not in node.attributes:
        return False
    attribute = node.attributes["perm"]
    return not attribute.is_ref() and tuple(attribute.as_ints()) == tuple(perm)
