"""Caches of decoders: which inputs hold past keys and values, and how many tokens are new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size


@dataclass(frozen=True)
class Cache:
    """One input with past keys or values."""

    past: Size
    """Number of its tokens."""
    new: Size
    """Number of tokens that are added to them."""
    batch: Size
    totals: tuple[Size, ...] = ()
    """Sizes of other inputs that must equal `past + new`."""
    equal: tuple[tuple[Size, Size], ...] = ()
    """Pairs of sizes of inputs that must be equal: batches, and lengths of keys and values."""
    is_grouped: bool = False
    """Whether GroupQueryAttention reads it: with past tokens it takes one new token for each
    row of the batch, or several for a batch of one."""

    def over(self, resolve: Callable[[Size], Size]) -> Cache:
        """Return the cache with sizes that follow from others worked in."""
        past, new, batch = map(resolve, (self.past, self.new, self.batch))
        return replace(self, past=past, new=new, batch=batch)


def caches_of(model: ir.Model, shapes: Shapes) -> tuple[Cache, ...]:
    """Return the caches of a model's main graph: those that Concat or attention operators read."""
    found = (cache for node in model.graph for cache in _caches(node, shapes))
    return tuple(dict.fromkeys(found))


def _caches(node: ir.Node, shapes: Shapes) -> Iterator[Cache]:
    match node.domain, node.op_type:
        case "", "Concat":
            yield from _concatenated(node, shapes)
        case "", "Attention":
            yield from _attended(node, shapes, past=4, masks=(3,))
        case "com.microsoft", "MultiHeadAttention":
            yield from _attended(node, shapes, past=6, masks=(4, 5))
        case "com.microsoft", "GroupQueryAttention" if not is_sliding(node):
            yield from _attended(node, shapes, past=3, masks=(), total=6)


def is_sliding(node: ir.Node) -> bool:
    """Say whether a GroupQueryAttention keeps its newest tokens only, in a cache of fixed size."""
    return node.attributes.get_int("sliding_window_cache", 0) == 1


def window_sizes(model: ir.Model, shapes: Shapes) -> Iterator[tuple[Size, Size]]:
    """Yield the size of each sliding cache, with the least that its operator takes."""
    for node in model.graph:
        if (node.domain, node.op_type) != ("com.microsoft", "GroupQueryAttention"):
            continue
        window = node.attributes.get_int("local_window_size", -1)
        shape = _shape(node, 3, shapes)
        if is_sliding(node) and window > 0 and shape is not None and len(shape) == 4:
            yield shape[2], window


def _concatenated(node: ir.Node, shapes: Shapes) -> Iterator[Cache]:
    """Find a Concat that makes an output of an input and of what is new."""
    if len(node.inputs) != 2 or not node.outputs or not _is_output(node.outputs[0]):
        return
    past, new = (None if v is None else shapes.shape(v) for v in node.inputs)
    source = _source(node.inputs[0])
    if source is None or not source.is_graph_input() or not past or not new or len(past) < 2:
        return
    other = _source(node.inputs[1])
    axis = node.attributes.get_int("axis", 0) % len(past)
    if axis == 0 or other is None or other.is_graph_input() or len(new) != len(past):
        return
    yield Cache(past[axis], new[axis], past[0])


def _attended(
    node: ir.Node, shapes: Shapes, *, past: int, masks: tuple[int, ...], total: int | None = None
) -> Iterator[Cache]:
    """Read an attention operator with past keys [batch, heads, past, width] as an input."""
    keys = _input(node, past)
    shape = shapes.shape(keys) if keys is not None else None
    query, current = (_shape(node, index, shapes) for index in (0, 1))
    # Packed queries, keys and values are one input: [batch, tokens, all].
    current = query if current is None else current
    if shape is None or len(shape) != 4 or not current or len(current) not in (3, 4):
        return
    new = current[-2]
    found = [last[-1] for index in masks if (last := _shape(node, index, shapes))]
    number = _input(node, total) if total is not None else None
    if number is not None:
        found += (shapes.contents(number) or ())[:1]
    values = _shape(node, past + 1, shapes) or ()
    equal = [(shape[0], current[0]), *zip(values[:3:2], shape[:3:2], strict=False)]
    yield Cache(shape[2], new, shape[0], tuple(found), tuple(equal), is_grouped=total is not None)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _shape(node: ir.Node, index: int, shapes: Shapes) -> tuple[Size, ...] | None:
    value = _input(node, index)
    return None if value is None else shapes.shape(value)


def _source(value: ir.Value | None) -> ir.Value | None:
    """Return what a value is, but for its type."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in ("Cast", "Identity") or not node.inputs:
            break
        value = node.inputs[0]
    return value


def _is_output(value: ir.Value) -> bool:
    """Say whether a value is an output of the graph, but for its type."""
    if value.is_graph_output():
        return True
    return any(
        node.op_type in ("Cast", "Identity") and _is_output(node.outputs[0])
        for node, _ in value.uses()
    )
