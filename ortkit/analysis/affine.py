"""Chains of x * scale + shift around a node, collected before anything is rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortkit.operators import where
from ortkit.rewrite.site import Site

#: Ops that move elements, take some or repeat them, but leave every one of them as it is, so a
#: uniform scale may pass. Each has its data as input 0.
LAYOUT = where(access="view", moves_only=True) - {"Concat", "Split"}  # of several values
ARITHMETIC = where(affine=True, inputs=(2, 2)) | {"Neg"}
#: Before opset 7 arithmetic broadcast by attribute, and BatchNormalization had is_test.
FIRST_OPSET = 7


@dataclass(frozen=True)
class Affine:
    """x -> scale * x + shift, float64: [channels], or [] where all channels are alike."""

    scale: np.ndarray
    shift: np.ndarray

    def then(self, after: Affine) -> Affine:
        """Return this map followed by `after`."""
        return Affine(self.scale * after.scale, self.shift * after.scale + after.shift)

    @property
    def scales(self) -> bool:
        """Whether the scale changes anything."""
        return not bool((self.scale == 1).all())

    @property
    def shifts(self) -> bool:
        """Whether the shift changes anything."""
        return bool((self.shift != 0).any())


IDENTITY = Affine(np.array(1.0), np.array(0.0))


@dataclass(frozen=True)
class Channels:
    """Where the channels of a value are: `axis` of `rank` axes, `size` of them.

    `rank` None: unknown, and the channels are the last axis.
    """

    axis: int
    rank: int | None
    size: int

    def per_channel(self, array: np.ndarray) -> np.ndarray | None:
        """Return what `array` broadcasts to along the channels, None if it does more.

        Args:
            array: An operand of an op whose other operand has these channels.

        Returns:
            Float64, [channels] or [].
        """
        rank = 1 if self.rank is None else self.rank
        axis = 0 if self.rank is None else self.axis
        if array.ndim > rank:
            return None
        wide = np.asarray(array, np.float64).reshape((1,) * (rank - array.ndim) + array.shape)
        if wide.size == 1:
            return wide.reshape(())
        if wide.shape[axis] != self.size or wide.size != self.size:
            return None
        return wide.reshape(-1)


@dataclass(frozen=True)
class Chain:
    """Affine nodes in a row, each read by the next one only."""

    affine: Affine
    near: tuple[ir.Node, ...]
    """The nodes next to the start, in the order found."""
    far: tuple[tuple[ir.Node, ir.Value], ...] = ()
    """Uniform ones beyond layout ops, each with the operand that it scales."""

    blocked: str = ""
    """Why a node that fits is not in the chain, empty if that did not happen."""

    def __len__(self) -> int:
        return len(self.near) + len(self.far)


def chain_after(site: Site, channels: Channels) -> Chain:
    """Return the affine nodes that follow the site's node, beyond layout ops too."""
    chain = Chain(IDENTITY, ())
    value, is_broadcast = site.output, False
    while site.only_use(value):
        node, index = next(iter(value.uses()))
        if node.graph is not site.node.graph or (len(node.outputs) > 1 and _is_used(node, 1)):
            break
        step = read_affine(site, node, index, None if is_broadcast else channels)
        if step is not None and not is_broadcast:
            chain = replace(chain, affine=chain.affine.then(step), near=(*chain.near, node))
        elif step is not None and not step.shifts and _keeps_shape(site, value, node):
            chain = replace(chain, affine=chain.affine.then(step), far=(*chain.far, (node, value)))
        elif node.domain == "" and node.op_type in LAYOUT and index == 0:
            is_broadcast = True
        else:
            break
        value = node.outputs[0]
    return chain


def chain_before(site: Site, channels: Channels, *, shifts: bool) -> tuple[Chain, ir.Value | None]:
    """Return the affine nodes that make input 0, last one first, and what they read.

    Args:
        site: The node that reads the end of the chain.
        channels: Where the channels of that input are.
        shifts: Whether nodes that add something are wanted too.
    """
    chain = Chain(IDENTITY, ())
    value = site.input(0)
    while value is not None and site.only_use(value):
        node = value.producer()
        if node is None or node.graph is not site.node.graph:
            break
        found = _producer_step(site, node, channels)
        if found is None:
            break
        step, data = found
        if step.shifts and not shifts:
            return replace(chain, blocked="a shift would reach the padding"), value
        if node.op_type != "BatchNormalization" and _is_product(site, data):
            return Chain(IDENTITY, (), blocked="the factor may belong to an activation"), None
        value = data
        chain = replace(chain, affine=step.then(chain.affine), near=(*chain.near, node))
    return chain, value


def _producer_step(
    site: Site, node: ir.Node, channels: Channels
) -> tuple[Affine, ir.Value] | None:
    for index, data in enumerate(node.inputs[:2]):
        step = None if data is None else read_affine(site, node, index, channels)
        if step is not None and data is not None and _keeps_shape(site, data, node):
            return step, data
    return None


def _is_product(site: Site, value: ir.Value) -> bool:
    """Say whether `value` multiplies or divides two values that vary.

    A constant factor next to it is likely the 0.5 of a GELU, the 1/6 of a HardSwish or the
    weight of a norm. Without it nobody, ONNX Runtime included, would recognize these.
    """
    node = site.producer(value, "Mul", "Div")
    return node is not None and not any(site.scope.is_constant(v) for v in node.inputs)


