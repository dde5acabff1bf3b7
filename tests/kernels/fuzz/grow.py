"""A random region: one operator after the other on what is there already."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from fuzz import rows, views
from fuzz.grower import Grower
from fuzz.pointwise import (
    BINARY,
    CASTS,
    POSITIVE,
    UNARY,
    UNIT,
    USUAL_DTYPES,
    Binary,
    Unary,
    room,
)  # fmt: skip
from fuzz.values import ONE, Region, Shape, Size, Value, needed

OPSETS = (17, 20, 23, 24)
NAMES = ("a", "b", "c")
#: 1, a prime, powers of two and neighbours of a vector's width.
STATIC = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 32, 33, 48, 64, 96)
_MOST_STATIC = 3000
_MOST_INPUTS = 8


def numbered_region(number: int) -> Region:
    """Return the region of a number; regions of the same hundred have the same opset."""
    return random_region(random.Random(number), OPSETS[number // 100 % len(OPSETS)], str(number))


def random_region(rng: random.Random, opset: int, seed: str) -> Region:
    """Return a region drawn from `rng`; `seed` is its name.

    Three to fourteen operators over one space of rank 0 to 8; its outputs are the last value,
    and some of those over the same space or its rows.
    """
    is_usual = rng.random() < 0.5
    dtype = rng.choices(
        ("float32", "int64", "int32", "bool", "float16", "bfloat16", "float64", "uint8"),
        (90, 5, 3, 2, 0, 0, 0, 0) if is_usual else (55, 5, 5, 3, 14, 7, 7, 4),
    )[0]
    grower = Grower(rng, opset, is_usual=is_usual)
    grower.add_input(dtype, _space(rng))
    for _ in range(rng.randint(3, 14)):
        before = len(grower.nodes)
        _step(grower)
        if len(grower.nodes) == before:
            apply_unary(grower, grower.front())
    return _finished(grower, seed)


def _space(rng: random.Random) -> Shape:
    rank = rng.choices(range(9), (3, 12, 26, 25, 18, 6, 4, 3, 3))[0]
    shape: list[Size] = []
    static = 1
    for _ in range(rank):
        if rng.random() < 0.4:
            shape.append(Size(1, (rng.choice(NAMES[:2]),)))
            continue
        size = rng.choice(STATIC)
        if rng.random() < 0.02:
            size = 0
        elif static * size > _MOST_STATIC:
            size = rng.choice((1, 2))
        static *= max(size, 1)
        shape.append(Size(size))
    return tuple(shape)


def _step(g: Grower) -> None:
    family = g.rng.choices(
        ("unary", "binary", "view", "row", "cast", "where", "clip"), (30, 33, 14, 11, 4, 4, 4)
    )[0]
    x = g.pick()
    match family:
        case "unary":
            apply_unary(g, x)
        case "binary":
            apply_binary(g, x)
        case "view":
            views.apply(g, x)
        case "row":
            rows.apply(g, _tamed(g, x, 50.0) if x.is_float else x)
        case "cast":
            targets = USUAL_DTYPES if g.is_usual else CASTS
            to = g.rng.choice([name for name in targets if name != x.dtype])
            if x.is_float or to in ("float32", "bool"):
                low = 200.0 if to == "uint8" else room(to)
                x = _positive(g, x) if to == "uint8" and x.is_float else _tamed(g, x, low)
            g.cast(x, to)
        case "where":
            _where(g, x)
        case "clip" if x.dtype != "bool":
            _clip(g, x)


def apply_unary(g: Grower, x: Value) -> None:
    """Apply a random operator of one operand."""
    fitting = [item for item in UNARY if x.dtype in item.dtypes and g.takes(item.op, x.dtype)]
    if not fitting:
        return
    chosen = g.rng.choice(fitting)
    x = _fit(g, x, chosen)
    given = {name: g.rng.choice(values) for name, values in chosen.attributes if g.chance(0.6)}
    g.emit(
        chosen.op, [x.name], chosen.result or x.dtype, x.shape,
        min(chosen.bound(min(x.bound, 700.0)), 1e9) if chosen.bound(1.0) != 1.0 else x.bound,
        is_positive=chosen.is_positive or (chosen.op == "Identity" and x.is_positive), **given,
    )  # fmt: skip


def _fit(g: Grower, x: Value, op: Unary) -> Value:
    """Bring a value into an operator's domain; once in a while leave it as it is."""
    if g.chance(0.08) or not x.is_float:
        return x
    if op.domain == POSITIVE:
        return _positive(g, x)
    if op.domain == UNIT:
        return _tamed(g, x, 1.0)
    return _tamed(g, x, min(op.largest, room(x.dtype)))


def _tamed(g: Grower, x: Value, most: float) -> Value:
    if x.bound <= most or not x.is_float:
        return x
    return g.emit(g.rng.choice(("Tanh", "Sigmoid")), [x.name], x.dtype, x.shape, 1.0)


def _positive(g: Grower, x: Value) -> Value:
    if x.is_positive:
        return x
    away = g.constant(np.float64(0.25), x.dtype)
    x = g.emit("Abs", [x.name], x.dtype, x.shape, x.bound)
    return g.emit("Add", [x.name, away], x.dtype, x.shape, x.bound + 1, is_positive=True)


