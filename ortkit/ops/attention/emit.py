"""Writing an attention as one op, with what its operands and its mask need around it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.graph.dims import Size
from ortkit.graph.reshape import static
from ortkit.ops.attention.core import Bias, Core
from ortkit.ops.attention.facts import LOWEST, Facts
from ortkit.ops.attention.heads import Cache, Heads
from ortkit.ops.attention.masks import Mask, Term
from ortkit.ops.attention.operands import Operand, Piece
from ortkit.ops.attention.projections import Projections, packed
from ortkit.ops.attention.rotary import Rotary
from ortkit.rewrite.axes import Moves, moves, targets
from ortkit.rewrite.scope import Attributes
from ortkit.rewrite.site import Site

SPLIT_SIZES_ARE_AN_INPUT = 13
SHAPE_HAS_A_START = 15
AXES_ARE_INPUTS_SINCE = 18
#: Masks next to any score, and is no number that kernels take for -inf; by element type.
ALMOST_LOWEST = {ir.DataType.FLOAT: -3.4e38, ir.DataType.FLOAT16: -65472.0}
LOWEST_OF = {ir.DataType.FLOAT: LOWEST, ir.DataType.FLOAT16: -65504.0}


@dataclass(frozen=True)
class Attention:
    """An attention that was understood."""

    core: Core
    heads: Heads
    mask: Mask
    dtype: ir.DataType

    @property
    def scale(self) -> float:
        """What the product of queries and keys is multiplied with.

        The usual one, where the written one is that but for the rounding of its factors.
        """
        written, usual = self.core.scale * self.heads.scale, self.default_scale
        if usual is not None and math.isclose(written, usual, rel_tol=1e-6):
            return usual
        return written

    @property
    def default_scale(self) -> float | None:
        """The scale that ops take without being told, None if the head size is not known."""
        size = self.heads.head_size
        return 1 / math.sqrt(size) if isinstance(size, int) else None


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


def result(site: Site, heads: Heads, value: ir.Value) -> ir.Value:
    """Move the op's output to what it replaces."""
    found = heads.result
    return moved(site, value, found.layout.source_shape, found.way)


# ---- masks ----------------------------------------------------------------------------------


def bias(
    site: Site, attention: Attention, facts: Facts, *, keeps_nan: bool = False
) -> ir.Value | None:
    """Return what is added to the scores, [B or 1, H or 1, S, T], or None if nothing is.

    Args:
        site: The node that it is inserted before.
        attention: What it is for.
        facts: Where sizes can be taken from.
        keeps_nan: Whether queries without keys get NaN from an op that gives them zero.
    """
    total: ir.Value | None = None
    sizes: tuple[Size, ...] = (1, 1, 1, 1)
    for term in attention.mask.terms:
        value = _term(site, attention, term, facts)
        sizes = tuple(b if a == 1 else a for a, b in zip(sizes, term.sizes, strict=True))
        total = value if total is None else site.op("Add", [total, value])
    if total is None:
        return None
    if keeps_nan:
        total = _with_nan(site, attention, total)
    if sizes[2:] != (attention.heads.queries, attention.heads.keys):
        total = _expanded(site, attention, total, facts)
    return total


def _with_nan(site: Site, attention: Attention, mask: ir.Value) -> ir.Value:
    """Put NaN in the place of rows that are -inf throughout."""
    numpy_type = attention.dtype.numpy()
    minus_infinity = site.constant(np.array(-math.inf, numpy_type))
    highest = site.op("ReduceMax", [mask, site.constant((-1,))], {"keepdims": 1})
    is_empty = site.op("Equal", [highest, minus_infinity])
    return site.op("Where", [is_empty, site.constant(np.array(math.nan, numpy_type)), mask])


def condition(site: Site, attention: Attention, facts: Facts) -> ir.Value | None:
    """Return where scores are kept as bool, [B or 1, H or 1, S, T], if a bool says all.

    Only where the written form gives zero for queries without keys, as ops do with such a mask.
    """
    terms = attention.mask.terms
    if len(terms) != 1 or isinstance(terms[0].source, Bias):
        return None
    source = terms[0].source
    is_zero = attention.core.zeroes_nan and source.fill == -math.inf
    if not source.keeps or not (is_zero or attention.mask.keeps_rows):
        return None
    wanted = attention.heads.queries, attention.heads.keys
    value = _way(site, terms[0].value, terms[0], facts)
    return value if terms[0].sizes[2:] == wanted else _expanded(site, attention, value, facts)


def _term(site: Site, attention: Attention, term: Term, facts: Facts) -> ir.Value:
    numpy_type = attention.dtype.numpy()
    almost = ALMOST_LOWEST[attention.dtype]
    if not isinstance(term.source, Bias):
        fill = term.source.fill
        if fill > -math.inf:
            fill = max(fill, almost)
        value = _way(site, term.value, term, facts)
        zero = site.constant(np.array(0, numpy_type))
        masked = site.constant(np.array(fill, numpy_type))
        pair = (zero, masked) if term.source.keeps else (masked, zero)
        return site.op("Where", [value, *pair])
    adjusted = _without_lowest(site, attention, term, facts)
    value = _way(site, term.value, term, facts) if adjusted is None else adjusted
    if term.source.factor != 1:
        factor = site.constant(np.array(term.source.factor, numpy_type))
        value = site.op("Mul", [value, factor])
    return value


