"""Operators that are several steps: norms, softmax, reductions, rotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ortkit.kernels.region.program import Builder
from ortkit.kernels.sizes import ONE, Extent, product
from ortkit.refusal import RefusedError

Attributes: TypeAlias = Mapping[str, object]
FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})


def _float(b: Builder, x: int) -> None:
    if b.dtype(x) not in FLOATS:
        raise RefusedError(f"a norm or mean of type {b.dtype(x)}")


def mean(b: Builder, x: int, dims: Sequence[int]) -> int:
    """Return the mean over `dims`, which keep size 1."""
    _float(b, x)
    count = product(b.shape(x)[dim] for dim in dims)
    if count.factor == 0:
        raise RefusedError("a mean of no elements")
    total = b.reduce("sum", x, dims)
    return total if count == ONE else b.point("Div", total, b.size(count, b.dtype(x)))


def extreme(b: Builder, kind: str, x: int, dims: Sequence[int]) -> int:
    """Return the largest ("max") or smallest ("min") element over `dims`, NaN if one is NaN.

    Whether one is NaN is a reduction of its own: with both in one step LLVM takes the vectors
    apart, and the row takes five times as long (apache-tvm 0.27).
    """
    found = b.reduce(kind, x, dims)
    dtype = b.dtype(x)
    if dtype not in FLOATS or found == x:
        return found
    one, zero, nan = (b.constant(number, dtype) for number in (1.0, 0.0, float("nan")))
    is_nan = b.reduce("max", b.point("Where", b.point("IsNaN", x), one, zero), dims)
    return b.point("Where", b.point("Greater", is_nan, zero), nan, found)


def softmax(b: Builder, x: int, dim: int) -> int:
    """Return e^x / sum(e^x) along `dim`, without overflow."""
    _float(b, x)
    # A NaN that the maximum loses comes back with the sum.
    power = b.point("exp_nonpositive", b.point("Sub", x, b.reduce("max", x, [dim])))
    # One division for each row; the products differ from quotients by an ulp.
    inverse = b.point("Reciprocal", b.reduce("sum", power, [dim]))
    return b.point("Mul", power, inverse)


def log_softmax(b: Builder, x: int, dim: int) -> int:
    """Return log(softmax(x)) along `dim`."""
    _float(b, x)
    centered = b.point("Sub", x, b.reduce("max", x, [dim]))
    total = b.reduce("sum", b.point("exp_nonpositive", centered), [dim])
    return b.point("Sub", centered, b.point("Log", total))


def log_sum_exp(b: Builder, x: int, dims: Sequence[int]) -> int:
    """Return log(sum(e^x)) over `dims`, without overflow; infinities answer as written."""
    _float(b, x)
    largest = b.reduce("max", x, dims)
    zero = b.constant(0.0, b.dtype(x))
    shift = b.point("Where", b.point("IsInf", largest), zero, largest)
    total = b.reduce("sum", b.point("Exp", b.point("Sub", x, shift)), dims)
    return b.point("Add", b.point("Log", total), shift)


def normalized(b: Builder, x: int, dims: Sequence[int], epsilon: float) -> tuple[int, int, int]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean, and the factor.

    The variance is that of the centered values: E[x^2] - E[x]^2 would lose all digits of it
    where the mean is large.
    """
    average = mean(b, x, dims)
    centered = b.point("Sub", x, average)
    variance = mean(b, b.point("Mul", centered, centered), dims)
    factor = _inverse_root(b, variance, epsilon)
    return b.point("Mul", centered, factor), average, factor


def rms_normalized(b: Builder, x: int, dims: Sequence[int], epsilon: float) -> int:
    """Return x / sqrt(mean(x^2) + epsilon)."""
    factor = _inverse_root(b, mean(b, b.point("Mul", x, x), dims), epsilon)
    return b.point("Mul", x, factor)


def _inverse_root(b: Builder, x: int, epsilon: float) -> int:
    shifted = b.point("Add", x, b.constant(epsilon, b.dtype(x)))
    return b.point("Reciprocal", b.point("Sqrt", shifted))


def along(b: Builder, x: int, dim: int, rank: int) -> int:
    """Return the vector `x` as a tensor of `rank` that varies along `dim` only."""
    if len(b.shape(x)) != 1:
        raise RefusedError("a scale or bias of another rank than 1")
    shape = [ONE] * rank
    shape[dim] = b.shape(x)[0]
    return b.reshape(x, shape)


def instance_norm(b: Builder, x: int, scale: int, bias: int, epsilon: float) -> int:
    """Normalize each channel of each item: `x` is [N, C, ...]."""
    rank = len(b.shape(x))
    result, _, _ = normalized(b, x, range(2, rank), epsilon)
    scaled = b.point("Mul", result, along(b, scale, 1, rank))
    return b.point("Add", scaled, along(b, bias, 1, rank))


def group_norm(b: Builder, x: int, scale: int, bias: int, groups: int, epsilon: float) -> int:
    """Normalize groups of channels of each item: `x` is [N, C, ...], scale and bias are [C]."""
    shape = b.shape(x)
    each = shape[1].divided_by(Extent(groups))
    if each is None:
        raise RefusedError(f"{shape[1]} channels in {groups} groups")
    grouped = b.reshape(x, [shape[0], Extent(groups), each, *shape[2:]])
    result, _, _ = normalized(b, grouped, range(2, len(shape) + 1), epsilon)
    flat = b.reshape(result, shape)
    scaled = b.point("Mul", flat, along(b, scale, 1, len(shape)))
    return b.point("Add", scaled, along(b, bias, 1, len(shape)))


