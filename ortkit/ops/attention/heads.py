"""Where batch, heads, positions and channels are in the operands of an attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size, product
from ortkit.ops.attention.core import Core
from ortkit.ops.attention.operands import (
    FORMS,
    Lead,
    Operand,
    Result,
    Traces,
    by_heads,
    operands_of,
    result_of,
)
from ortkit.ops.attention.trace import Station
from ortkit.refusal import RefusedError
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class Cache:
    """Keys or values of earlier calls: present = Concat(past, new)."""

    past: ir.Value
    """[B, H, P, D]"""
    present: ir.Value
    """[B, H, P + S, D]"""


@dataclass(frozen=True)
class Heads:
    """An attention's operands, arranged."""

    form: str
    batch: Size
    heads: int
    queries: Size
    """S, the number of query positions."""
    keys: Size
    """T, the number of key positions, cached ones included."""
    head_size: Size
    value_size: Size
    query: Operand
    key: Operand
    value: Operand
    result: Result
    caches: tuple[Cache, Cache] | None = None
    """Of keys and values."""

    @property
    def kv_heads(self) -> int:
        """How many heads keys and values have; each serves as many queries' heads in a row."""
        return self.key.heads

    @property
    def new_keys(self) -> Size:
        """The number of key positions that are not cached."""
        return self.key.layout.shape[1 if self.form == "3d" else 2]

    @property
    def scale(self) -> float:
        """What the operands' own factors add to that of the scores."""
        return self.query.scale * self.key.scale

    @property
    def cost(self) -> tuple[int, int, int]:
        """Nodes that copy, then all nodes; kernels prefer three axes."""
        copies, nodes = self.result.cost
        for operand in (self.query, self.key, self.value):
            copies += operand.cost[0]
            nodes += operand.cost[1]
        # A cache that the op takes is not copied once more.
        saved = 2 if self.caches is not None else 0
        return copies - saved, nodes - saved, FORMS.index(self.form)


def arrangements(site: Site, core: Core, *, shares: bool = True) -> Iterator[Heads]:
    """Yield the ways to arrange the operands of `core`, the cheapest first.

    Args:
        site: Its Softmax.
        core: The attention as it is written.
        shares: Whether a key head may serve several query heads without being repeated.

    Raises:
        RefusedError: With what stands in the way of all of them.
    """
    shape = site.shape(core.scores)
    if shape is None or len(shape) < 2 or not all(map(site.shape, (core.query, core.value))):
        raise RefusedError("the shapes of its operands are unknown")
    if 0 in shape:
        raise RefusedError("its scores are empty")
    traces, free, others = Traces(site), 0, list[Heads]()
    for lead in _leads(_queries(core, traces), shape[:-2]):
        for form in FORMS:
            heads = _arranged(site, core, traces, lead, form, shares)
            if heads is not None and heads.cost[:2] <= (0, 0):
                free += 1
                yield heads
            elif heads is not None:
                others.append(heads)
    if not others and not free:
        raise RefusedError("batch and heads cannot be told apart in its operands")
    yield from sorted(others, key=lambda heads: heads.cost)


def _queries(core: Core, traces: Traces) -> list[Station]:
    """Return where queries may be taken from; a gain is multiplied with them as they are."""
    return traces.back(core.query)[: 1 if core.gains else None]


def _leads(stations: Sequence[Station], sizes: Sequence[Size]) -> Iterator[Lead]:
    """Yield the ways to part the leading axes; heads are most often the last of them."""
    factors = max(
        ([f for group in station.layout.result[:-2] for f in group] for station in stations),
        key=len,
        default=[],
    )
    last = max(len(factors) - 1, 0)
    for count in (last, *(n for n in range(len(factors), -1, -1) if n != last)):
        batch, heads = (
            product(f.size for f in part) for part in (factors[:count], factors[count:])
        )
        if isinstance(heads, int):
            yield Lead(tuple(sizes), batch, heads)