def _without_lowest(site: Site, attention: Attention, term: Term, facts: Facts) -> ir.Value | None:
    """Return a bias with the lowest number replaced, None if it may stay as it is.

    ONNX Runtime's kernels take that number for -inf; next to others there is no difference,
    but a query without any key is to get the mean of all values, as it was written.
    """
    assert isinstance(term.source, Bias)
    if not term.may_be_lowest or attention.mask.keeps_rows:
        return None
    numpy_type = attention.dtype.numpy()
    lowest = LOWEST_OF[attention.dtype]
    almost = site.constant(np.array(ALMOST_LOWEST[attention.dtype], numpy_type))
    node = site.producer(term.value, "Where")
    if node is not None:
        choices = [site.scalar(each) for each in node.inputs[1:]]
        if None not in choices:
            replaced = [
                almost if number == lowest else each
                for number, each in zip(choices, node.inputs[1:], strict=True)
            ]
            return _way(site, site.op("Where", [node.inputs[0], *replaced]), term, facts)
    value = _way(site, term.value, term, facts)
    is_lowest = site.op("Equal", [value, site.constant(np.array(lowest, numpy_type))])
    return site.op("Where", [is_lowest, almost, value])


def _way(site: Site, value: ir.Value, term: Term, facts: Facts) -> ir.Value:
    """Give a term's value, or one of the same shape, its four axes."""
    source, wanted = term.layout.source_shape, term.layout.shape
    way = next(moves(term.layout))
    if targets(source, way) is not None:
        value = moved(site, value, source, way)
    else:
        if way.before is not None:
            value = _reshaped(site, value, way.before, facts)
        if way.perm is not None:
            value = site.op("Transpose", [value], {"perm": way.perm})
        if way.after is not None:
            value = _reshaped(site, value, wanted, facts)
    if term.times == 1:
        return value
    if isinstance(term.times, int):
        return site.op("Tile", [value, site.constant((term.times, 1, 1, 1))])
    parts = [_size(site, term.times, facts), site.constant((1, 1, 1))]
    return site.op("Tile", [value, site.op("Concat", parts, {"axis": 0})])


def _reshaped(site: Site, value: ir.Value, sizes: tuple[Size, ...], facts: Facts) -> ir.Value:
    """Reshape to sizes of which several are known at run time only."""
    open_axis = next(axis for axis, size in enumerate(sizes) if not isinstance(size, int))
    parts = [
        site.constant((-1,)) if axis == open_axis else _size(site, size, facts)
        for axis, size in enumerate(sizes)
    ]
    return site.op("Reshape", [value, site.op("Concat", parts, {"axis": 0})])


def _expanded(site: Site, attention: Attention, value: ir.Value, facts: Facts) -> ir.Value:
    """Repeat a mask for every query and key: ops do not broadcast along these."""
    heads = attention.heads
    sizes = static((heads.queries, heads.keys))
    if sizes is not None:
        return site.op("Expand", [value, site.constant((1, 1, *sizes))])
    keys = _size(site, heads.keys, facts) if heads.caches is None else _total(site, heads, facts)
    parts = [site.constant((1, 1)), _size(site, heads.queries, facts), keys]
    return site.op("Expand", [value, site.op("Concat", parts, {"axis": 0})])


def _total(site: Site, heads: Heads, facts: Facts) -> ir.Value:
    """Return the number of cached and new keys; the op makes the value that has it."""
    assert heads.caches is not None
    past = heads.caches[0].past
    shape = site.shape(past)
    assert shape is not None
    new = heads.keys - shape[2]
    return site.op("Add", [_axis_size(site, past, 2), _size(site, new, facts)])


def _size(site: Site, size: Size, facts: Facts) -> ir.Value:
    """Return a size as a vector of one element."""
    if isinstance(size, int):
        return site.constant((size,))
    found = facts.source_of(size, site.node)
    assert found is not None, "the scores were made from a value with this size"
    return _axis_size(site, *found)


def _axis_size(site: Site, value: ir.Value, axis: int) -> ir.Value:
    if site.opset >= SHAPE_HAS_A_START:
        return site.op("Shape", [value], {"start": axis, "end": axis + 1})
    return site.op("Gather", [site.op("Shape", [value]), site.constant((axis,))])


def measure_elsewhere(site: Site, core: Core, facts: Facts) -> None:
    """Let the sizes of scores be read from what the scores are made from.

    A mask often has the shape of the scores that it is added to; these are not computed any more.
    """
    for node in core.measured:
        sizes = site.scope.shapes.contents(node.outputs[0])
        there = Site(site.scope, node, site.pass_name)
        if node.graph is not site.node.graph or not sizes:
            continue
        parts = [_size(there, size, facts) for size in sizes]
        made = parts[0] if len(parts) == 1 else there.op("Concat", parts, {"axis": 0})
        there.replace(made)


# ---- ops ------------------------------------------------------------------------------------


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
    return [
        operand(site, heads.query, pieces, gains[0] if gains else None),
        operand(site, heads.key, pieces),
        operand(site, heads.value, pieces),
    ]


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
    site: Site, attention: Attention, projections: Projections, facts: Facts
) -> ir.Value:
    """Insert com.microsoft's Attention, which holds the linear layers too."""
    weight, bias_of_layers = packed(site, projections)
    mask = bias(site, attention, facts)
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
    return site.op("GroupQueryAttention", inputs, attributes, domain="com.microsoft")


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
    total = site.op("Cast", [_size(site, heads.keys, facts)], to_int32)
    one = site.op("Sub", [total, site.constant(np.array([1], np.int32))])
    batch = _axis_size(site, query, 0)
    if isinstance(heads.batch, int):
        batch = site.constant((heads.batch,))
    elif facts.source_of(heads.batch, site.node) is not None:
        batch = _size(site, heads.batch, facts)
    return [site.op("Expand", [one, batch]), total]