def apply_binary(g: Grower, x: Value) -> None:
    """Apply a random operator of two or three operands that broadcast."""
    fitting = [item for item in BINARY if x.dtype in item.dtypes and g.takes(item.op, x.dtype)]
    if not fitting:
        return
    op = g.rng.choice(fitting)
    count = g.rng.randint(2, op.most)
    operands = [_tamed(g, x, math.sqrt(room(x.dtype)))]
    shape = x.shape
    for _ in range(count - 1):
        operand = _partner(g, operands[0], shape, op)
        shape = broadcast((shape, operand.shape)) or shape
        operands.append(operand)
    bound = op.bound(operands[0].bound, max(one.bound for one in operands[1:]))
    if op.op == "Pow":
        operands = [_positive(g, _tamed(g, operands[0], 4.0)), _tamed(g, operands[1], 4.0)]
    elif not op.is_divided and op.op != "PRelu" and g.chance(0.5):
        operands.reverse()
    if not x.is_float and bound > room(x.dtype) and not op.result:
        return
    names = [one.name for one in operands]
    g.emit(op.op, names, op.result or x.dtype, shape, bound)


def _partner(g: Grower, first: Value, shape: Shape, op: Binary) -> Value:
    """Return a second operand: one that is there, a new input, or a constant."""
    there = [
        value for value in g.values
        if value.dtype == first.dtype
        and (op.op != "PRelu" or broadcast((shape, value.shape)) == shape)
        and broadcast((shape, value.shape)) is not None
    ]  # fmt: skip
    if op.is_divided:
        there = [value for value in there if value.is_positive]
    draw = g.rng.random()
    if there and draw < 0.5:
        larger = [value for value in there if len(value.shape) >= len(first.shape)]
        found = g.rng.choice(larger or there)
        return _tamed(g, found, math.sqrt(room(found.dtype)))
    if draw < 0.85 and len(g.inputs) < _MOST_INPUTS:
        # In an exported model the other operand is a bias, a scale or a mask.
        return g.add_input(first.dtype, _part(g.rng, shape), is_positive=op.is_divided)
    number = g.rng.choice((0.5, 2.0, 3.0, 1.0, 0.044715)) if op.is_divided else g.number()
    if not first.is_float:
        number = max(1.0, round(abs(number)))
    name = g.constant(np.float64(number), first.dtype)
    return Value(name, first.dtype, (), abs(number))


def _part(rng: random.Random, shape: Shape) -> Shape:
    """Return a shape that broadcasts to `shape`."""
    if rng.random() < 0.3:
        return shape
    part = tuple(size if rng.random() < 0.6 else ONE for size in shape)
    return part[rng.randint(0, len(part)) if rng.random() < 0.6 else 0 :]


def _where(g: Grower, x: Value) -> None:
    masks = [v for v in g.values if v.dtype == "bool" and broadcast((v.shape, x.shape))]
    mask = (
        g.rng.choice(masks) if masks and g.chance(0.6)
        else g.add_input("bool", _part(g.rng, x.shape))
    )  # fmt: skip
    other = _partner(g, x, x.shape, BINARY[0])
    shape = broadcast((mask.shape, x.shape, other.shape))
    if shape is not None:
        names = [x.name, other.name]
        g.rng.shuffle(names)
        g.emit("Where", [mask.name, *names], x.dtype, shape, max(x.bound, other.bound))


def _clip(g: Grower, x: Value) -> None:
    low, high = sorted((g.number(), g.number()))
    if not x.is_float:
        low, high = max(0, math.floor(low)), max(1, math.ceil(high))
    names = [x.name, g.constant(np.float64(low), x.dtype), g.constant(np.float64(high), x.dtype)]
    if g.chance(0.2):
        names[1] = ""
    elif g.chance(0.2):
        names.pop()
    g.emit("Clip", names, x.dtype, x.shape, x.bound)


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return numpy's broadcast, None if sizes that may differ meet."""
    rank = max(len(shape) for shape in shapes)
    result = []
    for dims in zip(*[(ONE,) * (rank - len(s)) + s for s in shapes], strict=True):
        sizes = set(dims) - {ONE}
        if len(sizes) > 1:
            return None
        result.append(sizes.pop() if sizes else ONE)
    return tuple(result)


def _finished(g: Grower, seed: str) -> Region:
    """Choose outputs, and keep only what they need."""
    made = {name for node in g.nodes for name in node.output if node.op_type != "Constant"}
    values = [value for value in g.values if value.name in made]
    main = values[-1]
    chosen = [main]
    rowwise = [v for v in values[:-1] if v.shape == main.shape or _is_row(v.shape, main.shape)]
    chosen += [value for value in rowwise if g.chance(0.15)][-3:]
    if g.chance(0.05):
        chosen.append(g.rng.choice(values))
    chosen = list(dict.fromkeys(chosen))
    nodes, names = needed(g.nodes, [value.name for value in chosen])
    inputs = tuple(value for value in g.inputs if value.name in names)
    region = Region(seed, g.opset, inputs, tuple(chosen), nodes, g.known)
    return region if inputs else _with_input(region, g)


def _with_input(region: Region, g: Grower) -> Region:
    """A region of constants alone is none: let its first output depend on an input."""
    first = region.outputs[0]
    kept = replace(first, name="kept")
    node = onnx.helper.make_node("Where", ["given", first.name, first.name], [kept.name])
    given = Value("given", "bool", (), 1.0)
    values = {**g.known, "given": given, kept.name: kept}
    outputs = (kept, *region.outputs[1:])
    return replace(
        region, inputs=(given,), outputs=outputs, nodes=(*region.nodes, node), values=values
    )


def _is_row(shape: Shape, full: Shape) -> bool:
    """Return whether a shape is the other's with its last axes reduced to one."""
    if len(shape) != len(full):
        return False
    differ = [axis for axis, (a, b) in enumerate(zip(shape, full, strict=True)) if a != b]
    return all(shape[axis].is_one for axis in range(min(differ, default=0), len(shape)))