def rotary(
    b: Builder, x: int, cos: int, sin: int, *, interleaved: bool, rotary_dim: int, heads: int
) -> int:
    """Rotate pairs of channels as RotaryEmbedding-23 does.

    `x` is [batch, heads, seq, size] or [batch, seq, heads * size], `cos` and `sin` are
    [batch, seq, pairs].
    """
    shape = b.shape(x)
    if len(shape) == 3:
        size = shape[2].divided_by(Extent(heads)) if heads else None
        if size is None:
            raise RefusedError("RotaryEmbedding of rank 3 without a fitting num_heads")
        split = b.reshape(x, [shape[0], shape[1], Extent(heads), size])
        rotated = _rotated(b, split, cos, sin, 2, interleaved=interleaved, rotary_dim=rotary_dim)
        return b.reshape(rotated, shape)
    if len(shape) != 4:
        raise RefusedError(f"RotaryEmbedding of rank {len(shape)}")
    return _rotated(b, x, cos, sin, 1, interleaved=interleaved, rotary_dim=rotary_dim)


def _rotated(
    b: Builder, x: int, cos: int, sin: int, head_dim: int, *, interleaved: bool, rotary_dim: int
) -> int:
    """Rotate `x`, whose dim `head_dim` the tables do not have."""
    size = b.shape(x)[3].static
    if size is None:
        raise RefusedError("RotaryEmbedding of a size that may vary")
    width = rotary_dim or size
    half = width // 2
    if len(b.shape(cos)) != 3 or b.shape(cos)[2] != Extent(half):
        raise RefusedError("RotaryEmbedding with tables of another shape")
    table = list(b.shape(cos))
    table.insert(head_dim, ONE)
    cos, sin = b.reshape(cos, table), b.reshape(sin, table)
    if interleaved:
        first, second = b.slice(x, 3, 0, width, 2), b.slice(x, 3, 1, width, 2)
    else:
        first, second = b.slice(x, 3, 0, half), b.slice(x, 3, half, width)
    real = b.point("Sub", b.point("Mul", first, cos), b.point("Mul", second, sin))
    imaginary = b.point("Add", b.point("Mul", second, cos), b.point("Mul", first, sin))
    if interleaved:
        pairs = [*b.shape(real), ONE]
        both = b.concat([b.reshape(real, pairs), b.reshape(imaginary, pairs)], 4)
        parts = [b.reshape(both, [*b.shape(x)[:3], Extent(width)])]
    else:
        parts = [real, imaginary]
    if width < size:
        parts.append(b.slice(x, 3, width, size))
    return b.concat(parts, 3)


def position_of(b: Builder, x: int, dim: int, *, largest: bool, last: bool) -> int:
    """Return where the row's largest or smallest element stands, as an int64."""
    if b.shape(x)[dim] == ONE:
        return b.broadcast(b.constant(0, "int64"), b.shape(x))
    if b.shape(x)[dim].static == 0:
        raise RefusedError("ArgMax of nothing")
    kind, edge = ("max", float("-inf")) if largest else ("min", float("inf"))
    is_float = b.dtype(x) in FLOATS
    ranked = x
    if is_float:
        ranked = b.point("Where", b.point("IsNaN", x), b.constant(edge, b.dtype(x)), x)
    best = b.reduce(kind, ranked, [dim])
    count = b.shape(x)[dim].static
    if count is None:
        raise RefusedError("ArgMax along a size that may vary")
    here = b.position(b.shape(x), dim)
    other = b.constant(0 if last else count - 1, "int64")
    at = b.point("Where", b.point("Equal", ranked, best), here, other)
    found = b.reduce("max" if last else "min", at, [dim])
    if not is_float:
        return found
    # As ONNX Runtime has it: a NaN in front is never beaten, any other never wins.
    front = b.point("IsNaN", b.slice(x, dim, 0, 1))
    return b.point("Where", front, b.constant(0, "int64"), found)


_Reduction: TypeAlias = Callable[[Builder, int, Sequence[int]], int]

REDUCTIONS: dict[str, _Reduction] = {
    "ReduceSum": lambda b, x, dims: b.reduce("sum", x, dims),
    "ReduceMean": mean,
    "ReduceMax": lambda b, x, dims: extreme(b, "max", x, dims),
    "ReduceMin": lambda b, x, dims: extreme(b, "min", x, dims),
    "ReduceL1": lambda b, x, dims: b.reduce("sum", b.point("Abs", x), dims),
    "ReduceL2": lambda b, x, dims: b.point("Sqrt", b.reduce("sum", b.point("Mul", x, x), dims)),
    "ReduceSumSquare": lambda b, x, dims: b.reduce("sum", b.point("Mul", x, x), dims),
    "ReduceLogSumExp": log_sum_exp,
    "ReduceLogSum": lambda b, x, dims: b.point("Log", b.reduce("sum", x, dims)),
}