def read_affine(site: Site, node: ir.Node, index: int, channels: Channels | None) -> Affine | None:
    """Return what `node` does to its input `index`, None if it is not affine per channel.

    Args:
        site: Where the fold is considered.
        node: Any node.
        index: The input that varies.
        channels: Where the channels of that input are; None: only a uniform map is wanted.
    """
    if node.domain != "" or site.opset < FIRST_OPSET:
        return None
    if node.op_type == "BatchNormalization":
        return _batch_norm(site, node, channels) if index == 0 and channels else None
    if node.op_type == "Neg":
        return Affine(np.array(-1.0), np.array(0.0))
    if node.op_type not in ARITHMETIC or len(node.inputs) != 2:
        return None
    other = node.inputs[1 - index]
    limit = 1 if channels is None else channels.size
    array = site.array(other, limit)
    if array is None or array.dtype.kind in "biuO":
        return None
    wanted = Channels(0, max(array.ndim, 1), 1) if channels is None else channels
    number = wanted.per_channel(array)
    return None if number is None else _arithmetic(node.op_type, number, is_left=index == 1)


def _arithmetic(op_type: str, number: np.ndarray, *, is_left: bool) -> Affine | None:
    one, zero = np.array(1.0), np.array(0.0)
    match op_type:
        case "Add":
            return Affine(one, number)
        case "Sub":
            return Affine(-one, number) if is_left else Affine(one, -number)
        case "Mul":
            return Affine(number, zero)
        case "Div" if not is_left and bool((number != 0).all()):
            return Affine(1.0 / number, zero)
    return None


def _batch_norm(site: Site, node: ir.Node, channels: Channels) -> Affine | None:
    """Return inference-mode BatchNormalization as a map; None in training mode."""
    here = Site(site.scope, node, site.pass_name)
    if channels.axis != 1 or channels.rank is None or len(node.inputs) != 5:
        return None
    if here.int("training_mode", 0) or not here.int("spatial", 1):
        return None
    arrays = [site.array(value, channels.size) for value in node.inputs[1:]]
    known = [np.asarray(a, np.float64) for a in arrays if a is not None]
    if len(known) != 4 or any(a.shape != (channels.size,) for a in known):
        return None
    gamma, beta, mean, variance = known
    # The attribute is a float32 number.
    deviation = np.sqrt(variance + np.float64(np.float32(here.float("epsilon", 1e-5))))
    if not bool((deviation > 0).all()):
        return None
    scale = gamma / deviation
    return Affine(scale, beta - mean * scale)


def _is_used(node: ir.Node, start: int) -> bool:
    return any(value.uses() or value.is_graph_output() for value in node.outputs[start:])


def _keeps_shape(site: Site, data: ir.Value, node: ir.Node) -> bool:
    """Say whether the constant operand does not widen `data`."""
    if node.op_type in ("BatchNormalization", "Neg"):
        return True
    other = node.inputs[1] if node.inputs[0] is data else node.inputs[0]
    array = site.array(other)
    if array is not None and array.ndim == 0:
        return True
    return site.scope.shapes.same_shape(data, node.outputs[0])


def constant_shape(site: Site, value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant, without reading its data; None for other values."""
    shape = site.shape(value) if site.scope.is_constant(value) else None
    sizes = tuple(size for size in shape or () if isinstance(size, int))
    return sizes if shape is not None and len(sizes) == len(shape) else None


def neighbours(site: Site, *op_types: str) -> bool:
    """Say whether one of these ops makes the node's first input or reads its first output."""
    before = site.producer(site.input(0), *op_types)
    after = [node for node in site.output.consumers() if node.domain == ""]
    return before is not None or any(node.op_type in op_types for node in after)


def why_separate(site: Site) -> str:
    """Say why a BatchNormalization that reads the node is not in the chain after it.

    Empty if none reads it.
    """
    readers = [node for node in site.output.consumers() if node.domain == ""]
    if not any(node.op_type == "BatchNormalization" for node in readers):
        return ""
    if not site.only_use(site.output):
        return "others read what its BatchNormalization reads"
    return "its BatchNormalization trains, or its parameters are not constant"


def growth(value: ir.Value, array: np.ndarray) -> int:
    """Return the bytes by which a changed copy of the constant `value` makes the model larger."""
    return array.nbytes if len(value.uses()) > 1 or value.is_graph_output() else 0


def drop_chain(site: Site, chain: Chain, end: ir.Value) -> None:
    """Let `end` stand for the near part of a chain, and every far node for what it scaled."""
    for value in _changed(site, chain, end):
        site.scope.give_up_name(value)
    for node, data in reversed(chain.far):
        site.replace(data, node.outputs[0])
    if chain.near:
        site.replace(end, chain.near[-1].outputs[0])
        if chain.far:  # it holds their factors too, which the name does not stand for
            site.scope.give_up_name(end)


def _changed(site: Site, chain: Chain, end: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that stay, but come to hold what is scaled already."""
    if end is site.output:
        yield end
    if not chain.far:
        return
    dropped = {*chain.near, *(node for node, _ in chain.far)}
    value, last = site.output, chain.far[-1][1]
    while value is not last:
        node, _ = next(iter(value.uses()))
        value = node.outputs[0]
        if node not in dropped:
            yield value


def can_drop(site: Site, chain: Chain) -> bool:
    """Say whether every node of a chain may go; leaves the reason if not."""
    near = chain.near[-1].outputs[0] if chain.near else None
    return all(site.can_replace(data, node.outputs[0]) for node, data in chain.far) and (
        near is None or site.can_replace(site.output, near)
    )
