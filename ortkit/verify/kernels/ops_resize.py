"""Resize in float64, for `kernels/ops.py`: one axis after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx.reference.op_run import OpRun

Where = Callable[[np.ndarray, int, int, float], np.ndarray]
#: By mode, where pixels of the result lie in the image, given both sizes and the scale.
_WHERE: Mapping[str, Where] = {
    "half_pixel": lambda at, _, __, scale: (at + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda at, _, made, scale: (
        (at + 0.5) / scale - 0.5 if made > 1 else at * 0
    ),
    "align_corners": lambda at, size, made, _: at * (size - 1) / max(1, made - 1),
    "asymmetric": lambda at, _, __, scale: at / scale,
}
_ROUNDED: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


class Resize(OpRun):
    """ONNX Resize-11 ... 19, linear and nearest; onnx.reference goes pixel by pixel."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        roi: np.ndarray | None = None,
        scales: np.ndarray | None = None,
        sizes: np.ndarray | None = None,
        antialias: int | None = None,
        axes: Sequence[int] | None = None,
        coordinate_transformation_mode: str | None = None,
        mode: str | None = None,
        nearest_mode: str | None = None,
        **_: object,
    ) -> tuple[np.ndarray]:
        del roi
        where = _WHERE.get(coordinate_transformation_mode or "half_pixel")
        rounded = _ROUNDED[nearest_mode or "round_prefer_floor"]
        if antialias or where is None or mode not in (None, "linear", "nearest"):
            raise NotImplementedError("a Resize of this mode")
        chosen = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
        for number, axis in enumerate(chosen):
            size = x.shape[axis]
            if sizes is not None and sizes.size:
                made = int(sizes[number])
                scale = made / size
            elif scales is not None:
                scale = float(scales[number])
                made = int(size * scale)
            else:
                raise NotImplementedError("a Resize to an unknown size")
            if (made, scale) != (size, 1):
                at = where(np.arange(made, dtype=np.float64), size, made, scale)
                at = np.clip(at if mode == "linear" else rounded(at), 0, size - 1)
                x = _mixed(x, axis, at)
        return (x,)


def _mixed(x: np.ndarray, axis: int, at: np.ndarray) -> np.ndarray:
    """Return what lies at places of an axis, between two pixels where they are not whole."""
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    part = (at - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
    mixed = x.take(low, axis) * (1 - part) + x.take(high, axis) * part
    return np.asarray(np.where(part > 0, mixed, x.take(low, axis)))
