"""Writing a mask as attention ops take it: [B or 1, H or 1, S, T], added to the scores or bool."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortkit.analysis.axes import moves, targets
from ortkit.graph.shapes.reshape import static
from ortkit.graph.symbolic.dims import Size
from ortkit.ops.attention.core import Bias, Choice, Floor
from ortkit.ops.attention.emit import cast_to, moved
from ortkit.ops.attention.heads import Heads
from ortkit.ops.attention.mask_values import LOWEST, Facts
from ortkit.ops.attention.masks import Term
from ortkit.ops.attention.sizes import size_of
from ortkit.ops.attention.understood import ALMOST_LOWEST, Attention, deepest
from ortkit.rewrite.site import Site


def standard(site: Site, attention: Attention, facts: Facts) -> ir.Value | None:
    """Return a mask for the default domain's Attention: a condition where that says all."""
    mask = condition(site, attention, facts)
    if mask is not None:
        return mask
    keeps_nan = attention.mask.may_give_nan and not attention.core.zeroes_nan
    return bias(site, attention, facts, keeps_nan=keeps_nan)


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
        if isinstance(term, Floor):
            total = None if total is None else _floored(site, attention, total, term.number)
            continue
        sizes = tuple(b if a == 1 else a for a, b in zip(sizes, term.sizes, strict=True))
        if isinstance(term.source, Choice):
            total = _chosen(site, attention, term, term.source, total, facts)
        else:
            value = _added(site, attention, term, term.source, facts)
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
    if len(terms) != 1 or isinstance(terms[0], Floor) or isinstance(terms[0].source, Bias):
        return None
    source = terms[0].source
    is_zero = attention.core.zeroes_nan and source.fill == -math.inf
    if not source.keeps or not (is_zero or attention.mask.keeps_rows):
        return None
    wanted = attention.heads.queries, attention.heads.keys
    value = _way(site, terms[0].value, terms[0], attention.heads, facts)
    return value if terms[0].sizes[2:] == wanted else _expanded(site, attention, value, facts)


def _floored(site: Site, attention: Attention, mask: ir.Value, number: float) -> ir.Value:
    if number == -math.inf:
        return mask
    floor = max(number, ALMOST_LOWEST[attention.dtype])
    return site.op("Max", [mask, site.constant(np.array(floor, attention.dtype.numpy()))])


def _chosen(
    site: Site,
    attention: Attention,
    term: Term,
    choice: Choice,
    total: ir.Value | None,
    facts: Facts,
) -> ir.Value:
    """Return the mask with what the condition leaves out; `total` is what was there before."""
    numpy_type = attention.dtype.numpy()
    fill = choice.fill
    if fill > -math.inf:
        fill = max(min(fill, deepest(attention) or fill), ALMOST_LOWEST[attention.dtype])
    condition = _way(site, term.value, term, attention.heads, facts)
    kept = site.constant(np.array(0, numpy_type)) if total is None else total
    masked = site.constant(np.array(fill, numpy_type))
    pair = (kept, masked) if choice.keeps else (masked, kept)
    return site.op("Where", [condition, *pair])


def _added(site: Site, attention: Attention, term: Term, added: Bias, facts: Facts) -> ir.Value:
    value = _chosen_again(site, attention, term, added)
    if value is not None:
        return _way(site, value, term, attention.heads, facts)
    value = _way(site, term.value, term, attention.heads, facts)
    wide = _computed_in(site, attention, term)
    value = cast_to(site, value, wide)
    if added.factor != 1:
        factor = site.constant(np.array(added.factor, wide.numpy()))
        value = site.op("Mul", [value, factor])
    if not _replaces_lowest(attention, term):
        return cast_to(site, value, attention.dtype)
    is_lowest = site.op("Equal", [value, site.constant(np.array(LOWEST[wide], wide.numpy()))])
    instead = site.constant(np.array(ALMOST_LOWEST[attention.dtype], attention.dtype.numpy()))
    return site.op("Where", [is_lowest, instead, cast_to(site, value, attention.dtype)])


