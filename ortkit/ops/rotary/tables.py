"""From atoms back to a value: half of a table of cosines, from before it was doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from ortkit.ops.rotary.channels import LabeledValue
from ortkit.ops.rotary.functions import ELEMENTWISE
from ortkit.ops.rotary.steps import CHANNEL
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

DEPTH_LIMIT = 12
#: Halves made so far: the table is one for all layers, and so is its half.
_made: WeakKeyDictionary[Scope, dict[tuple[ir.Value, int, int, int], ir.Value]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True)
class Picked:
    """Channels start, start + step, ... of the last axis of a value."""

    value: ir.Value
    labels: tuple[int | str | None, ...]
    """One for each axis but the last."""
    start: int
    step: int
    count: int
    width: int
    is_negative: bool

    @property
    def is_whole(self) -> bool:
        """Whether all channels are taken, in order."""
        return self.step == 1 and self.count == self.width


def picked(candidates: Sequence[LabeledValue], wanted: np.ndarray, rank: int) -> Picked | None:
    """Return a value that holds the channels `wanted` as its last axis, or among it.

    Args:
        candidates: Values to choose from.
        wanted: Signed atoms, [width / 2].
        rank: Among values as good the one of this rank, or the nearest to it, is taken.
    """
    found = [one for each in candidates if (one := _picked_from(each, wanted)) is not None]
    return min(
        found,
        key=lambda one: (not one.is_whole, one.is_negative, abs(len(one.labels) + 1 - rank)),
        default=None,
    )


def _picked_from(candidate: LabeledValue, wanted: np.ndarray) -> Picked | None:
    flat, rest = candidate.flat, candidate.labels[:-1]
    if candidate.labels[-1:] != (CHANNEL,) or candidate.atoms.shape[-1] != flat.size:
        return None
    if any(isinstance(item, str) and item != CHANNEL and not _is_outer(item) for item in rest):
        return None
    starts = np.flatnonzero(np.abs(flat) == abs(wanted[0]))
    if not starts.size:
        return None
    start, step = int(starts[0]), 1
    if wanted.size > 1:
        following = np.flatnonzero(np.abs(flat) == abs(wanted[1]))
        following = following[following > start]
        step = int(following[0]) - start if following.size else 1
    selected = flat[start::step][: wanted.size]
    for is_negative in (False, True):
        if np.array_equal(-selected if is_negative else selected, wanted):
            # Axes of one channel have length one.
            labels = tuple(None if one == CHANNEL else one for one in rest)
            return Picked(
                candidate.value, labels, start, step, wanted.size, flat.size, is_negative
            )
    return None


def _is_outer(label: str) -> bool:
    """Say whether the axis is one of the result that may be broadcast."""
    return label.startswith("~") and label[1:].isdigit()


# ---- making it -------------------------------------------------------------------------


def make_picked(site: Site, one: Picked, name: str) -> ir.Value:
    """Return the value of these channels; what is computed of each is computed of half."""
    value = one.value
    if not one.is_whole:
        span = slice(one.start, one.start + one.step * (one.count - 1) + 1, one.step)
        value = _Halves(site, name).of(value, span, site.node, DEPTH_LIMIT)
    return site.op("Neg", [value], name=name) if one.is_negative else value


@dataclass(frozen=True)
class _Halves:
    site: Site
    name: str

    def of(self, value: ir.Value, span: slice, before: ir.Node, depth: int) -> ir.Value:
        """Return channels `span` of `value`, made before `before`."""
        width = self._width(value)
        count = len(range(*span.indices(width)))
        if count == width:
            return value
        known = _made.setdefault(self.site.scope, {})
        key = (value, span.start, span.stop, span.step)
        if (made := known.get(key)) is not None and _is_there(made):
            return made
        made = self._halved(value, span, before, depth)
        if made is None:
            # Where this one stands, another reader of the value may not see it: not kept.
            return self._sliced(value, span, before)
        # A constant of a function is a node of its own that stands before its one reader.
        if made.is_initializer() or not self.site.scope.is_constant(value):
            known[key] = made
        return made

    def _halved(
        self, value: ir.Value, span: slice, before: ir.Node, depth: int
    ) -> ir.Value | None:
        if self.site.scope.is_constant(value):
            array = self.site.array(value)
            assert array is not None
            return self.site.scope.constant(array[..., span], f"{self.name}/half", before)
        node = value.producer()
        if node is None or node.domain != "" or not depth:
            return None
        return self._from_inputs(node, value, span, depth - 1)

    def _from_inputs(
        self, node: ir.Node, value: ir.Value, span: slice, depth: int
    ) -> ir.Value | None:
        here = Site(self.site.scope, node, self.site.pass_name)
        if node.op_type == "Concat":
            return self._piece(here, value, span, depth)
        if node.op_type in ELEMENTWISE or node.op_type == "Neg":
            return self._again(here, span, range(len(node.inputs)), depth)
        if node.op_type in ("Unsqueeze", "Squeeze"):
            axes, rank = here.axes(), here.rank(value if node.op_type[0] == "U" else here.input(0))
            keeps_last = axes is not None and rank is not None
            if keeps_last and all((a % rank) != rank - 1 for a in axes or () if rank):
                return self._again(here, span, [0], depth)
        if self._takes_rows(here):
            return self._again(here, span, [0], depth)
        return None

    def _takes_rows(self, site: Site) -> bool:
        """Say whether whole rows of a constant table are taken."""
        rank = site.rank(site.input(0))
        if rank is None or not self.site.scope.is_constant(site.input(0)):
            return False
        if site.node.op_type == "Gather":
            return site.int("axis", 0) % rank != rank - 1
        if site.node.op_type == "GatherND":
            indices = site.shape(site.input(1))
            width = indices[-1] if indices else None
            return isinstance(width, int) and width < rank
        if site.node.op_type == "Slice":
            axes = site.axes(3)
            return axes is not None and all(axis % rank != rank - 1 for axis in axes)
        return False

    def _piece(self, site: Site, value: ir.Value, span: slice, depth: int) -> ir.Value | None:
        """Return the channels where one operand of a concatenation has them all."""
        rank = site.rank(value)
        if rank is None or site.int("axis", 0) % rank != rank - 1:
            return None
        offset = 0
        for source in site.node.inputs:
            if source is None:
                return None
            width = self._width(source)
            if offset <= span.start and span.stop <= offset + width:
                inner = slice(span.start - offset, span.stop - offset, span.step)
                return self.of(source, inner, site.node, depth)
            offset += width
        return None

    def _again(
        self, site: Site, span: slice, indices: Sequence[int], depth: int
    ) -> ir.Value | None:
        """Return what the site's node makes of half of the inputs `indices`."""
        width = self._width(site.output)
        inputs = list(site.node.inputs)
        shapes = {index: site.shape(inputs[index]) for index in indices}
        wide = [index for index, shape in shapes.items() if shape and shape[-1] == width]
        if any(
            shape is None or (shape and shape[-1] not in (1, width)) for shape in shapes.values()
        ):
            return None
        for index in wide:
            source = inputs[index]
            assert source is not None
            inputs[index] = self.of(source, span, site.node, depth)
        attributes = {name: value.value for name, value in site.node.attributes.items()}
        made = site.scope.insert(
            site.node, site.node.op_type, inputs, attributes, name=f"{self.name}/half"
        )
        return made[0]

    def _sliced(self, value: ir.Value, span: slice, before: ir.Node) -> ir.Value:
        rank = self.site.rank(value)
        assert rank is not None
        bounds = [
            self.site.scope.constant(np.array([number], np.int64), f"{self.name}/{what}", before)
            for what, number in (
                ("start", span.start),
                ("end", span.stop),
                ("axis", rank - 1),
                ("step", span.step),
            )
        ]
        return self.site.scope.insert(before, "Slice", [value, *bounds], name=f"{self.name}/half")[
            0
        ]

    def _width(self, value: ir.Value) -> int:
        shape = self.site.shape(value)
        assert shape is not None and isinstance(shape[-1], int)
        return shape[-1]


def _is_there(value: ir.Value) -> bool:
    node = value.producer()
    return value.is_initializer() if node is None else node.graph is not None
