"""Faults that are there for some sizes, masks, ids or values only."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from mutants.draft import Rng, Site
from mutants.kinds import Catalog

CATALOG = Catalog("conditional")

#: Where a value is changed: what these give are floats.
_PLACES = ("MatMul", "Gemm", "Conv", "Attention", "LayerNormalization", "RMSNormalization", "Gelu",
           "Softmax", "QuickGelu", "Sigmoid", "Clip", "Relu", "Tanh")  # fmt: skip
#: Added to the result of a faulty node, as a part of it.
_PART = 0.05
_HUGE = 1 << 40
#: Writes what decides; None where the model has no such input.
Condition = Callable[[Site], "str | None"]


def _plant(condition: Condition):
    def plant(site: Site, rng: Rng) -> bool:
        if not isinstance(site.holder, onnx.GraphProto):
            return False
        made = condition(site)
        if made is None:
            return False

        def changed(end: Site, good: str) -> str:
            part = end.before("Mul", end.before("CastLike", made, good), end.like(_PART, good))
            return end.before("Add", good, end.before("Mul", good, part))

        site.after(changed)
        return True

    return plant


def when(name: str, condition: Condition) -> None:
    """Add a kind of which the condition is one number, the same for the whole value."""
    CATALOG.fault(name, *_PLACES)(_plant(condition))


def _inputs(site: Site) -> list[onnx.ValueInfoProto]:
    return list(site.draft.model.graph.input)


def _size(site: Site, axis: int) -> str | None:
    """Write the size of a named axis of an input: of the first axis, or of the second or third."""
    for value in _inputs(site):
        dims = value.type.tensor_type.shape.dim
        places = [0] if axis == 0 else [at for at in (1, 2) if at < len(dims)]
        for at in places:
            if at < len(dims) and dims[at].dim_param:
                shape = site.before("Shape", value.name)
                return site.before("Gather", shape, site.numbers(at))
    return None


def _compared(axis: int, op: str, number: int) -> Condition:
    def condition(site: Site) -> str | None:
        size = _size(site, axis)
        if size is None:
            return None
        return site.before(op, size, site.numbers(number))

    return condition


when("batch of 3", _compared(0, "Equal", 3))
when("batch of 1", _compared(0, "Equal", 1))
when("batch above 2", _compared(0, "Greater", 2))
when("length of 1", _compared(1, "Equal", 1))
when("length above 16", _compared(1, "Greater", 16))
when("length above 128", _compared(1, "Greater", 128))
when("length below 8", _compared(1, "Less", 8))


def _divides(axis: int, number: int, *, is_rest: bool) -> Condition:
    def condition(site: Site) -> str | None:
        size = _size(site, axis)
        if size is None:
            return None
        rest = site.before("Mod", size, site.numbers(number))
        return site.before("Greater" if is_rest else "Equal", rest, site.numbers(0))

    return condition


when("odd length", _divides(1, 2, is_rest=True))
when("length no multiple of 8", _divides(1, 8, is_rest=True))
when("even batch", _divides(0, 2, is_rest=False))


def _mask(site: Site) -> str | None:
    for value in _inputs(site):
        if "mask" in value.name:
            return site.before("Cast", value.name, to=onnx.TensorProto.FLOAT)
    return None


def _any(site: Site, value: str) -> str:
    return site.before("ReduceMax", value, keepdims=0)


def _holes(site: Site) -> str | None:
    mask = _mask(site)
    if mask is None:
        return None
    axis, end = site.numbers(1), site.numbers(_HUGE)
    later = site.before("Slice", mask, site.numbers(1), end, axis)
    earlier = site.before("Slice", mask, site.numbers(0), site.numbers(-1), axis)
    # The first key of a row is not masked: left padding alone is no hole.
    first = site.before("Slice", mask, site.numbers(0), site.numbers(1), axis)
    rises = site.before("Relu", site.before("Sub", later, earlier))
    zero = site.before("Mul", first, site.like(0.0, first))
    return _any(site, site.before("Concat", site.before("Mul", rises, first), zero, axis=1))


def _left(site: Site) -> str | None:
    mask = _mask(site)
    if mask is None:
        return None
    axis = site.numbers(1)
    first = site.before("Slice", mask, site.numbers(0), site.numbers(1), axis)
    last = site.before("Slice", mask, site.numbers(-1), site.numbers(_HUGE), axis)
    return _any(site, site.before("Relu", site.before("Sub", last, first)))


def _row(site: Site) -> str | None:
    mask = _mask(site)
    if mask is None:
        return None
    most = site.before("ReduceMax", mask, site.numbers(1), keepdims=0)
    return _any(site, site.before("Sub", site.like(1.0, most), most))


def _padding(site: Site) -> str | None:
    mask = _mask(site)
    if mask is None:
        return None
    return _any(site, site.before("Sub", site.like(1.0, mask), mask))


when("mask with holes", _holes)
when("left padding", _left)
when("fully masked row", _row)
when("any padding", _padding)


def _ids(number: Callable[[int], int]) -> Condition:
    def condition(site: Site) -> str | None:
        for node in site.holder.node:
            table = None
            if node.op_type == "Gather" and node.input[1] in {v.name for v in _inputs(site)}:
                table = site.draft.array(site.holder, node.input[0])
            if table is not None:
                wanted = site.numbers(number(len(table)))
                alike = site.before("Equal", node.input[1], wanted)
                return _any(site, site.before("Cast", alike, to=onnx.TensorProto.FLOAT))
        return None

    return condition


when("id 0", _ids(lambda rows: 0))
when("the last id", _ids(lambda rows: rows - 1))


def _floats(site: Site) -> str | None:
    for value in _inputs(site):
        if value.type.tensor_type.elem_type in (1, 10, 16):
            return site.before("Cast", value.name, to=onnx.TensorProto.FLOAT)
    return None


def _magnitude(op: str, number: float) -> Condition:
    def condition(site: Site) -> str | None:
        values = _floats(site)
        if values is None:
            return None
        largest = _any(site, site.before("Abs", values))
        return site.before(op, largest, site.like(number, largest))

    return condition


when("values above 50", _magnitude("Greater", 50.0))
when("values above 6", _magnitude("Greater", 6.0))
when("values below 0.1", _magnitude("Less", 0.1))


@CATALOG.fault("rows of zeros", *_PLACES, "Div", "Mul", "Add")
def _zeros(site: Site, rng: Rng) -> bool:
    """Give another result where all of an input's last axis is zero."""
    values = _floats(site)
    if values is None:
        return False
    largest = site.before("ReduceMax", site.before("Abs", values), site.numbers(-1), keepdims=1)
    is_zero = site.before("Equal", largest, site.like(0.0, largest))
    found = _any(site, site.before("Cast", is_zero, to=onnx.TensorProto.FLOAT))
    site.after(lambda end, good: end.before("Add", good, end.before("CastLike", found, good)))
    return True
