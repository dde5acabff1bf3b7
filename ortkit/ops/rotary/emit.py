"""RotaryEmbedding in the form that ONNX Runtime takes for given angles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.ops.rotary.channels import LabeledValue
from ortkit.ops.rotary.layout import Layout, choose_layout
from ortkit.ops.rotary.match import Rotation
from ortkit.ops.rotary.steps import Label
from ortkit.ops.rotary.tables import Picked, make_picked, picked
from ortkit.rewrite.site import Site

ROTARY_SINCE_OPSET = 23
AXES_ARE_INPUTS_SINCE_OPSET = 13
ALLOWZERO_SINCE_OPSET = 14
OPERATOR = "RotaryEmbedding"
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Angles:
    """Cosines and sines of all pairs, and along which axes they vary."""

    cos: Picked
    sin: Picked
    per_batch: bool
    """Whether they are given for each [P, Q]; else for each Q, the same for every P."""
    is_standard: bool
    """Whether the operator of opset 23 is used."""
    channels: int
    """Channels of each head, those that pass among them."""


def angles_for(
    site: Site, candidates: Sequence[LabeledValue], found: Rotation, shape: Sequence[Size]
) -> tuple[Layout, Angles] | str:
    """Return layout and angles of a rotation, or the reason why there is no form for it."""
    cos, sin = (picked(candidates, wanted, 3) for wanted in (found.cos, found.sin))
    if cos is None or sin is None:
        return "cosines or sines are in no value of their own"
    live = {_axis(label) for label in (*cos.labels, *sin.labels)}
    axes = frozenset(a for a in live if a is not None and shape[a] != 1)
    if not axes:
        # One position: any axis of length one may be the sequence.
        axes = frozenset([a for a in range(len(shape) - 1) if shape[a] == 1][-1:])
    if not axes:
        return "angles are the same at every position"
    homes = found.homes[:1] if found.is_joined else found.homes
    layout = choose_layout(site, homes, axes, found.count)
    if layout is None:
        return "angles vary along heads, or the number of heads is not known"
    if _is_swapped(cos, layout) or _is_swapped(sin, layout):
        return "angles have their axes in another order than the rotated value"
    varies = layout.positions[0] in axes or not (_has_each(cos, layout) and _has_each(sin, layout))
    if not varies and found.is_partial and layout.heads is None:
        return "the number of heads is not known"
    standard = (varies or layout.sizes[0] == 1) and (
        site.opset >= ROTARY_SINCE_OPSET or site.scope.require_opset(ROTARY_SINCE_OPSET)
    )
    if varies and not standard and not (layout.is_flat and site.opset >= ALLOWZERO_SINCE_OPSET):
        return "angles that differ along the batch need opset 23 in this layout"
    if not varies and not standard:
        flat = [picked(candidates, wanted, 2) for wanted in (found.cos, found.sin)]
        cos, sin = (
            item if item is not None and _has_each(item, layout) else old
            for item, old in zip(flat, (cos, sin), strict=True)
        )
    return layout, Angles(cos, sin, varies or standard, standard, found.count)


def _is_swapped(table: Picked, layout: Layout) -> bool:
    found = [_axis(label) for label in table.labels]
    kept = [axis for axis in found if axis is not None and axis in layout.positions]
    return kept != sorted(kept, key=layout.positions.index)


def _has_each(table: Picked, layout: Layout) -> bool:
    """Say whether the table has a row for each Q for certain."""
    return layout.positions[1] in table.labels or layout.sizes[1] == 1


def _axis(label: Label) -> int | None:
    if isinstance(label, str):
        return int(label.removeprefix("~"))
    return label


def emit(site: Site, found: Rotation, layout: Layout, angles: Angles) -> ir.Value:
    """Insert the rotation before the site's node and return the rotated value."""
    x = layout.value
    if found.is_joined:
        x = site.op("Concat", [home.value for home in found.homes], {"axis": -1})
    if layout.into is not None:
        x = site.op("Reshape", [x, site.constant(layout.into)])
    tables = [
        _fitted(site, layout, angles, table, x, name)
        for table, name in ((angles.cos, "cos"), (angles.sin, "sin"))
    ]
    attributes: dict[str, int] = {}
    if found.interleaved:
        attributes["interleaved"] = 1
    if found.is_partial:
        attributes["rotary_embedding_dim"] = found.width
    if layout.heads is not None and (
        layout.is_flat or (found.is_partial and not angles.is_standard)
    ):
        attributes["num_heads"] = layout.heads
    if angles.is_standard:
        made = site.op(OPERATOR, [x, *tables], attributes)
    else:
        made = _own_operator(site, x, tables, angles, attributes)
    return _way_back(site, layout, made)


