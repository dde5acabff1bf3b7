"""Writing an attention as one op, with what its operands and its mask need around it."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortkit.analysis.axes import Moves, targets
from ortkit.graph.shapes.reshape import static
from ortkit.graph.symbolic.dims import Size
from ortkit.ops.attention.core import Bias
from ortkit.ops.attention.heads import Cache, Heads
from ortkit.ops.attention.mask_values import Facts
from ortkit.ops.attention.operands import Operand, Piece
from ortkit.ops.attention.projections import Projections, packed
from ortkit.ops.attention.rotary import Rotary
from ortkit.ops.attention.sizes import axis_size, size_of, source_of
from ortkit.ops.attention.understood import Attention
from ortkit.rewrite.scope import Attributes
from ortkit.rewrite.site import Site

SPLIT_SIZES_ARE_AN_INPUT = 13
AXES_ARE_INPUTS_SINCE = 18


Pieces = dict[tuple[ir.Value, int, int], tuple[ir.Value, ...]]


def operand(site: Site, found: Operand, pieces: Pieces, gain: Bias | None = None) -> ir.Value:
    """Make an operand in its form; a gain multiplies it first.

    Args:
        site: The node that it is inserted before.
        found: The operand.
        pieces: Packed values that were split at this site already.
        gain: A factor per head or so, for the query.
    """
    value = found.value
    if gain is not None:
        dtype = site.dtype(gain.value)
        value = value if dtype is None else cast_to(site, value, dtype)
        value = site.op("Mul", [value, gain.value])
    if found.piece is not None:
        value = _piece(site, value, found, found.piece, pieces)
    return moved(site, value, found.layout.source_shape, found.way)


def _piece(site: Site, value: ir.Value, found: Operand, piece: Piece, pieces: Pieces) -> ir.Value:
    key = value, piece.axis, piece.count
    if key not in pieces:
        size = found.layout.source_shape[piece.axis]
        assert isinstance(size, int), "packed values are split into static sizes"
        sizes = (size,) * piece.count
        is_input = site.opset >= SPLIT_SIZES_ARE_AN_INPUT
        pieces[key] = site.scope.insert(
            site.node,
            "Split",
            [value, site.constant(sizes)] if is_input else [value],
            {"axis": piece.axis} if is_input else {"axis": piece.axis, "split": sizes},
            outputs=piece.count,
            name=f"{value.name}/pieces",
        )
    return pieces[key][piece.index]


def moved(site: Site, value: ir.Value, shape: tuple[Size, ...], way: Moves) -> ir.Value:
    """Insert the Reshape, Transpose, Reshape of `way`."""
    found = targets(shape, way)
    assert found is not None, "the way was chosen for its constant targets"
    first, second = found
    if first is not None:
        value = site.op("Reshape", [value, site.constant(first)])
    if way.perm is not None:
        value = site.op("Transpose", [value], {"perm": way.perm})
    if second is not None:
        value = site.op("Reshape", [value, site.constant(second)])
    return value


def cast_to(site: Site, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return `value` in another element type, or itself."""
    return value if site.dtype(value) == dtype else site.op("Cast", [value], {"to": dtype.value})


def result(site: Site, attention: Attention, value: ir.Value) -> ir.Value:
    """Cast and move the op's output to what it replaces."""
    found, dtype = attention.heads.result, site.dtype(attention.core.result)
    if dtype is not None:
        value = cast_to(site, value, dtype)
    return moved(site, value, found.layout.source_shape, found.way)


def onnx_attention(site: Site, attention: Attention, mask: ir.Value | None) -> ir.Value:
    """Insert the default domain's Attention and return its output; caches are replaced."""
    heads = attention.heads
    attributes: dict[str, int | float] = {}
    if heads.form == "3d":
        attributes |= {"q_num_heads": heads.heads, "kv_num_heads": heads.kv_heads}
    if attention.mask.is_causal:
        attributes["is_causal"] = 1
    if attention.core.softcap:
        attributes["softcap"] = attention.core.softcap
    inputs = [*_operands(site, attention), mask]
    return _with_caches(site, attention, "Attention", inputs, attributes, domain="", first=4)


def multi_head_attention(site: Site, attention: Attention, mask: ir.Value | None) -> ir.Value:
    """Insert com.microsoft's MultiHeadAttention and return its output; caches are replaced."""
    attributes: dict[str, int | float] = {"num_heads": attention.heads.heads}
    if attention.mask.is_causal:
        attributes["unidirectional"] = 1
    site.scope.import_domain("com.microsoft", 1)
    inputs = [*_operands(site, attention), None, None, mask]
    return _with_caches(
        site, attention, "MultiHeadAttention", inputs, attributes, domain="com.microsoft", first=6
    )


def _operands(site: Site, attention: Attention) -> list[ir.Value]:
    heads, gains = attention.heads, attention.core.gains
    pieces: Pieces = {}
    made = [
        operand(site, heads.query, pieces, gains[0] if gains else None),
        operand(site, heads.key, pieces),
        operand(site, heads.value, pieces),
    ]
    return [cast_to(site, value, attention.dtype) for value in made]


