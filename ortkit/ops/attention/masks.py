"""What is added to attention scores or chosen in their place: what it is, and its shape."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortkit.analysis.axes import Layout, moves, targets
from ortkit.graph.shapes.reshape import static
from ortkit.graph.symbolic.dims import Size, multiply, product
from ortkit.ops.attention.core import MASKED, Bias, Choice, Core, Floor
from ortkit.ops.attention.heads import Heads
from ortkit.ops.attention.mask_values import LOWEST, Facts
from ortkit.ops.attention.sizes import source_of
from ortkit.ops.attention.trace import Station, trace_back
from ortkit.ops.attention.value_ranges import Held, combined
from ortkit.refusal import RefusedError
from ortkit.rewrite.site import Site

#: Masks, whatever is chosen in the place of other scores.
FAR = -1e32
#: Scores of one head that a mask is looked at for.
MOST_SCORES = 1 << 27


@dataclass(frozen=True)
class Term:
    """A part of a mask, arranged as [B or 1, H or 1, S or 1, T or 1]."""

    source: Bias | Choice
    value: ir.Value
    layout: Layout
    """From the value to four axes."""
    sizes: tuple[Size, ...]
    """Of the four axes; those that are neither 1 nor the scores' own are so at run time."""
    times: Size
    """How often it is repeated along the first of these, for batches outside of others."""
    held: Held | None
    """The numbers that are added or put in the place of scores, None if they may be any."""
    may_be_lowest: bool
    """Whether it may hold the lowest finite number, which kernels take for -inf."""


@dataclass(frozen=True)
class Mask:
    """What masks an attention's scores."""

    terms: tuple[Term | Floor, ...] = ()
    """In the order in which they are applied."""
    is_causal: bool = False
    """Key j is seen by query i where j <= i + T - S, and nothing else is masked."""
    keeps_rows: bool = False
    """Whether every query provably sees a key."""

    may_be_infinite: bool = False
    """Whether all terms together may give -inf."""

    @property
    def may_give_nan(self) -> bool:
        """Whether a query may see no key at all, which then gives NaN in the written form."""
        return self.may_be_infinite and not self.keeps_rows

    @property
    def fills_alone(self) -> bool:
        """Whether one choice is all that masks."""
        return sum(isinstance(term, Term) for term in self.terms) == 1

    @property
    def has_one_level(self) -> bool:
        """Whether masked scores are one finite number, or far below, or -inf.

        That number may then be any between zero and what is far below.
        """
        terms = [term for term in self.terms if isinstance(term, Term)]
        fills = {term.source.fill for term in terms if isinstance(term.source, Choice)}
        added = [term.held for term in terms if isinstance(term.source, Bias)]
        return len(fills - {-np.inf}) == 1 and all(
            held is not None
            and not held.has_between
            and all(number == 0 or number <= FAR for number in held.numbers)
            for held in added
        )

    @property
    def highest_fill(self) -> float:
        """The highest number that is put in the place of scores; -inf without any."""
        terms = [term for term in self.terms if isinstance(term, Term)]
        fills = (term.source.fill for term in terms if isinstance(term.source, Choice))
        return max(fills, default=-np.inf)

    @property
    def differs_by_head(self) -> bool:
        """Whether heads may mask differently."""
        return any(isinstance(term, Term) and term.sizes[1] != 1 for term in self.terms)


def read_mask(site: Site, facts: Facts, core: Core, heads: Heads) -> Mask:
    """Return the mask of `core`, proved to be causal or nothing where it is.

    Raises:
        RefusedError: It cannot be given to an attention op.
    """
    if not any(isinstance(step, Bias | Choice) for step in core.steps):
        return Mask(keeps_rows=True)
    patterns = _patterns(facts, core, heads)
    if patterns and all(pattern.all() for pattern in patterns):
        return Mask(keeps_rows=True)
    aligned = heads.queries == heads.new_keys
    if patterns and aligned and all(_is_causal(pattern) for pattern in patterns):
        return Mask(is_causal=True, keeps_rows=True)
    keeps_rows = bool(patterns) and all(p.any(axis=-1).all() for p in patterns)
    terms = tuple(
        step if isinstance(step, Floor) else _term(site, facts, step, heads) for step in core.steps
    )
    return Mask(terms, False, keeps_rows, _may_be_infinite(terms, core))


def _may_be_infinite(terms: Sequence[Term | Floor], core: Core) -> bool:
    """Say whether scores may be -inf when all of the mask is applied; sums may overflow."""
    dtype = core.precision or core.dtype
    total: Held | None = Held((0.0,))
    for term in terms:
        if isinstance(term, Floor):
            total = Held((term.number, 0.0), has_between=True)
        elif total is None or term.held is None:
            total = None
        elif isinstance(term.source, Choice):
            total = total.joined(term.held)
        else:
            total = combined(operator.add, total, term.held, dtype)
    return total is None or total.is_infinite


def _patterns(facts: Facts, core: Core, heads: Heads) -> list[np.ndarray]:
    """Return which scores are kept at several sizes; empty if that depends on data.

    Returns:
        Bool arrays [..., S, T]; the others are masked.
    """
    values = [
        step.value if isinstance(step, Bias) else step.condition
        for step in core.steps
        if not isinstance(step, Floor)
    ]
    found, ends = [], (heads.queries, heads.keys)
    for sizes in facts.trials(values, ends):
        kept = _kept(facts, core, heads, sizes)
        # Where the sizes do not fit each other no run has them, as where a table of positions
        # ends before the past and the new ones together do: nothing is shown by them.
        if kept is None:
            return []
        found.append(kept)
    if found and not static(ends):
        short = (_kept(facts, core, heads, sizes) for sizes in facts.short_trials(values, ends))
        found += [kept for kept in short if kept is not None]
    return found


