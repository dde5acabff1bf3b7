"""Rotary embeddings written out in many ways, and almost rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.passes.graphs import Graph

HEADS, WIDTH, HALF, LONGEST = 3, 8, 4, 32
FREQUENCIES = 10000.0 ** (-np.arange(HALF) / HALF)
END = np.iinfo(np.int64).max


class Tape(Graph):
    """A graph with the few ops that rotations are written in."""

    def integers(self, *shape: int | str, name: str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        return name

    def cut(self, x: str, start: int, end: int, axis: int = -1, step: int = 1) -> str:
        bounds = (self.ints(number) for number in (start, end, axis, step))
        return self.op("Slice", x, *bounds)

    def join(self, *parts: str, axis: int = -1) -> str:
        return self.op("Concat", *parts, axis=axis)

    def unsqueeze(self, x: str, *axes: int) -> str:
        if self.opset < 13:
            return self.op("Unsqueeze", x, axes=axes)
        return self.op("Unsqueeze", x, self.ints(*axes))

    def squeeze(self, x: str, *axes: int) -> str:
        return self.op("Squeeze", x, self.ints(*axes))

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.ints(*shape))

    def column(self, *numbers: int) -> str:
        name = f"c{len(self.constants)}"
        column = np.array(numbers, np.int64).reshape(-1, 1)
        self.constants.append(numpy_helper.from_array(column, name))
        return name

    def halves(self, x: str) -> list[str]:
        names = [f"h{len(self.nodes)}", f"i{len(self.nodes)}"]
        self.nodes.append(helper.make_node("Split", [x, self.ints(HALF, HALF)], names, axis=-1))
        return names

    def turned(self, x: str) -> str:
        """Return (-x2, x1)."""
        return self.join(self.op("Neg", self.cut(x, HALF, END)), self.cut(x, 0, HALF))

    def mul(self, x: str, y: str) -> str:
        return self.op("Mul", x, y)

    def add(self, x: str, y: str) -> str:
        return self.op("Add", x, y)

    def sub(self, x: str, y: str) -> str:
        return self.op("Sub", x, y)


@dataclass(frozen=True)
class Angles:
    """Cosines and sines of one angle for each pair, [..., D / 2], broadcasting to x."""

    cos: str
    sin: str


def doubled(t: Tape, half: str) -> str:
    return t.join(half, half)


def repeated(t: Tape, half: str, rank: int) -> str:
    """Repeat each element: (a, a, b, b, ...)."""
    last = t.unsqueeze(half, -1)
    wide = t.op("Expand", last, t.ints(*[1] * rank, 2))
    return t.reshape(wide, *[0] * (rank - 1), WIDTH)


# ---- angles: [n or 1, s, D/2] ----------------------------------------------------------


def computed(t: Tape, x: str, axis: int) -> Angles:
    """Take positions 0, 1, ... from the length of axis `axis` of x: [1, s, D/2]."""
    zero, one = (scalar(t, number) for number in (0, 1))
    size = t.squeeze(t.op("Gather", t.op("Shape", x), t.ints(axis)), 0)
    positions = t.op("Cast", t.op("Range", zero, size, one), to=kind_of(t))
    angle = t.mul(t.unsqueeze(positions, 0, 2), t.data(FREQUENCIES))
    return Angles(t.op("Cos", angle), t.op("Sin", angle))


def given(t: Tape, _x: str, _axis: int) -> Angles:
    """Take positions from an input: [n, s, D/2]."""
    positions = t.op("Cast", t.integers("n", "s", name="ids"), to=kind_of(t))
    angle = t.mul(t.unsqueeze(positions, 2), t.data(FREQUENCIES))
    return Angles(t.op("Cos", angle), t.op("Sin", angle))


def multiplied(t: Tape, _x: str, _axis: int) -> Angles:
    """Multiply frequencies [1, D/2, 1] by positions [n, 1, s] as matrices."""
    positions = t.op("Cast", t.integers("n", "s", name="ids"), to=kind_of(t))
    column = t.data(FREQUENCIES.reshape(1, HALF, 1))
    angle = t.op("MatMul", column, t.unsqueeze(positions, 1))
    angle = t.op("Transpose", angle, perm=(0, 2, 1))
    return Angles(t.op("Cos", angle), t.op("Sin", angle))


def looked_up(t: Tape, _x: str, _axis: int) -> Angles:
    """Look positions up in tables: [n, s, D/2]."""
    ids = t.integers("n", "s", name="ids")
    angle = np.outer(np.arange(LONGEST), FREQUENCIES)
    cos, sin = (t.op("Gather", t.data(f(angle)), ids, axis=0) for f in (np.cos, np.sin))
    return Angles(cos, sin)


def looked_up_nd(t: Tape, _x: str, _axis: int) -> Angles:
    """Look positions up in tables by index vectors: [n, s, D/2]."""
    ids = t.unsqueeze(t.integers("n", "s", name="ids"), 2)
    angle = np.outer(np.arange(LONGEST), FREQUENCIES)
    cos, sin = (t.op("GatherND", t.data(f(angle)), ids) for f in (np.cos, np.sin))
    return Angles(cos, sin)


def cut_from_table(t: Tape, x: str, axis: int) -> Angles:
    """Take the first rows of tables: [1, s, D/2]."""
    size = t.op("Gather", t.op("Shape", x), t.ints(axis))
    angle = np.outer(np.arange(LONGEST), FREQUENCIES)
    cos, sin = (
        t.unsqueeze(t.op("Slice", t.data(f(angle)), t.ints(0), size, t.ints(0)), 0)
        for f in (np.cos, np.sin)
    )
    return Angles(cos, sin)


def scaled(t: Tape, x: str, axis: int) -> Angles:
    """Multiply cosines and sines by a number, as long-context scaling does."""
    angles = computed(t, x, axis)
    return Angles(t.mul(angles.cos, t.data(1.2)), t.mul(angles.sin, t.data(1.2)))


def packed(t: Tape, x: str, axis: int) -> Angles:
    """Keep sines and cosines side by side in one table."""
    size = t.op("Gather", t.op("Shape", x), t.ints(axis))
    angle = np.outer(np.arange(LONGEST), FREQUENCIES)
    both = t.data(np.concatenate([np.sin(angle), np.cos(angle)], -1))
    sin, cos = t.halves(t.unsqueeze(t.op("Slice", both, t.ints(0), size, t.ints(0)), 0))
    return Angles(cos, sin)


def kind_of(t: Tape) -> int:
    return helper.np_dtype_to_tensor_dtype(t.dtype)


def scalar(t: Tape, number: int) -> str:
    return t.op("Constant", value=helper.make_tensor("", TensorProto.INT64, [], [number]))


ANGLES: tuple[Callable[[Tape, str, int], Angles], ...] = (
    computed,
    given,
    multiplied,
    looked_up,
    looked_up_nd,
    cut_from_table,
    scaled,
    packed,
)

# ---- rotations: split-half -------------------------------------------------------------
# `fit` puts the axis of the heads into a table.

Fit = Callable[[str], str]


def rotate_half(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(doubled(t, half)) for half in (a.cos, a.sin))
    return t.add(t.mul(x, cos), t.mul(t.turned(x), sin))


def operands_swapped(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(doubled(t, half)) for half in (a.cos, a.sin))
    return t.add(t.mul(sin, t.turned(x)), t.mul(cos, x))


def unsqueezed_first(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (doubled(t, fit(half)) for half in (a.cos, a.sin))
    return t.add(t.mul(x, cos), t.mul(t.turned(x), sin))


def split_op(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(doubled(t, half)) for half in (a.cos, a.sin))
    first, second = t.halves(x)
    return t.add(t.mul(x, cos), t.mul(t.join(t.op("Neg", second), first), sin))


def minus_sin(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """Let the sines carry the sign: x cos + swapped(x) (-sin, sin)."""
    cos = fit(doubled(t, a.cos))
    sin = fit(t.join(t.op("Neg", a.sin), a.sin))
    first, second = t.halves(x)
    return t.add(t.mul(x, cos), t.mul(t.join(second, first), sin))


def times_minus_one(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(doubled(t, half)) for half in (a.cos, a.sin))
    first, second = t.halves(x)
    turned = t.join(t.mul(second, t.data(-1)), first)
    return t.add(t.mul(x, cos), t.mul(turned, sin))


def sign_vector(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(doubled(t, half)) for half in (a.cos, a.sin))
    first, second = t.halves(x)
    signs = t.data([-1.0] * HALF + [1.0] * HALF)
    return t.add(t.mul(x, cos), t.mul(t.mul(t.join(second, first), signs), sin))


def subtracted(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(doubled(t, half)) for half in (a.cos, a.sin))
    first, second = t.halves(x)
    return t.sub(t.mul(x, cos), t.mul(t.join(second, t.op("Neg", first)), sin))


def two_halves(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = fit(a.cos), fit(a.sin)
    first, second = t.halves(x)
    upper = t.sub(t.mul(first, cos), t.mul(second, sin))
    return t.join(upper, t.add(t.mul(second, cos), t.mul(first, sin)))


def two_halves_negated(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = fit(a.cos), fit(a.sin)
    first, second = t.cut(x, 0, HALF), t.cut(x, -HALF, END)
    upper = t.add(t.op("Neg", t.mul(sin, second)), t.mul(cos, first))
    return t.join(upper, t.add(t.mul(sin, first), t.mul(cos, second)))


def permuted_by_gather(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = fit(doubled(t, a.cos)), fit(t.join(t.op("Neg", a.sin), a.sin))
    order = t.ints(*range(HALF, WIDTH), *range(HALF))
    return t.add(t.mul(x, cos), t.mul(t.op("Gather", x, order, axis=3), sin))


def as_two_rows(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """View channels as [2, D/2] and take the rows apart."""
    cos, sin = (fit(doubled(t, half)) for half in (a.cos, a.sin))
    rows = t.reshape(x, 0, 0, 0, 2, HALF)
    first, second = t.cut(rows, 0, 1, -2), t.cut(rows, 1, 2, -2)
    turned = t.reshape(t.join(t.op("Neg", second), first, axis=-2), 0, 0, 0, WIDTH)
    return t.add(t.mul(x, cos), t.mul(turned, sin))


def tiled(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(t.op("Tile", half, t.ints(1, 1, 2))) for half in (a.cos, a.sin))
    return t.add(t.mul(x, cos), t.mul(t.turned(x), sin))


def partial(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """Turn the first half of the channels only."""
    cos, sin = (fit(t.cut(half, 0, HALF // 2)) for half in (a.cos, a.sin))
    cos, sin = doubled(t, cos), doubled(t, sin)
    turning, passing = t.halves(x)
    first, second = t.cut(turning, 0, HALF // 2), t.cut(turning, HALF // 2, END)
    turned = t.join(t.op("Neg", second), first)
    return t.join(t.add(t.mul(turning, cos), t.mul(turned, sin)), passing)


def assigned(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """Write each half of the result into a value of zeros, channels first."""
    cos, sin = fit(a.cos), fit(a.sin)
    first, second = t.halves(x)
    upper = t.sub(t.mul(first, cos), t.mul(second, sin))
    lower = t.add(t.mul(second, cos), t.mul(first, sin))
    empty = t.op("Expand", t.data(0.0), t.op("Shape", x))
    result = t.op("Transpose", empty, perm=(3, 1, 2, 0))
    for rows, half in ((range(HALF), upper), (range(HALF, WIDTH), lower)):
        where = t.column(*rows)
        update = t.op("Transpose", half, perm=(3, 1, 2, 0))
        result = t.op("ScatterND", result, where, update)
    return t.op("Transpose", result, perm=(3, 1, 2, 0))


SPLIT_HALF = (
    assigned,
    rotate_half,
    operands_swapped,
    unsqueezed_first,
    split_op,
    minus_sin,
    times_minus_one,
    sign_vector,
    subtracted,
    two_halves,
    two_halves_negated,
    permuted_by_gather,
    as_two_rows,
    tiled,
    partial,
)

# ---- rotations: interleaved ------------------------------------------------------------


def rotate_every_two(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(repeated(t, half, 3)) for half in (a.cos, a.sin))
    even, odd = t.cut(x, 0, END, step=2), t.cut(x, 1, END, step=2)
    stacked = t.join(t.unsqueeze(t.op("Neg", odd), -1), t.unsqueeze(even, -1))
    turned = t.reshape(stacked, 0, 0, 0, WIDTH)
    return t.add(t.mul(x, cos), t.mul(turned, sin))


def stacked_results(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = fit(a.cos), fit(a.sin)
    even, odd = t.cut(x, 0, END, step=2), t.cut(x, 1, END, step=2)
    first = t.sub(t.mul(even, cos), t.mul(odd, sin))
    second = t.add(t.mul(odd, cos), t.mul(even, sin))
    return t.reshape(t.join(t.unsqueeze(first, -1), t.unsqueeze(second, -1)), 0, 0, 0, WIDTH)


def pairs_gathered(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """View channels as [D/2, 2], as a complex number written out."""
    cos, sin = fit(a.cos), fit(a.sin)
    pairs = t.reshape(x, 0, 0, 0, HALF, 2)
    real, imaginary = (t.op("Gather", pairs, scalar(t, i), axis=-1) for i in (0, 1))
    first = t.sub(t.mul(real, cos), t.mul(imaginary, sin))
    second = t.add(t.mul(real, sin), t.mul(imaginary, cos))
    return t.reshape(t.join(t.unsqueeze(first, 4), t.unsqueeze(second, 4)), 0, 0, 0, WIDTH)


def pairs_from_flat(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """View channels as [D/2, 2] and the angles as [D/2, 2], cosine and sine."""
    both = t.join(t.unsqueeze(fit(a.cos), -1), t.unsqueeze(fit(a.sin), -1))
    pairs = t.reshape(x, 0, 0, 0, HALF, 2)
    real, imaginary = t.cut(pairs, 0, 1), t.cut(pairs, 1, 2)
    cos, sin = t.cut(both, 0, 1), t.cut(both, 1, 2)
    first = t.sub(t.mul(real, cos), t.mul(imaginary, sin))
    second = t.add(t.mul(real, sin), t.mul(imaginary, cos))
    return t.reshape(t.join(first, second), 0, 0, 0, WIDTH)


def pairs_kept(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """Keep the axis of the pairs: cosines are [..., D/2, 1]."""
    cos, sin = t.unsqueeze(fit(a.cos), -1), t.unsqueeze(fit(a.sin), -1)
    pairs = t.reshape(x, 0, 0, 0, HALF, 2)
    real, imaginary = t.cut(pairs, 0, 1), t.cut(pairs, 1, 2)
    first = t.sub(t.mul(real, cos), t.mul(imaginary, sin))
    second = t.add(t.mul(real, sin), t.mul(imaginary, cos))
    return t.reshape(t.join(first, second), 0, 0, 0, WIDTH)


def partial_pairs(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(t.cut(half, 0, HALF // 2)) for half in (a.cos, a.sin))
    turning, passing = t.cut(x, 0, HALF), t.cut(x, HALF, END)
    even, odd = t.cut(turning, 0, END, step=2), t.cut(turning, 1, END, step=2)
    first = t.sub(t.mul(even, cos), t.mul(odd, sin))
    second = t.add(t.mul(odd, cos), t.mul(even, sin))
    both = t.join(t.unsqueeze(first, -1), t.unsqueeze(second, -1))
    return t.join(t.reshape(both, 0, 0, 0, HALF), passing)


INTERLEAVED = (
    rotate_every_two,
    stacked_results,
    pairs_gathered,
    pairs_from_flat,
    pairs_kept,
    partial_pairs,
)

# ---- layouts ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How x comes in."""

    shape: tuple[int | str, ...]
    sequence: int
    """Which axis of x [.., .., .., D] the positions are."""
    head_axis: int
    is_view: bool = False


