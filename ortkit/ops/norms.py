"""LayerNorm, RMSNorm and InstanceNorm: what they compute, and how to tell them by their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Array = np.ndarray
Kind = Literal["centred", "rms"]

#: Standard deviations of the rows that a norm is recognised by. Those in the middle are about the
#: root of every epsilon in use, so that where it is added matters; the last ones are far above.
LADDER = (
    1e-10, 1e-8, 1e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0,
    1.0, 3.0, 30.0, 1e3, 1e7, 1e7, 2e7, 2e7, 3e7, 3e7,
)  # fmt: skip
#: The row that epsilon is solved from, and the first of those that scale and shift are.
TINY, HUGE = 1, 20
#: How far two results may differ, relatively: constants are written in float32.
CLOSE = 1e-6


def layer_norm(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Return (x - mean) / sqrt(variance + epsilon), both along `axes`.

    Source:
        Ba, Kiros and Hinton, "Layer Normalization" (2016); ONNX LayerNormalization-17.
    """
    centred = x - x.mean(axis=axes, keepdims=True)
    return rms_norm(centred, axes, epsilon)


def rms_norm(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Return x / sqrt(mean of squares + epsilon), the mean along `axes`.

    Source:
        Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); ONNX
        RMSNormalization-23.
    """
    square = np.mean(x * x, axis=axes, keepdims=True)
    return np.asarray(x / np.sqrt(square + epsilon))


def ladder_rows(
    sizes: Sequence[int], axes: Sequence[int], axis: int, random: np.random.Generator
) -> Array:
    """Return rows of many magnitudes, none centred.

    Args:
        sizes: Of the result; `len(LADDER)` along `axis`.
        axes: Along which a row runs.
        axis: Along which rows differ in magnitude.
        random: Where the numbers come from.
    """
    x = random.standard_normal(sizes)
    along = tuple(axes)
    x = (x - x.mean(axis=along, keepdims=True)) / x.std(axis=along, keepdims=True)
    scale = np.reshape(LADDER, [-1 if i == axis else 1 for i in range(len(sizes))])
    # No two rows alike: with one ratio of mean to deviation both norms are alike up to scale.
    mean = np.resize((0.1, -0.5, 0.4, 0.9, -0.2), len(LADDER))
    mean[LADDER.index(1.0)] = 1e3
    return np.asarray(scale * (x + mean.reshape(scale.shape)))


@dataclass(frozen=True)
class NormFit:
    """A result read as scale * norm(x) + shift."""

    kind: Kind
    epsilon: float
    scale: Array
    """Float64, of the rows' sizes with 1 along the axis of magnitudes."""
    shift: Array


def fit_norm(x: Array, y: Array, axes: tuple[int, ...], axis: int) -> NormFit | str:
    """Read `y` as a norm of the rows of `x`; a text says why it is none.

    Args:
        x: What `ladder_rows` made.
        y: A result for it, of its shape.
        axes: Along which a row runs.
        axis: Along which rows differ in magnitude.
    """
    if not np.isfinite(y).all():
        return "it is not finite where a norm is"
    for kind, norm in (("centred", layer_norm), ("rms", rms_norm)):
        huge = np.arange(HUGE, len(LADDER))
        scale, shift = _line(norm(x, axes, 0.0).take(huge, axis), y.take(huge, axis), axis)
        if not np.isfinite(scale).all() or not scale.all():
            continue
        if not _agree(scale * norm(x, axes, 0.0) + shift, y, axis, huge):
            continue
        epsilon = _epsilon(x, (y - shift) / scale, axes, axis, kind)
        if epsilon is None:
            return "its epsilon differs along a row"
        if _agree(scale * norm(x, axes, epsilon) + shift, y, axis, np.arange(len(LADDER))):
            return NormFit("centred" if kind == "centred" else "rms", epsilon, scale, shift)
        return "its epsilon is not added to the variance under the root"
    return "what its rows are divided by is not their standard deviation or root mean square"


def _line(z: Array, y: Array, axis: int) -> tuple[Array, Array]:
    """Return the slope and intercept of y over z along `axis`, by least squares."""
    z_mean, y_mean = z.mean(axis=axis, keepdims=True), y.mean(axis=axis, keepdims=True)
    with np.errstate(all="ignore"):
        slope = ((z - z_mean) * (y - y_mean)).sum(axis=axis, keepdims=True) / (
            (z - z_mean) ** 2
        ).sum(axis=axis, keepdims=True)
        return slope, np.asarray(y_mean - slope * z_mean)


def _epsilon(x: Array, z: Array, axes: tuple[int, ...], axis: int, kind: str) -> float | None:
    """Solve z = x / sqrt(square + epsilon) on the row of `TINY`."""
    x, z = x.take([TINY], axis), z.take([TINY], axis)
    data = x - x.mean(axis=axes, keepdims=True) if kind == "centred" else x
    square = np.mean(data * data, axis=axes, keepdims=True)
    with np.errstate(all="ignore"):
        # Small elements of a row say little.
        sure = np.abs(data) >= 0.5 * np.sqrt(square)
        found = ((data / z) ** 2 - square)[sure]
    if found.size == 0 or not np.isfinite(found).all():
        return None
    epsilon = float(np.median(found))
    if abs(epsilon) < 1e-8 * float(square.max()):
        return 0.0
    return epsilon if epsilon > 0 and np.ptp(found) <= 1e-4 * epsilon else None


def _agree(want: Array, got: Array, axis: int, rows: Array) -> bool:
    want, got = want.take(rows, axis), got.take(rows, axis)
    return bool((np.abs(want - got) <= CLOSE * (1e-3 + np.abs(want))).all())
