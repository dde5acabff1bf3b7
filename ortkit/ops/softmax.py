"""Softmax and LogSoftmax: what they compute, and rows to tell them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Array = np.ndarray

#: Ranges of the rows: no exponential of them overflows or vanishes in float64.
SPREADS = (0.1, 1.0, 1.0, 5.0, 30.0, 100.0)
#: There is no constant in it that could be rounded.
CLOSE = 1e-11


def softmax(x: Array, axis: int) -> Array:
    """Return exp(x) / sum(exp(x)) along `axis`.

    Source:
        Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs"
        (1990); ONNX Softmax-13.
    """
    return np.asarray(np.exp(log_softmax(x, axis)))


def log_softmax(x: Array, axis: int) -> Array:
    """Return x - log(sum(exp(x))) along `axis`.

    Source:
        ONNX LogSoftmax-13.
    """
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


OPS: Mapping[str, Callable[[Array, int], Array]] = {
    "Softmax": softmax,
    "LogSoftmax": log_softmax,
}


def spread_rows(sizes: Sequence[int], axis: int, random: np.random.Generator) -> Array:
    """Return rows of several ranges and offsets.

    Args:
        sizes: Of the result; `len(SPREADS)` along `axis`.
        axis: Along which rows differ in range.
        random: Where the numbers come from.
    """
    shape = [-1 if i == axis else 1 for i in range(len(sizes))]
    spread = np.reshape(SPREADS, shape)
    offset = np.resize((0.0, -3.0, 40.0, 7.0, -60.0, 100.0), len(SPREADS)).reshape(shape)
    return np.asarray(spread * random.uniform(-1, 1, sizes) + offset)


def fit_softmax(x: Array, y: Array, axis: int) -> str:
    """Return the op that makes `y` from `x`, an empty text where none of the two does."""
    if not y.size or x.shape != y.shape or not np.isfinite(y).all():
        return ""
    for name, function in OPS.items():
        want = function(x, axis)
        if bool((np.abs(y - want) <= CLOSE * np.maximum(np.abs(want), 1e-300)).all()):
            return name
        # Logarithms of what is almost one lose digits in any form.
        if name == "LogSoftmax" and bool((np.abs(y - want) <= CLOSE * (1 + np.abs(want))).all()):
            return name
    return ""