LAYOUTS = {
    "BHSD": Layout(("n", HEADS, "s", WIDTH), 2, 1),
    "BSHD": Layout(("n", "s", HEADS, WIDTH), 1, 2),
    "flat": Layout(("n", "s", HEADS * WIDTH), 2, 1, is_view=True),
    "one batch": Layout((1, HEADS, "s", WIDTH), 2, 1),
    "static": Layout((2, 5, HEADS, WIDTH), 1, 2),
    "static heads first": Layout((2, HEADS, 5, WIDTH), 2, 1),
}


def build(
    rotation: Callable[[Tape, str, Angles, Fit], str],
    angles: Callable[[Tape, str, int], Angles] = computed,
    layout: str = "BHSD",
    *,
    opset: int = 17,
    dtype: type = np.float32,
) -> onnx.ModelProto:
    """Return a model that turns its input x."""
    t = Tape(dtype, opset)
    form = LAYOUTS[layout]
    x = t.input(*form.shape)
    if form.is_view:
        x = t.op("Transpose", t.reshape(x, 0, 0, HEADS, WIDTH), perm=(0, 2, 1, 3))
    made = angles(t, x, form.sequence)
    y = rotation(t, x, made, lambda table: t.unsqueeze(table, form.head_axis))
    return t.model(y)


def feeds(model: onnx.ModelProto, batch: int, length: int) -> dict[str, np.ndarray]:
    """Return inputs of this size; positions begin anywhere and differ from row to row."""
    random = np.random.default_rng(2)
    sizes = {"n": batch, "s": length}
    found = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else sizes[d.dim_param]
                 for d in tensor.shape.dim]  # fmt: skip
        if tensor.elem_type == TensorProto.INT64:
            found[value.name] = random.integers(0, LONGEST, shape)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            found[value.name] = random.standard_normal(shape).astype(dtype)
    return found
