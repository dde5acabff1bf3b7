"""Near misses among norms, softmax and layouts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.spelling.activations import WIDTH
from tests.spelling.case import LAYER_NORM, MS, RMS_NORM, NearMiss
from tests.spelling.channels import CHANNELS, GROUPS
from tests.spelling.writer import Writer

# ---- norms ----


def _norm(
    *,
    axis: int = -1,
    outer: int = -1,
    divisor: float = WIDTH,
    outside: bool = False,
    centered: bool = True,
    power: float = 2,
    other: bool = False,
    wide: bool = False,
) -> Callable[[Writer], str]:
    """LayerNorm or RMSNorm with one thing wrong."""

    def write(w: Writer) -> str:
        x = w.input("x", 5, WIDTH, WIDTH)
        top = w.sub(x, w.reduce("ReduceMean", x, axis)) if centered else x
        source = w.input("z", 5, WIDTH, WIDTH) if other else top
        total = w.reduce("ReduceSum", w.op("Pow", source, w.number(power)), outer)
        variance = w.div(total, w.number(divisor))
        if outside:
            root = w.add(w.op("Sqrt", variance), w.number(1e-2))
        else:
            root = w.op("Sqrt", w.add(variance, w.number(1e-2)))
        y = w.div(top, root)
        return w.mul(y, w.weight(*((WIDTH, 1) if wide else (WIDTH,)), mean=1))

    return write


def _l2_normalize(w: Writer) -> str:
    """x / max(norm, epsilon)."""
    x = w.input("x", "B", "S", WIDTH)
    return w.div(x, w.maximum(w.reduce("ReduceL2", x, -1), w.number(1e-6)))


def _mean_of_other(w: Writer) -> str:
    """(x - mean(z)) / sqrt(variance)."""
    x, z = w.input("x", "B", "S", WIDTH), w.input("z", "B", "S", WIDTH)
    centered = w.sub(x, w.reduce("ReduceMean", z, -1))
    variance = w.reduce("ReduceMean", w.op("Mul", centered, centered), -1)
    return w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-5))))


def _epsilon_vector(w: Writer) -> str:
    """RMSNorm with an epsilon for each channel."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.reduce("ReduceMean", w.op("Mul", x, x), -1)
    return w.div(
        x, w.op("Sqrt", w.op("Add", mean, w.array(np.linspace(0.1, 1, WIDTH, dtype=np.float32))))
    )


def _layer_norm_scaled_input(w: Writer) -> str:
    """(2 x - mean(x)) / deviation of x."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.reduce("ReduceMean", x, -1)
    centered = w.sub(x, mean)
    variance = w.reduce("ReduceMean", w.op("Mul", centered, centered), -1)
    top = w.sub(w.mul(x, w.number(2)), mean)
    return w.div(top, w.op("Sqrt", w.add(variance, w.number(1e-5))))


def _group_norm_rows(w: Writer) -> str:
    """GroupNorm whose Reshape mixes the samples: all of them are one group's."""
    x = w.input("x", 2, CHANNELS, 4, 4)
    flat = w.reshape(x, 1, GROUPS, -1)
    ones, zeros = np.ones(GROUPS, np.float32), np.zeros(GROUPS, np.float32)
    y = w.op("InstanceNormalization", flat, w.array(ones), w.array(zeros))
    y = w.reshape(y, 2, CHANNELS, 4, 4)
    return w.add(w.mul(y, w.weight(CHANNELS, 1, 1)), w.weight(CHANNELS, 1, 1))


def _instance_norm_one_axis(w: Writer) -> str:
    """Over the rows of an image only."""
    x = w.input("x", "B", CHANNELS, "X", "Y")
    centered = w.sub(x, w.reduce("ReduceMean", x, 2))
    variance = w.reduce("ReduceMean", w.op("Mul", centered, centered), 2)
    return w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-5))))


_NORMS = LAYER_NORM | RMS_NORM | {"InstanceNormalization", "GroupNormalization"}


def _miss(
    op: str, name: str, write: Callable[[Writer], str], never: frozenset[str] = _NORMS
) -> NearMiss:
    return NearMiss(op, name, write, never)


