"""Operators of whole rows: reductions, softmax, norms, the largest element, rotations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fuzz.grower import Grower
from fuzz.values import ONE, Shape, Size, Value

#: A row is about so long, for bounds only.
_ROW = 64
_SINGLE = ("float32", "float16", "bfloat16")

REDUCTIONS: dict[str, Callable[[float], float]] = {
    "ReduceSum": lambda x: x * _ROW,
    "ReduceMean": lambda x: x,
    "ReduceMax": lambda x: x,
    "ReduceMin": lambda x: x,
    "ReduceL1": lambda x: x * _ROW,
    "ReduceL2": lambda x: x * 8,
    "ReduceSumSquare": lambda x: x * x * _ROW,
    "ReduceLogSumExp": lambda x: x + 5,
    "ReduceProd": lambda _x: 1e6,
}


def apply(g: Grower, x: Value) -> None:
    """Apply a random operator of rows; nothing if it does not fit."""
    if x.shape and x.dtype != "bool":
        g.rng.choices(FAMILIES, WEIGHTS)[0](g, x)


def reduce_(g: Grower, x: Value) -> None:
    """Reduce the last axes, any one axis, or all."""
    op = g.rng.choice(list(REDUCTIONS))
    whole = op in ("ReduceSum", "ReduceMax", "ReduceMin")
    taken = (*_SINGLE, "float64", *(("int32", "int64") if whole else ()))
    if x.dtype not in taken or not g.takes(op, x.dtype):
        return
    rank = len(x.shape)
    draw = g.rng.random()
    if draw < 0.7:
        axes = list(range(rank - (1 if g.chance(0.7) else g.rng.randint(1, rank)), rank))
    elif draw < 0.9:
        axes = [g.rng.randrange(rank)]
    else:
        axes = sorted(g.rng.sample(range(rank), g.rng.randint(1, rank)))
    if any(x.shape[axis] == Size(0) for axis in axes):
        return
    keep = g.chance(0.65)
    shape = tuple(
        ONE if axis in axes else size
        for axis, size in enumerate(x.shape)
        if keep or axis not in axes
    )
    given = axes if g.chance(0.5) else [axis - rank for axis in axes]
    reduced = REDUCTIONS[op](x.bound)
    at: dict[str, object] = {} if keep and g.chance(0.5) else {"keepdims": int(keep)}
    names = [x.name]
    if len(axes) == rank and g.chance(0.3):
        pass  # no axes: all of them
    elif g.opset >= 18 or op == "ReduceSum":
        names.append(g.integers(given))
    else:
        at["axes"] = given
    found = g.emit(op, names, x.dtype, shape, reduced, **at)
    if keep and x.is_float and g.chance(0.6):  # as norms and softmax are written out
        g.emit(g.rng.choice(("Sub", "Mul", "Add")), [x.name, found.name], x.dtype, x.shape,
               x.bound * max(1.0, found.bound))  # fmt: skip


def softmax(g: Grower, x: Value) -> None:
    """Normalize exponentials along the last axis, rarely along another."""
    if x.dtype not in _SINGLE:
        return
    axis = len(x.shape) - 1 if g.chance(0.8) else g.rng.randrange(len(x.shape))
    op = "Softmax" if g.chance(0.7) else "LogSoftmax"
    given = {} if axis == len(x.shape) - 1 and g.chance(0.5) else {"axis": axis}
    g.emit(op, [x.name], x.dtype, x.shape, 1.0 if op == "Softmax" else 2 * x.bound + 5, **given)


def norm(g: Grower, x: Value) -> None:
    """LayerNormalization or RMSNormalization over the last axis or the last two."""
    if x.dtype not in _SINGLE:
        return
    is_rms = g.takes("RMSNormalization", x.dtype) and g.chance(0.4)
    axis = len(x.shape) - (2 if len(x.shape) > 1 and g.chance(0.15) else 1)
    part = x.shape[axis:]
    names = [x.name, g.add_input(x.dtype, part).name]
    if not is_rms and g.chance(0.7):
        names.append(g.add_input(x.dtype, part).name)
    at: dict[str, object] = {"axis": axis - len(x.shape)}
    if g.chance(0.7):
        at["epsilon"] = g.rng.choice((1e-5, 1e-6, 1e-12, 1e-3))
    op = "RMSNormalization" if is_rms else "LayerNormalization"
    g.emit(op, names, x.dtype, x.shape, 50.0, **at)


def extreme(g: Grower, x: Value) -> None:
    """Where the largest or smallest element of a row stands."""
    if x.dtype not in ("float32", "int32"):
        return
    axis = len(x.shape) - 1 if g.chance(0.85) else g.rng.randrange(len(x.shape))
    keep = g.chance(0.6)
    kept = (ONE,) if keep else ()
    shape = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    at = {"axis": axis, "keepdims": int(keep), "select_last_index": int(g.chance(0.2))}
    g.emit(g.rng.choice(("ArgMax", "ArgMin")), [x.name], "int64", shape, 1e4, **at)


def rotary(g: Grower, x: Value) -> None:
    """Rotate the channels of heads: [batch, heads, positions, channels]."""
    if not g.takes("RotaryEmbedding", x.dtype) or len(x.shape) != 4:
        return
    batch, _, positions, channels = x.shape
    if not channels.is_static or channels.factor < 2 or channels.factor % 2:
        return
    half: Shape = (batch, positions, Size(channels.factor // 2))
    names = [x.name, *(g.add_input(x.dtype, half).name for _ in range(2))]
    at: Sequence[str] = ("interleaved",) if g.chance(0.4) else ()
    g.emit("RotaryEmbedding", names, x.dtype, x.shape, 8 * x.bound, **dict.fromkeys(at, 1))


def cumulative(g: Grower, x: Value) -> None:
    """Sum up along an axis."""
    if x.dtype not in ("float32", "int32", "int64"):
        return
    axis = g.constant(np.int64(len(x.shape) - 1), "int64")
    g.emit("CumSum", [x.name, axis], x.dtype, x.shape, x.bound * _ROW)


FAMILIES: tuple[Callable[[Grower, Value], None], ...] = (
    reduce_, softmax, norm, extreme, rotary, cumulative,
)  # fmt: skip
WEIGHTS = (42, 18, 20, 8, 10, 2)
