"""Sizes that have a name, but only one number that the model's own operators take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size, sole_atom
from ortkit.verify.inputs.sizes import sizes_of


@dataclass(frozen=True)
class _Cached:
    """How an attention operator says what its past keys and values are like."""

    past: tuple[int, int]
    """Its inputs for them: [batch, heads, past, size of a head]."""
    heads: str
    shared: str
    """The attribute with the number of heads of keys; where there are as many, `heads`."""


_CACHED = {
    ("com.microsoft", "GroupQueryAttention"): _Cached((3, 4), "num_heads", "kv_num_heads"),
    ("com.microsoft", "MultiHeadAttention"): _Cached((6, 7), "num_heads", "num_heads"),
    ("", "Attention"): _Cached((4, 5), "q_num_heads", "kv_num_heads"),
}


def demanded_sizes(model: ir.Model, shapes: Shapes) -> dict[str, int]:
    """Return the sizes of inputs that attention fixes, by name: what a cache holds of each token.

    Generators of language models name the size of a head, though it follows from the weights.
    """
    found = [
        (node, form)
        for node in model.graph
        if (form := _CACHED.get((node.domain, node.op_type))) is not None
        and "kv_cache_bit_width" not in node.attributes  # several numbers in one element
        and any(_is_open(value) for value in _past(node, form))
    ]
    return {
        name: number
        for node, form in found
        for value, wanted in zip(_past(node, form), _wanted(node, form, shapes), strict=True)
        for name, number in _named(value, wanted)
    }


def _past(node: ir.Node, form: _Cached) -> tuple[ir.Value | None, ir.Value | None]:
    keys, values = (node.inputs[i] if i < len(node.inputs) else None for i in form.past)
    return keys, values


def _is_open(value: ir.Value | None) -> bool:
    return (
        value is not None
        and value.is_graph_input()
        and value.shape is not None
        and len(value.shape) == 4
        and not all(isinstance(value.shape[axis], int) for axis in (1, 3))
    )


def _wanted(
    node: ir.Node, form: _Cached, shapes: Shapes
) -> tuple[tuple[int, int | None], tuple[int, int | None]]:
    """Return heads and size of a head, of the keys and of the values."""
    heads = node.attributes.get_int(form.heads, 0)
    shared = node.attributes.get_int(form.shared, 0) or heads
    query, *others = (_width(node, index, shapes) for index in range(3))
    if others[0] is None and node.inputs[1] is None:  # packed: query, keys, values in one
        packed = _over(query, heads + 2 * shared)
        return (shared, packed), (shared, packed)
    return (shared, _over(query, heads)), (shared, _over(others[1], shared))


def _width(node: ir.Node, index: int, shapes: Shapes) -> Size | None:
    """Return the last axis of [batch, tokens, heads * size]."""
    value = node.inputs[index] if index < len(node.inputs) else None
    shape = shapes.shape(value) if value is not None else None
    return shape[-1] if shape is not None and len(shape) == 3 else None


def _over(width: Size | None, parts: int) -> int | None:
    return width // parts if isinstance(width, int) and parts and width % parts == 0 else None


def _named(value: ir.Value | None, wanted: tuple[int, int | None]) -> Iterator[tuple[str, int]]:
    if value is None or not _is_open(value) or value.shape is None:
        return
    sizes = sizes_of(value)
    for axis, number in zip((1, 3), wanted, strict=True):
        atom = sole_atom(sizes[axis])
        if atom is not None and atom.kind == "name" and number:
            yield atom.label, number