def _replaces_lowest(attention: Attention, term: Term) -> bool:
    """Say whether the lowest number has to be replaced in a bias.

    ONNX Runtime's kernels take that number for -inf. Next to others there is no difference,
    but a query without any key is to get the mean of all values, as it was written.
    """
    return term.may_be_lowest and not attention.mask.keeps_rows


def _computed_in(site: Site, attention: Attention, term: Term) -> ir.DataType:
    """Return the type that a bias is added in as it is written."""
    dtype = site.dtype(term.value)
    return dtype if dtype in LOWEST else attention.dtype


def _chosen_again(site: Site, attention: Attention, term: Term, added: Bias) -> ir.Value | None:
    """Return a bias that chooses between two numbers with these as they are to be added."""
    node = site.producer(term.value, "Where")
    wide = _computed_in(site, attention, term)
    if node is None or not _replaces_lowest(attention, term):
        return None
    arrays = [site.array(each, 1) for each in node.inputs[1:]]
    if any(array is None or array.size != 1 for array in arrays):
        return None
    constants = []
    for old, array in zip(node.inputs[1:], arrays, strict=True):
        assert array is not None
        with np.errstate(over="ignore"):
            number = np.asarray(array * np.array(added.factor, wide.numpy()), wide.numpy())
            is_lowest, number = number == LOWEST[wide], number.astype(attention.dtype.numpy())
        almost = np.array(ALMOST_LOWEST[attention.dtype], number.dtype)
        number = np.where(is_lowest, almost, number)
        is_same = number.dtype == array.dtype and (number == array).all()
        constants.append(old if is_same else site.constant(number.reshape(array.shape)))
    return site.op("Where", [node.inputs[0], *constants])


def _way(site: Site, value: ir.Value, term: Term, heads: Heads, facts: Facts) -> ir.Value:
    """Give a term's value, or one of the same shape, its four axes."""
    source, wanted = term.layout.source_shape, term.layout.shape
    way = next(moves(term.layout))
    if targets(source, way) is not None:
        value = moved(site, value, source, way)
    else:
        if way.before is not None:
            value = _reshaped(site, value, way.before, heads, facts)
        if way.perm is not None:
            value = site.op("Transpose", [value], {"perm": way.perm})
        if way.after is not None:
            value = _reshaped(site, value, wanted, heads, facts)
    if term.times == 1:
        return value
    if isinstance(term.times, int):
        return site.op("Tile", [value, site.constant((term.times, 1, 1, 1))])
    parts = [size_of(site, term.times, heads, facts), site.constant((1, 1, 1))]
    return site.op("Tile", [value, site.op("Concat", parts, {"axis": 0})])


def _reshaped(
    site: Site, value: ir.Value, sizes: tuple[Size, ...], heads: Heads, facts: Facts
) -> ir.Value:
    """Reshape to sizes of which several are known at run time only."""
    open_axis = next(axis for axis, size in enumerate(sizes) if not isinstance(size, int))
    parts = [
        site.constant((-1,)) if axis == open_axis else size_of(site, size, heads, facts)
        for axis, size in enumerate(sizes)
    ]
    return site.op("Reshape", [value, site.op("Concat", parts, {"axis": 0})])


def _expanded(site: Site, attention: Attention, value: ir.Value, facts: Facts) -> ir.Value:
    """Repeat a mask for every query and key: ops do not broadcast along these."""
    heads = attention.heads
    sizes = static((heads.queries, heads.keys))
    if sizes is not None:
        return site.op("Expand", [value, site.constant((1, 1, *sizes))])
    sizes_at_run = [size_of(site, size, heads, facts) for size in (heads.queries, heads.keys)]
    parts = [site.constant((1, 1)), *sizes_at_run]
    return site.op("Expand", [value, site.op("Concat", parts, {"axis": 0})])