NORMS = (
    _miss("LayerNorm", "unbiased", _norm(divisor=WIDTH - 1)),
    _miss("LayerNorm", "epsilon outside", _norm(outside=True)),
    _miss("LayerNorm", "other axis of the mean", _norm(axis=1), LAYER_NORM),
    _miss("LayerNorm", "other axis of the variance", _norm(outer=1)),
    _miss("LayerNorm", "fourth power", _norm(power=4)),
    _miss("LayerNorm", "variance of another", _norm(other=True)),
    _miss("LayerNorm", "mean of another", _mean_of_other, LAYER_NORM),
    _miss("LayerNorm", "twice the input", _layer_norm_scaled_input, LAYER_NORM),
    _miss("RMSNorm", "of another", _norm(centered=False, other=True)),
    _miss("RMSNorm", "divisor", _norm(centered=False, divisor=WIDTH + 1), LAYER_NORM),
    _miss("RMSNorm", "epsilon outside", _norm(centered=False, outside=True)),
    _miss("RMSNorm", "epsilon of channels", _epsilon_vector),
    _miss("RMSNorm", "L2", _l2_normalize),
    _miss("GroupNorm", "over samples", _group_norm_rows, frozenset({"GroupNormalization"})),
    _miss("InstanceNorm", "one axis", _instance_norm_one_axis),
)


# ---- softmax, layouts ----


def _softmax(
    *, base: str = "same", axes: tuple[int, ...] = (-1,), extra: float = 0
) -> Callable[[Writer], str]:
    def write(w: Writer) -> str:
        x = w.input("x", "B", 5, 5)
        exp = w.op("Exp", w.sub(x, w.reduce("ReduceMax", x, -1)))
        source = w.op("Exp", w.input("z", "B", 5, 5)) if base == "other" else exp
        total = w.reduce("ReduceSum", source, *axes)
        return w.div(exp, w.add(total, w.number(extra)) if extra else total)

    return write


def _log_softmax_mean(w: Writer) -> str:
    """x - log(mean(exp(x)))."""
    x = w.input("x", "B", "S", CHANNELS)
    return w.sub(x, w.op("Log", w.reduce("ReduceMean", w.op("Exp", x), -1)))


def _shuffle(
    order: tuple[int, ...], dims: tuple[int, ...], out: tuple[int, ...]
) -> Callable[[Writer], str]:
    def write(w: Writer) -> str:
        x = w.input("x", 2, CHANNELS, 4, 6)
        return w.reshape(w.transpose(w.reshape(x, *dims), *order), *out)

    return write


_SPACE = frozenset({"DepthToSpace", "SpaceToDepth"})
# Another order of channels may become the op and a Gather of channels: outputs tell.
OTHERS = (
    _miss("Softmax", "sum over two axes", _softmax(axes=(-2, -1)), frozenset({"Softmax"})),
    _miss("Softmax", "sum of another", _softmax(base="other"), frozenset({"Softmax"})),
    _miss("Softmax", "one more", _softmax(extra=1.0), frozenset({"Softmax", "LogSoftmax"})),
    _miss("LogSoftmax", "mean", _log_softmax_mean, frozenset({"Softmax", "LogSoftmax"})),
    _miss(
        "DepthToSpace", "columns before rows",
        _shuffle((0, 1, 4, 3, 5, 2), (2, 2, 2, 2, 4, 6), (2, 2, 8, 12)), frozenset(),
    ),
    _miss(
        "DepthToSpace", "channel shuffle",
        _shuffle((0, 2, 1, 3, 4), (2, 2, 4, 4, 6), (2, 8, 4, 6)), _SPACE,
    ),
    _miss(
        "SpaceToDepth", "channels first",
        _shuffle((0, 1, 3, 5, 2, 4), (2, 8, 2, 2, 3, 2), (2, 32, 2, 3)), frozenset(),
    ),
    _miss(
        "Conv + activation", "product of two",
        lambda w: w.mul(w.op("Sigmoid", w.input("x", "B", "S", 4)), w.input("z", "B", "S", 4)),
        frozenset({MS + "QuickGelu"}),
    ),
)  # fmt: skip

MISSES = (*NORMS, *OTHERS)
