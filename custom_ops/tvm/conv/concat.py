"""Concats of NHWC images along channels: the generated kernel of their region is fast enough."""

from __future__ import annotations

from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes

# An element that is moved, by ONNX Runtime in NCHW and by ours in NHWC. Measured on one thread of
# an AMD EPYC (Zen 4, 2026-11-28), 20 to 128 pixels a side and 16 to 128 channels: 0.10 to 0.13,
# and 0.11 to 0.15.
_RUNTIME_NS, _OURS_NS = 0.1, 0.12


def estimate(sizes: ImageSizes) -> tuple[float, float]:
    """Return nanoseconds of a Concat; see `ImageAnchor`."""
    return _RUNTIME_NS * sizes.made, _OURS_NS * sizes.made


ANCHOR = ImageAnchor(
    "concat", (("", "Concat"),), "ortkit.fusion.conv.concat", estimate, alone="Concats"
)