def _arranged(
    site: Site, core: Core, traces: Traces, lead: Lead, form: str, shares: bool
) -> Heads | None:
    query = operands_of(_queries(core, traces), lead, form).get(lead.heads)
    if query is None:
        return None
    pair = _keys_and_values(site, core, traces, lead, form, shares)
    result = result_of(site, core.result, lead, form, is_value_lhs=core.is_value_lhs)
    if result is None or pair is None:
        return None
    key, value, caches = pair
    scores, ends = site.shape(core.scores), site.shape(core.value)
    channels = site.shape(core.query)
    assert scores is not None and ends is not None and channels is not None
    return Heads(
        form=form,
        batch=lead.batch,
        heads=lead.heads,
        queries=scores[-2],
        keys=scores[-1],
        head_size=channels[-1],
        value_size=ends[-2 if core.is_value_lhs else -1],
        query=query,
        key=key,
        value=value,
        result=result,
        caches=caches,
    )


def _keys_and_values(
    site: Site, core: Core, traces: Traces, lead: Lead, form: str, shares: bool
) -> tuple[Operand, Operand, tuple[Cache, Cache] | None] | None:
    """Return keys and values with the same number of heads, the cheapest ones."""
    cached = _cached(site, core, traces, lead, form)
    if cached is not None and cached[0].heads == cached[1].heads:
        is_accepted = shares or cached[0].heads == lead.heads
        if is_accepted:
            return cached
    keys = operands_of(traces.back(core.key), lead, form, swapped=True)
    values = operands_of(traces.plain(core.value), lead, form, swapped=core.is_value_lhs)
    pairs = [
        (key, values[heads], None)
        for heads, key in keys.items()
        if heads in values and not lead.heads % heads and (shares or heads == lead.heads)
    ]

    def cost(pair: tuple[Operand, Operand, None]) -> tuple[int, int]:
        return pair[0].cost[0] + pair[1].cost[0], pair[0].cost[1] + pair[1].cost[1]

    return min(pairs, key=cost, default=None)


def _cached(
    site: Site, core: Core, traces: Traces, lead: Lead, form: str
) -> tuple[Operand, Operand, tuple[Cache, Cache]] | None:
    """Return new keys and values with their caches, if both have one."""
    found = [
        _behind_cache(site, core.key, traces, lead, form, swapped=True),
        _behind_cache(site, core.value, traces, lead, form, swapped=core.is_value_lhs),
    ]
    key, value = found
    if key is None or value is None or value[0].scale != 1:
        return None
    pasts = [site.shape(cache.past) for cache in (key[1], value[1])]
    if any(past is None or past[2] != (pasts[0] or ())[2] for past in pasts):
        return None
    return key[0], value[0], (key[1], value[1])


def _behind_cache(
    site: Site, end: ir.Value, traces: Traces, lead: Lead, form: str, *, swapped: bool
) -> tuple[Operand, Cache] | None:
    stations = traces.back(end)
    if not stations or stations[-1].fixed:
        return None
    far = stations[-1]
    layout = by_heads(far, lead, swapped=swapped)
    node = site.producer(far.value, "Concat")
    if layout is None or node is None or layout.source != layout.result:
        return None
    if len(node.inputs) != 2 or Site(site.scope, node, "").int("axis", 0) % 4 != 2:
        return None
    past, new = node.inputs
    shape = site.shape(new)
    heads = product(factor.size for factor in layout.result[1])
    if past is None or new is None or shape is None or not isinstance(heads, int):
        return None
    if len(far.value.uses()) != 1:
        # What else reads the present might be needed before the attention is computed.
        return None
    own = Lead((lead.batch, heads), lead.batch, heads)
    operand = operands_of(traces.plain(new), own, form).get(heads)
    if operand is None:
        return None
    return replace(operand, scale=far.scale), Cache(past, far.value)
