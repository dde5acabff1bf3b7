"""simplify-attention: an Attention that reads heads apart reads them where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit.ops.attention import emit
from ortkit.ops.attention.operands import Lead, Operand, Result, operands_of, result_of
from ortkit.ops.attention.trace import trace_back
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Its scale by default is one over the root of this axis of the query.
CHANNELS = -1


@dataclass(frozen=True)
class SimplifyAttention(NodePass):
    """Drop the Transposes around an Attention, and keys and values repeated for it.

    Before:
        q4 = Transpose<perm=[0, 2, 1, 3]>(Reshape(q, [0, 0, H, D]));  k4, v4 alike
        y = Reshape(Transpose<perm=[0, 2, 1, 3]>(Attention(q4, k4, v4)), [0, 0, H * D])
    After:
        y = Attention<q_num_heads=H, kv_num_heads=H>(q, k, v)

    Skips:
        * Where the form with three axes would copy as much.
        * An Attention whose scores are read.

    Source:
        ONNX Attention-23: inputs of three axes have their heads side by side.
    """

    name: ClassVar[str] = "simplify-attention"
    ops: ClassVar[Sequence[str]] = ("Attention",)

    def rewrite(self, site: Site) -> None:
        node = site.node
        if len(node.inputs) < 3 or any(site.rank(value) != 4 for value in node.inputs[:3]):
            return
        if len(node.outputs) > 3 and (node.outputs[3].uses() or node.outputs[3].is_graph_output()):
            site.miss("its scores are read")
            return
        found = _arranged(site)
        if found is None:
            return
        (query, key, value), result = found
        scale = _scale(site, query, key)
        if scale is None or not scale > 0:
            return
        if not site.claim("heads"):
            return
        pieces: emit.Pieces = {}
        made = [emit.operand(site, operand, pieces) for operand in (query, key, value)]
        attributes: dict[str, int | float | str] = {
            name: attribute.value
            for name, attribute in node.attributes.items()
            if name not in ("q_num_heads", "kv_num_heads", "scale")
        }
        attributes |= {"q_num_heads": query.heads, "kv_num_heads": key.heads, "scale": scale}
        outputs = site.scope.insert(
            node,
            node.op_type,
            [*made, *node.inputs[3:]],
            attributes,
            outputs=min(len(node.outputs), 3),
            name=f"{site.output.name}/heads",
        )
        for old, new in zip(node.outputs[1:3], outputs[1:], strict=False):
            site.replace(new, old)
        moved = emit.moved(site, outputs[0], result.layout.source_shape, result.way)
        site.replace(moved, result.value)


def _arranged(site: Site) -> tuple[tuple[Operand, Operand, Operand], Result] | None:
    """Return operands and result in the form with three axes, if that saves copies."""
    values = site.node.inputs[:3]
    leads, sources = [], []
    for value in values:
        shape = site.shape(value)
        if value is None or shape is None or not isinstance(shape[1], int) or 0 in shape:
            return None
        leads.append(Lead(shape[:2], shape[0], shape[1]))
        sources.append(trace_back(site, value))
    query = operands_of(sources[0], leads[0], "3d").get(leads[0].heads)
    keys = operands_of(sources[1], leads[1], "3d")
    plain = [station for station in sources[2] if station.scale == 1]
    others = operands_of(plain, leads[2], "3d")
    has_past = site.input(4) is not None
    pairs = [
        (keys[heads], others[heads])
        for heads in keys.keys() & others.keys()
        # A cache has as many heads as the keys that it is joined with.
        if leads[0].heads % heads == 0 and (not has_past or heads == leads[1].heads)
    ]
    result = result_of(site, site.output, leads[0], "3d")
    if query is None or result is None or not pairs:
        return None
    key, kept = min(pairs, key=lambda pair: (pair[0].cost, pair[1].cost))
    now = sum(stations[0].before[0] for stations in sources)
    now_after = result_of(site, site.output, leads[0], "4d")
    then = query.cost[0] + key.cost[0] + kept.cost[0] + result.cost[0]
    if now_after is None or then >= now + now_after.cost[0]:
        return None
    return (query, key, kept), result


def _scale(site: Site, query: Operand, key: Operand) -> float | None:
    """Return the scale with the factors that operands had on their way."""
    shape = site.shape(site.input(0))
    size = None if shape is None else shape[CHANNELS]
    usual = size**-0.5 if isinstance(size, int) and size else None
    written = site.float("scale", 0.0) or usual
    return None if written is None else written * query.scale * key.scale
