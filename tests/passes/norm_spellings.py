"""Norms written out in many ways, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tests.passes.graphs import Graph

Shape = tuple[int | str, ...]


class Rows(Graph):
    """A graph with reductions over given axes in the form that its opset has."""

    axes: tuple[int, ...] = (-1,)
    keepdims: int = 1

    def reduce(self, kind: str, x: str) -> str:
        keep: dict[str, object] = {} if self.keepdims else {"keepdims": 0}
        since = 13 if kind == "ReduceSum" else 18
        if self.opset >= since:
            made = self.op(kind, x, self.ints(*self.axes), **keep)
        else:
            made = self.op(kind, x, axes=list(self.axes), **keep)
        return made if self.keepdims else self.unsqueeze(made)

    def unsqueeze(self, x: str) -> str:
        return self.op("Unsqueeze", x, self.ints(*self.axes))

    def mean(self, x: str) -> str:
        return self.reduce("ReduceMean", x)

    def number(self, value: float) -> str:
        return self.data(np.array(value))

    def cast(self, x: str, dtype: type) -> str:
        return self.op("Cast", x, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))


Formula = Callable[[Rows, str], str]
"""From a graph and x to the name of the rows divided by their root, without weights."""


@dataclass(frozen=True)
class Case:
    """A formula and how it is set: what surrounds it, opset, sizes."""

    name: str
    model: onnx.ModelProto
    expected: str


# ---- squares, roots and quotients ------------------------------------------------------------

SQUARES: dict[str, Formula] = {
    "mul": lambda g, d: g.op("Mul", d, d),
    "pow": lambda g, d: g.op("Pow", d, g.number(2.0)),
    "pow-int": lambda g, d: g.op("Pow", d, g.ints(2)),
    "abs": lambda g, d: g.op("Pow", g.op("Abs", d), g.number(2.0)),
}


def over(g: Rows, d: str, square: str, how: str, epsilon: float = 1e-5) -> str:
    """Return d / sqrt(square + epsilon), written as `how` says."""
    terms = (square, g.number(epsilon))
    total = g.op("Add", *(reversed(terms) if how == "swapped" else terms))
    match how:
        case "div" | "swapped":
            return g.op("Div", d, g.op("Sqrt", total))
        case "reciprocal":
            return g.op("Mul", d, g.op("Reciprocal", g.op("Sqrt", total)))
        case "reciprocal-first":
            return g.op("Mul", g.op("Reciprocal", g.op("Sqrt", total)), d)
        case "one-over":
            return g.op("Mul", d, g.op("Div", g.number(1.0), g.op("Sqrt", total)))
        case "pow":
            return g.op("Mul", d, g.op("Pow", total, g.number(-0.5)))
        case "root-pow":
            return g.op("Div", d, g.op("Pow", total, g.number(0.5)))
        case "root-of-reciprocal":
            return g.op("Mul", d, g.op("Sqrt", g.op("Reciprocal", total)))
    raise ValueError(how)


QUOTIENTS = (
    "div", "swapped", "reciprocal", "reciprocal-first", "one-over", "pow", "root-pow",
    "root-of-reciprocal",
)  # fmt: skip


def rms(square: str = "mul", how: str = "div", epsilon: float = 1e-5) -> Formula:
    return lambda g, x: over(g, x, g.mean(SQUARES[square](g, x)), how, epsilon)


def centred(square: str = "mul", how: str = "div", epsilon: float = 1e-5) -> Formula:
    def build(g: Rows, x: str) -> str:
        d = g.op("Sub", x, g.mean(x))
        return over(g, d, g.mean(SQUARES[square](g, d)), how, epsilon)

    return build


def raw_moments(g: Rows, x: str) -> str:
    """E[x^2] - E[x]^2."""
    mean = g.mean(x)
    square = g.op("Sub", g.mean(g.op("Mul", x, x)), g.op("Mul", mean, mean))
    return over(g, g.op("Sub", x, mean), square, "div")


def by_sums(size: int) -> Formula:
    """Sums over n instead of means, n a constant."""

    def build(g: Rows, x: str) -> str:
        n = g.number(size)
        d = g.op("Sub", x, g.op("Div", g.reduce("ReduceSum", x), n))
        square = g.op("Mul", g.reduce("ReduceSumSquare", d), g.number(1 / size))
        return over(g, d, square, "div")

    return build


def by_sums_of_shape(g: Rows, x: str) -> str:
    """Sums over the size that the graph computes."""
    index = g.ints(-1)
    size = g.op("Gather", g.op("Shape", x), index)
    n = g.cast(size, g.dtype.type)
    d = g.op("Sub", x, g.op("Div", g.reduce("ReduceSum", x), n))
    square = g.op("Div", g.reduce("ReduceSum", g.op("Mul", d, d)), n)
    return over(g, d, square, "reciprocal")


def twice_centred(g: Rows, x: str) -> str:
    """The difference computed once for the square and once for the quotient."""
    mean = g.mean(x)
    first, second = g.op("Sub", x, mean), g.op("Sub", x, mean)
    return over(g, second, g.mean(g.op("Mul", first, first)), "div")


def negated(g: Rows, x: str) -> str:
    """(mean - x) over -sqrt."""
    d = g.op("Sub", g.mean(x), x)
    root = g.op("Sqrt", g.op("Add", g.mean(g.op("Mul", d, d)), g.number(1e-5)))
    return g.op("Div", d, g.op("Neg", root))


def by_length(size: int) -> Formula:
    """x / (|x| / sqrt n)."""
    return lambda g, x: g.op(
        "Div", x, g.op("Div", g.reduce("ReduceL2", x), g.number(float(np.sqrt(size))))
    )


def scaled_length(size: int) -> Formula:
    """sqrt(n) x / |x|."""
    return lambda g, x: g.op(
        "Mul", g.op("Div", x, g.reduce("ReduceL2", x)), g.number(float(np.sqrt(size)))
    )


def clamped_moments(g: Rows, x: str) -> str:
    """max(E[x^2] - E[x]^2, 0), as it cannot be in exact arithmetic."""
    mean = g.mean(x)
    raw = g.op("Sub", g.mean(g.op("Mul", x, x)), g.op("Mul", mean, mean))
    return over(g, g.op("Sub", x, mean), g.op("Max", g.number(0.0), raw), "reciprocal")


def repeated(g: Rows, x: str) -> str:
    """Mean and root are repeated along the row before they are used."""
    shape = g.op("Shape", x)
    d = g.op("Sub", x, g.op("Expand", g.mean(x), shape))
    root = g.op("Sqrt", g.op("Add", g.mean(g.op("Mul", d, d)), g.number(1e-5)))
    return g.op("Div", d, g.op("Expand", root, shape))


def reshaped(g: Rows, x: str) -> str:
    """Means without their axis, which a Reshape gives back."""
    index = g.ints(0, 1)
    shape = g.op("Concat", g.op("Gather", g.op("Shape", x), index), g.ints(1), axis=0)

    def mean(value: str) -> str:
        axes = {"axes": [-1]} if g.opset < 18 else {}
        inputs = [value] if axes else [value, g.ints(-1)]
        return g.op("Reshape", g.op("ReduceMean", *inputs, keepdims=0, **axes), shape)

    d = g.op("Sub", x, mean(x))
    return over(g, d, mean(g.op("Mul", d, d)), "div")


# ---- weights ---------------------------------------------------------------------------------


def plain(g: Rows, z: str, n: int) -> str:
    return z


def weight(g: Rows, z: str, n: int) -> str:
    return g.op("Mul", z, g.constant(n))


def weight_first(g: Rows, z: str, n: int) -> str:
    return g.op("Mul", g.constant(n), z)


def wide_weight(g: Rows, z: str, n: int) -> str:
    return g.op("Mul", z, g.constant(1, 1, n))


def affine(g: Rows, z: str, n: int) -> str:
    return g.op("Add", g.op("Mul", z, g.constant(n)), g.constant(n))


def affine_swapped(g: Rows, z: str, n: int) -> str:
    return g.op("Add", g.constant(n), g.op("Mul", g.constant(n), z))


def minus(g: Rows, z: str, n: int) -> str:
    return g.op("Sub", g.op("Mul", z, g.constant(n)), g.constant(n))


def only_bias(g: Rows, z: str, n: int) -> str:
    return g.op("Add", z, g.constant(n))


def one_plus(g: Rows, z: str, n: int) -> str:
    return g.op("Mul", z, g.op("Add", g.constant(n), g.number(1.0)))


def z_plus_zw(g: Rows, z: str, n: int) -> str:
    return g.op("Add", z, g.op("Mul", z, g.constant(n)))


def twice_weighted(g: Rows, z: str, n: int) -> str:
    return g.op("Mul", g.op("Mul", z, g.constant(n)), g.constant(n))


Tail = Callable[[Rows, str, int], str]


def model_of(
    formula: Formula,
    tail: Tail,
    *,
    shape: Shape = ("b", "s", 8),
    axes: tuple[int, ...] = (-1,),
    opset: int = 17,
    dtype: type = np.float32,
    keepdims: int = 1,
    is_output: bool = False,
) -> onnx.ModelProto:
    """Return a model with something before the norm, and after it unless it is the output."""
    g = Rows(dtype, opset)
    g.axes, g.keepdims = axes, keepdims
    x = g.op("Tanh", g.input(*shape))
    size = shape[-1]
    assert isinstance(size, int)
    y = tail(g, formula(g, x), size)
    return g.model(y if is_output else g.op("Relu", y))


def merged(g: Rows, x: str) -> str:
    """x * (r w) + (b - mean * r * w), as a folded batch norm."""
    mean, n = g.mean(x), 8
    square = g.mean(g.op("Pow", g.op("Sub", x, mean), g.number(2.0)))
    root = g.op("Reciprocal", g.op("Sqrt", g.op("Add", square, g.number(1e-3))))
    factor = g.op("Mul", root, g.constant(n))
    shift = g.op("Sub", g.constant(n), g.op("Mul", mean, factor))
    return g.op("Add", g.op("Mul", x, factor), shift)


def spellings() -> Iterator[Case]:
    """Yield models with one norm each, and the op that it must become."""
    layer, root = "LayerNormalization", "RMSNormalization"
    for square in SQUARES:
        yield Case(f"rms {square}", model_of(rms(square), weight, opset=23), root)
        yield Case(f"layer {square}", model_of(centred(square), affine), layer)
    for how in QUOTIENTS:
        yield Case(f"rms by {how}", model_of(rms("pow", how), weight_first, opset=20), root)
        yield Case(f"layer by {how}", model_of(centred("pow", how), affine_swapped), layer)
    tails: Sequence[Tail] = (plain, weight, wide_weight, one_plus, z_plus_zw, twice_weighted)
    for tail in tails:
        yield Case(f"rms {tail.__name__}", model_of(rms(), tail, opset=18), root)
    for tail in (*tails, only_bias, minus, affine):
        yield Case(f"layer {tail.__name__}", model_of(centred(), tail, opset=18), layer)
    for opset in (13, 14, 17, 18, 20, 22, 23, 24):
        yield Case(f"layer opset {opset}", model_of(centred(), affine, opset=opset), layer)
        yield Case(f"rms opset {opset}", model_of(rms(), weight, opset=opset), root)
    for epsilon in (0.0, 1e-12, 1e-6, 1e-3, 0.1):
        yield Case(f"layer eps {epsilon}", model_of(centred(epsilon=epsilon), affine), layer)
        yield Case(f"rms eps {epsilon}", model_of(rms(epsilon=epsilon), weight), root)
    static: Shape = (1, 3, 8)
    for name, formula in (("layer", centred()), ("rms", rms())):
        op = layer if name == "layer" else root
        yield Case(f"{name} static", model_of(formula, weight, shape=static), op)
        yield Case(f"{name} matrix", model_of(formula, weight, shape=(1, 8)), op)
        yield Case(f"{name} flat", model_of(formula, weight, keepdims=0), op)
        yield Case(f"{name} output", model_of(formula, weight, is_output=True), op)
        yield Case(f"{name} positive axis", model_of(formula, weight, axes=(2,)), op)
        yield Case(
            f"{name} two axes", model_of(formula, plain, axes=(1, 2), shape=("b", 4, 8)), op
        )
        yield Case(f"{name} half", model_of(formula, weight, dtype=np.float16), op)
    for name, formula in (
        ("raw moments", raw_moments), ("sums", by_sums(8)), ("sums of shape", by_sums_of_shape),
        ("clamped moments", clamped_moments), ("repeated", repeated), ("reshaped", reshaped),
        ("twice centred", twice_centred), ("negated", negated), ("merged", merged),
    ):  # fmt: skip
        yield Case(name, model_of(formula, plain if formula is merged else affine), layer)
    yield Case("length", model_of(by_length(8), weight), root)
    yield Case("scaled length", model_of(scaled_length(8), weight), root)


# ---- near misses -----------------------------------------------------------------------------


def unbiased(g: Rows, x: str) -> str:
    """The variance over n - 1."""
    d = g.op("Sub", x, g.mean(x))
    square = g.op("Div", g.reduce("ReduceSum", g.op("Mul", d, d)), g.number(7.0))
    return over(g, d, square, "div")


def epsilon_outside(g: Rows, x: str) -> str:
    d = g.op("Sub", x, g.mean(x))
    root = g.op("Sqrt", g.mean(g.op("Mul", d, d)))
    return g.op("Div", d, g.op("Add", root, g.number(1e-3)))


def rms_epsilon_outside(g: Rows, x: str) -> str:
    root = g.op("Sqrt", g.mean(g.op("Mul", x, x)))
    return g.op("Div", x, g.op("Add", root, g.number(1e-3)))


def unit_length(g: Rows, x: str) -> str:
    """x / max(|x|, epsilon): no mean over n."""
    return g.op("Div", x, g.op("Max", g.reduce("ReduceL2", x), g.number(1e-6)))


def scaled_unit_length(g: Rows, x: str) -> str:
    """sqrt(n) x / max(|x|, epsilon)."""
    return g.op("Mul", unit_length(g, x), g.number(float(np.sqrt(8))))


def no_mean_of_squares(g: Rows, x: str) -> str:
    return over(g, x, g.reduce("ReduceSum", g.op("Mul", x, x)), "div")


def wrong_size(g: Rows, x: str) -> str:
    square = g.op("Div", g.reduce("ReduceSum", g.op("Mul", x, x)), g.number(9.0))
    return over(g, x, square, "div")


def no_root(g: Rows, x: str) -> str:
    return g.op("Div", x, g.op("Add", g.mean(g.op("Mul", x, x)), g.number(1e-5)))


def absolute(g: Rows, x: str) -> str:
    """The mean of absolute values in place of the root mean square."""
    root = g.op("Sqrt", g.op("Add", g.mean(g.op("Abs", x)), g.number(1e-5)))
    return g.op("Div", x, root)


def cubed(g: Rows, x: str) -> str:
    return over(g, x, g.mean(g.op("Pow", x, g.number(4.0))), "div")


def other_root(g: Rows, x: str) -> str:
    total = g.op("Add", g.mean(g.op("Mul", x, x)), g.number(1e-5))
    return g.op("Mul", x, g.op("Pow", total, g.number(-0.4)))


def other_mean(g: Rows, x: str) -> str:
    """The mean of x^2 is subtracted."""
    square = g.mean(g.op("Mul", x, x))
    return over(g, g.op("Sub", x, square), square, "div")


def not_centred(g: Rows, x: str) -> str:
    """The variance about the mean, but x itself is divided."""
    d = g.op("Sub", x, g.mean(x))
    return over(g, x, g.mean(g.op("Mul", d, d)), "div")


def clipped(g: Rows, x: str) -> str:
    """The variance is held above epsilon, which is not added."""
    d = g.op("Sub", x, g.mean(x))
    square = g.op("Max", g.mean(g.op("Mul", d, d)), g.number(1e-5))
    return g.op("Div", d, g.op("Sqrt", square))


def negative_epsilon(g: Rows, x: str) -> str:
    return over(g, x, g.mean(g.op("Mul", x, x)), "div", -1e-5)


def other_value(g: Rows, x: str) -> str:
    """Another value is divided."""
    total = g.op("Add", g.mean(g.op("Mul", x, x)), g.number(1e-5))
    return g.op("Div", g.op("Exp", g.op("Sin", x)), g.op("Sqrt", total))


def other_axes(g: Rows, x: str) -> str:
    """The mean along one axis, the variance along another."""
    d = g.op("Sub", x, g.mean(x))
    g.axes = (1,)
    return over(g, d, g.mean(g.op("Mul", d, d)), "div")


def first_axes(g: Rows, x: str) -> str:
    g.axes = (1,)
    return centred()(g, x)


def rms_first_axes(g: Rows, x: str) -> str:
    g.axes = (1,)
    return rms()(g, x)


def epsilon_per_channel(g: Rows, x: str) -> str:
    total = g.op("Add", g.mean(g.op("Mul", x, x)), g.constant(8))
    return g.op("Div", x, g.op("Sqrt", total))


def epsilon_of_data(g: Rows, x: str) -> str:
    epsilon = g.op("ReduceMax", g.op("Cos", x), keepdims=0)
    return g.op("Div", x, g.op("Sqrt", g.op("Add", g.mean(g.op("Mul", x, x)), epsilon)))


def root_read(g: Rows, x: str) -> str:
    """The root is used once more."""
    root = g.op("Sqrt", g.op("Add", g.mean(g.op("Mul", x, x)), g.number(1e-5)))
    return g.op("Add", g.op("Div", x, root), g.op("Sin", root))


def gate(g: Rows, x: str) -> str:
    """The norm of a product is not the product of a norm."""
    y = g.op("Sin", x)
    total = g.op("Add", g.mean(g.op("Mul", g.op("Mul", x, y), x)), g.number(1e-5))
    return g.op("Div", x, g.op("Sqrt", total))


def rows_weight(g: Rows, z: str, n: int) -> str:
    """Weights along another axis: the norm goes without them."""
    return g.op("Mul", z, g.constant(3, 1))


def number_weight(g: Rows, z: str, n: int) -> str:
    return g.op("Mul", z, g.number(0.7))


NEAR_MISSES: Sequence[Formula] = (
    unbiased, epsilon_outside, rms_epsilon_outside, unit_length, scaled_unit_length,
    no_mean_of_squares, wrong_size, no_root, absolute, cubed, other_root, other_mean, not_centred,
    clipped, negative_epsilon, other_value, other_axes, first_axes, rms_first_axes,
    epsilon_per_channel, epsilon_of_data, root_read, gate,
)  # fmt: skip