def _kept(facts: Facts, core: Core, heads: Heads, sizes: Mapping[str, int]) -> np.ndarray | None:
    """Return which scores are kept at these sizes; None where that depends on data.

    None, too, where masks of these sizes do not broadcast to the scores.
    """
    queries, keys = (facts.size(size, sizes) for size in (heads.queries, heads.keys))
    if queries is None or keys is None or queries * keys > MOST_SCORES:
        return None
    kept: np.ndarray = np.ones((queries, keys), np.bool_)
    for step in core.steps:
        if isinstance(step, Bias):
            array = facts.at(step.value, sizes)
            if array is None or array.dtype.kind != "f":
                return None
            scaled = array.astype(np.float64) * step.factor
            if not ((scaled == 0) | (scaled <= MASKED)).all():
                return None
            keeps = scaled == 0
        elif isinstance(step, Choice):
            array = facts.at(step.condition, sizes)
            if array is None:
                return None
            keeps = array.astype(np.bool_) == step.keeps
        else:
            continue
        try:
            kept = kept & keeps
        except ValueError:
            return None
        if kept.shape[-2:] != (queries, keys):
            return None
    return kept


def _is_causal(kept: np.ndarray) -> bool:
    rows, columns = kept.shape[-2:]
    wanted = np.tril(np.ones((rows, columns), np.bool_), columns - rows)
    return bool((kept == wanted).all())


def _term(site: Site, facts: Facts, source: Bias | Choice, heads: Heads) -> Term:
    value = source.value if isinstance(source, Bias) else source.condition
    found = _arranged(site, value, source.scores, heads) or _as_it_is(
        site, value, source.scores, heads
    )
    if found is None:
        raise RefusedError(f"its mask {value.name!r} has not the axes of its scores")
    times = found[3]
    if not isinstance(times, int) and source_of(site, times, heads, facts) is None:
        raise RefusedError(f"its mask {value.name!r} is repeated a number of times nobody knows")
    dtype = site.dtype(source.scores) or ir.DataType.FLOAT
    held = _held(facts, source, dtype)
    return Term(source, *found, held, held is None or held.reaches(LOWEST.get(dtype, -np.inf)))


Arranged = tuple[ir.Value, Layout, tuple[Size, ...], Size]


def _arranged(site: Site, value: ir.Value, scores: ir.Value, heads: Heads) -> Arranged | None:
    """Return the cheapest source of a mask, how to go on from there, and the sizes that gives."""
    best: tuple[int, Arranged] | None = None
    shape = site.shape(scores)
    for station in trace_back(site, value):
        if station.scale != 1 or station.fixed or shape is None:
            continue
        found = _by_scores(station, shape, heads)
        way = None if found is None else next(moves(found[0]), None)
        if found is None or way is None:
            continue
        layout, times = found
        is_constant = targets(layout.source_shape, way) is not None
        # A target that is computed takes some nodes of its own.
        cost = station.before[1] + way.count + (0 if is_constant else 4)
        if best is None or cost <= best[0]:
            sizes = (multiply(times, layout.shape[0]), *layout.shape[1:])
            best = cost, (station.value, layout, sizes, times)
    return None if best is None else best[1]


def _as_it_is(site: Site, value: ir.Value, scores: ir.Value, heads: Heads) -> Arranged | None:
    """Return a mask that is added to scores with batch and heads apart, whatever its sizes.

    They broadcast in every run that succeeds; what is not known to fit is expanded.
    """
    shape, wanted = site.shape(value), site.shape(scores)
    if shape is None or wanted is None or len(wanted) != 4 or 0 in shape:
        return None
    if wanted[:2] != (heads.batch, heads.heads) or len(shape) > 4:
        return None
    layout = Layout.of(shape)
    ones: tuple[tuple[()], ...] = ((),) * (4 - len(shape))
    wide = replace(layout, result=(*ones, *layout.result))
    return value, wide, (*(1,) * len(ones), *shape), 1


def _held(facts: Facts, source: Bias | Choice, dtype: ir.DataType) -> Held | None:
    """Return the numbers that are added to scores of this type, or put in their place."""
    if isinstance(source, Choice):
        return Held((source.fill,))
    held = facts.held(source.value)
    return None if held is None else combined(operator.mul, held, Held((source.factor,)), dtype)


def _by_scores(
    station: Station, shape: Sequence[Size], heads: Heads
) -> tuple[Layout, Size] | None:
    """Return a station's layout as batch, heads, queries and keys; what is repeated has size 1.

    Returns:
        The layout, and how often its batches are repeated where there are some.
    """
    if len(station.layout.result) > len(shape):
        return None
    wide = station.layout.expanded(shape)
    four = None
    if wide is not None:
        four = wide.reshaped((heads.batch, heads.heads, heads.queries, heads.keys))
    if four is None:
        return None
    repeated, times, groups = set(four.repeated), product(()), []
    for axis, group in enumerate(four.result):
        own = tuple(factor for factor in group if factor not in repeated)
        if own and own != group:
            if axis > 0 or group[-len(own) :] != own:
                return None
            times = product(factor.size for factor in group[: -len(own)])
        groups.append(own)
    return replace(four, result=tuple(groups)), times