def _way_back(site: Site, layout: Layout, made: ir.Value) -> ir.Value:
    if isinstance(layout.back, ir.Node):
        allowzero = layout.back.attributes.get("allowzero")
        keeps = {"allowzero": 1} if allowzero is not None and allowzero.as_int() else None
        made = site.op("Reshape", [made, layout.back.inputs[1]], keeps)
    elif layout.back is not None:
        made = site.op("Reshape", [made, site.constant(layout.back)])
    if layout.perm is not None:
        made = site.op("Transpose", [made], {"perm": layout.perm})
    return made


def _own_operator(
    site: Site,
    x: ir.Value,
    tables: Sequence[ir.Value],
    angles: Angles,
    attributes: Mapping[str, int],
) -> ir.Value:
    """Insert ONNX Runtime's own operator; its tables begin at position 0 in each row of x.

    Angles for each [P, Q]: x is one row of P * Q positions.
    """
    site.scope.import_domain(MICROSOFT, 1)
    begin = site.constant(np.zeros(1, np.int64))
    if not angles.per_batch:
        return site.op(OPERATOR, [x, begin, *tables], attributes, domain=MICROSOFT)
    rows = site.constant([-1, angles.cos.count])
    joined = [site.op("Reshape", [table, rows]) for table in tables]
    shape = site.op("Shape", [x])
    width = attributes["num_heads"] * angles.channels
    row = site.op("Reshape", [x, site.constant([1, -1, width])])
    made = site.op(OPERATOR, [row, begin, *joined], attributes, domain=MICROSOFT)
    return site.op("Reshape", [made, shape], {"allowzero": 1})


def _fitted(
    site: Site, layout: Layout, angles: Angles, table: Picked, x: ir.Value, name: str
) -> ir.Value:
    """Return the table as [Q, W], or as [P, Q, W] where it is given for each P."""
    value = make_picked(site, table, f"{site.output.name}/{name}")
    first, second = layout.positions
    axes = [_axis(label) for label in table.labels]
    if not angles.per_batch:
        if len(axes) == 1:
            return value
        return site.op("Reshape", [value, site.constant([-1, table.count])])
    has_first, has_second = first in axes and first is not None, second in axes
    if has_first and has_second:
        value = _squeezed(site, value, [i for i, a in enumerate(axes) if a not in (first, second)])
    elif has_first:
        value = site.op("Reshape", [value, site.constant([-1, 1, table.count])])
    elif axes != [None, second]:
        value = site.op("Reshape", [value, site.constant([1, -1, table.count])])
    exact = {label for label in table.labels if isinstance(label, int)}
    is_exact = (first in exact or layout.sizes[0] == 1) and (
        second in exact or layout.sizes[1] == 1
    )
    return value if is_exact else _expanded(site, layout, value, table.count, x)


def _squeezed(site: Site, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    if not axes:
        return value
    if site.opset >= AXES_ARE_INPUTS_SINCE_OPSET:
        return site.op("Squeeze", [value, site.constant(axes)])
    return site.op("Squeeze", [value], {"axes": list(axes)})


def _expanded(site: Site, layout: Layout, value: ir.Value, width: int, x: ir.Value) -> ir.Value:
    """Return the table for every [P, Q] of the rotated value."""
    sizes = layout.sizes
    if isinstance(sizes[0], int) and isinstance(sizes[1], int):
        return site.op("Expand", [value, site.constant([sizes[0], sizes[1], width])])
    leading = site.constant([0, 1] if layout.is_flat else [0, 2])
    full = site.op("Gather", [site.op("Shape", [x]), leading])
    target = site.op("Concat", [full, site.constant([width])], {"axis": 0})
    return site.op("Expand", [value, target])