def _with_caches(
    site: Site,
    attention: Attention,
    op_type: str,
    inputs: list[ir.Value | None],
    attributes: dict[str, int | float],
    *,
    domain: str,
    first: int,
) -> ir.Value:
    """Insert the op; where keys and values have caches, these become inputs from `first` on."""
    if attention.scale != attention.default_scale:
        attributes["scale"] = attention.scale
    caches: tuple[Cache, ...] = attention.heads.caches or ()
    if caches:
        inputs = [*inputs, *[None] * (first - len(inputs)), *(cache.past for cache in caches)]
    while inputs[-1] is None:
        inputs.pop()
    wanted: Attributes = attributes
    outputs = site.scope.insert(
        site.node,
        op_type,
        inputs,
        wanted,
        domain=domain,
        outputs=1 + len(caches),
        name=f"{attention.heads.result.value.name}/attention",
    )
    for cache, present in zip(caches, outputs[1:], strict=True):
        site.replace(present, cache.present)
    return outputs[0]


def packed_attention(
    site: Site, attention: Attention, projections: Projections, mask: ir.Value | None
) -> ir.Value:
    """Insert com.microsoft's Attention, which holds the linear layers too."""
    weight, bias_of_layers = packed(site, projections)
    attributes: dict[str, int | float | tuple[int, ...]] = {"num_heads": attention.heads.heads}
    sizes = tuple(part.size for part in projections.parts)
    if len(set(sizes)) > 1:
        attributes["qkv_hidden_sizes"] = sizes
    if attention.mask.is_causal:
        attributes["unidirectional"] = 1
    if attention.scale != attention.default_scale:
        attributes["scale"] = attention.scale
    inputs = [projections.query.x, weight, bias_of_layers, None, None, mask]
    while inputs[-1] is None:
        inputs.pop()
    site.scope.import_domain("com.microsoft", 1)
    made = site.op("Attention", inputs, attributes, domain="com.microsoft")
    if not (attention.mask.may_give_nan and attention.core.zeroes_nan):
        return made
    assert mask is not None
    return _zeroed(site, attention, mask, made)


def _zeroed(site: Site, attention: Attention, mask: ir.Value, made: ir.Value) -> ir.Value:
    """Put zero, as written, in the place of what queries without any key give.

    Args:
        site: The node that it is inserted before.
        attention: What was written.
        mask: [B or 1, 1, S, T]
        made: [B, S, H * D]
    """
    numpy_type = attention.dtype.numpy()
    minus_infinity = site.constant(np.array(-math.inf, numpy_type))
    if site.opset < AXES_ARE_INPUTS_SINCE:
        highest = site.op("ReduceMax", [mask], {"axes": (1, 3)})
    else:
        highest = site.op("ReduceMax", [mask, site.constant((1, 3))])
    rows = site.op("Reshape", [highest, site.constant((0, -1, 1))])
    is_empty = site.op("Equal", [rows, minus_infinity])
    return site.op("Where", [is_empty, site.constant(np.array(0, numpy_type)), made])


def grouped_query_attention(
    site: Site, attention: Attention, rotary: Rotary | None, facts: Facts
) -> ir.Value:
    """Insert com.microsoft's GroupQueryAttention for causal attention without a cache."""
    heads = attention.heads
    attributes: dict[str, int | float] = {
        "num_heads": heads.heads,
        "kv_num_heads": heads.kv_heads,
    }
    if attention.scale != attention.default_scale:
        attributes["scale"] = attention.scale
    if attention.core.softcap:
        attributes["softcap"] = attention.core.softcap
    query, key, value = _operands(site, attention)
    tables: list[ir.Value] = []
    if rotary is not None:
        attributes["do_rotary"] = 1
        if rotary.is_interleaved:
            attributes["rotary_interleaved"] = 1
        query, key = rotary.query, rotary.key
        tables = [
            moved(site, table, *_as_table(site, table)) for table in (rotary.cos, rotary.sin)
        ]
    inputs = [query, key, value, None, None, *_lengths(site, heads, query, facts), *tables]
    site.scope.import_domain("com.microsoft", 1)
    made = site.scope.insert(
        site.node,
        "GroupQueryAttention",
        inputs,
        attributes,
        domain="com.microsoft",
        outputs=site.traits.grouped_attention_outputs,
        name=f"{heads.result.value.name}/attention",
    )
    return made[0]


def _as_table(site: Site, table: ir.Value) -> tuple[tuple[Size, ...], Moves]:
    """Return how [1, S, D / 2] becomes [S, D / 2]."""
    shape = site.shape(table)
    assert shape is not None
    return shape, Moves(after=shape[-2:]) if len(shape) == 3 else Moves()


def _lengths(site: Site, heads: Heads, query: ir.Value, facts: Facts) -> list[ir.Value]:
    """Return the last key's index for each batch, and the number of keys, as int32."""
    sizes = static((heads.batch, heads.keys))
    if sizes is not None:
        last = np.full(sizes[0], sizes[1] - 1, np.int32)
        return [site.constant(last), site.constant(np.array(sizes[1], np.int32))]
    to_int32 = {"to": ir.DataType.INT32.value}
    total = site.op("Cast", [size_of(site, heads.keys, heads, facts)], to_int32)
    op = site.op("Sub", [total, site.constant(np.array([1], np.int32))])
    batch = axis_size(site, query, 0)
    if isinstance(heads.batch, int):
        batch = site.constant((heads.batch,))
    elif source_of(site, heads.batch, heads, facts) is not None:
        batch = size_of(site, heads.batch, heads, facts)
    return [site.op("Expand", [op, batch]), total]
