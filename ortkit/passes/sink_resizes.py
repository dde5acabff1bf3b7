"""sink-resizes: convolutions of single pixels before the enlargements that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.pointwise_conv import is_pointwise, with_channels
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: What one element of an Add and of a Resize takes, in multiply-adds of a convolution. Measured on
#: one thread of a Zen 4 (ONNX Runtime 1.31.1, 4 million float32, 2026-11-28): 0.28 ns, and 2.0 ns
#: (linear; nearest 0.2 to 1.1). A 1x1 convolution does 34 to 42 multiply-adds a ns.
_ADD, _RESIZE = 12, 80


@dataclass(frozen=True)
class _Part:
    """One input of the convolution."""

    image: ir.Value
    """What is convolved: the input of the Resize, or the part itself."""
    resize: ir.Node | None
    channels: int
    growth: float
    """How many pixels the Resize makes of one; 1 without."""


@dataclass(frozen=True)
class SinkResizes(NodePass):
    """Move Resizes after a 1x1 convolution, where that is less work.

    Before:
        y = Conv(Concat<axis = 1>(Resize(a), Resize(b), c), W, bias)
    After:
        y = Add(Add(Resize(Conv(a, Wa)), Resize(Conv(b, Wb))), Conv(c, Wc, bias))

    Wa, Wb and Wc are the columns of W that multiply the channels of each part. A single Resize
    before the convolution is a Concat of one part. A Resize that changes no size goes away.

    Skips:
        * Where the sums and the wider Resizes take longer than what is saved.
        * A Resize that changes other sizes than those of pixels, that crops, or whose growth is
          unknown.
        * Values in between that others read, groups, strides, padding, weights that are computed.

    Source:
        Resize is the same linear map for each channel, and its weights add up to 1.
    """

    name: ClassVar[str] = "sink-resizes"
    ops: ClassVar[Sequence[str]] = ("Conv",)

    def rewrite(self, site: Site) -> None:
        read = site.input(0)
        source = site.producer(read, "Concat", "Resize")
        if read is None or source is None or site.opset < 11:
            return
        values = list(source.inputs) if source.op_type == "Concat" else [read]
        if not any(site.producer(value, "Resize") for value in values):
            return
        if source.op_type == "Concat" and source.attributes["axis"].as_int() not in (
            1,
            1 - _rank(site),
        ):
            site.miss("the parts are not joined along channels")
            return
        weight = site.array(site.input(1))
        if weight is None or not is_pointwise(site) or not site.only_use(read):
            site.miss(
                "it is no convolution of single pixels with a constant weight, or is read twice"
            )
            return
        parts = [_part(site, value) for value in values]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or sum(part.channels for part in known) != weight.shape[1]:
            site.miss("a part has unknown sizes, is read elsewhere, or its Resize crops")
            return
        if not _pays(known, weight.shape[0], has_concat=source.op_type == "Concat"):
            site.miss("sums and wider Resizes take longer than what is saved")
            return
        if site.claim("resize"):
            site.replace(_sum(site, known, weight))


def _rank(site: Site) -> int:
    return site.rank(site.input(0)) or 0


def _part(site: Site, value: ir.Value | None) -> _Part | None:
    """Return how a part is convolved, None where that is not known."""
    shape = site.shape(value)
    if value is None or shape is None or not isinstance(shape[1], int):
        return None
    node = site.producer(value, "Resize")
    if node is None:
        return _Part(value, None, shape[1], 1)
    image = node.inputs[0]
    resize, before = Site(site.scope, node, site.pass_name), site.shape(image)
    if image is None or before is None or before[:2] != shape[:2] or not site.only_use(value):
        return None
    if node.graph is not site.node.graph or not _is_plain(resize):
        return None
    if before[2:] == shape[2:]:
        return _Part(image, None, shape[1], 1)
    growth = _growth(resize, before[2:], shape[2:])
    return None if growth is None else _Part(image, node, shape[1], growth)


def _is_plain(resize: Site) -> bool:
    """Say whether each pixel is an average of pixels of its channel, with weights of sum 1."""
    modes = resize.string("mode", "nearest"), resize.string("keep_aspect_ratio_policy", "stretch")
    crops = resize.string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return modes in (("nearest", "stretch"), ("linear", "stretch")) and not crops


def _growth(resize: Site, before: Sequence[object], after: Sequence[object]) -> float | None:
    scales = resize.array(resize.input(2))
    if scales is not None and scales.size:
        return float(np.prod(scales))
    old, new = ([size for size in sizes if isinstance(size, int)] for sizes in (before, after))
    if len(old) < len(before) or len(new) < len(after) or not prod(old):
        return None
    return prod(new) / prod(old)


def _pays(parts: Sequence[_Part], filters: int, *, has_concat: bool) -> bool:
    """Say whether an enlarged pixel takes less time afterwards."""
    resized = [part for part in parts if part.resize is not None]
    saved = sum(part.channels * filters * (1 - 1 / part.growth) for part in resized)
    saved += _ADD * sum(part.channels for part in parts) * has_concat
    added = _ADD * filters * (len(parts) - 1)
    return saved > added + _RESIZE * sum(filters - part.channels for part in resized)


def _sum(site: Site, parts: Sequence[_Part], weight: np.ndarray) -> ir.Value:
    """Convolve each part, enlarge it, and add all: those that were not enlarged last."""
    starts = np.cumsum([0, *(part.channels for part in parts)])
    order = sorted(range(len(parts)), key=lambda i: parts[i].resize is None)
    total: ir.Value | None = None
    for index in order:
        part = parts[index]
        columns = np.ascontiguousarray(weight[:, starts[index] : starts[index + 1]])
        filters = site.constant(columns, f"{site.output.name}/weight{index}")
        # The bias goes where an epilogue of the convolution is most likely to take it.
        bias = site.input(2) if index == order[-1] else None
        value = site.op("Conv", [part.image, filters, *([bias] if bias is not None else [])])
        if part.resize is not None:
            value = _resized(site, part.resize, value, weight.shape[0])
        total = value if total is None else site.op("Add", [total, value])
    assert total is not None, "a convolution reads at least one part"
    return total


def _resized(site: Site, node: ir.Node, image: ir.Value, channels: int) -> ir.Value:
    inputs = [image, *node.inputs[1:]]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if len(inputs) > 3 and inputs[3] is not None and "axes" not in attributes:
        factors = _factors(site, node)
        if factors is None:
            inputs[3] = with_channels(site, inputs[3], channels, _rank(site))
        else:
            inputs[2:] = [site.constant(np.array([1, 1, *factors], np.float32))]
    return site.op("Resize", inputs, attributes)


def _factors(site: Site, node: ir.Node) -> list[int] | None:
    """Return whole factors that say the same as the sizes, None if there are none."""
    before, after = site.shape(node.inputs[0]), site.shape(node.outputs[0])
    pairs = list(zip((before or ())[2:], (after or ())[2:], strict=False))
    factors = [
        new // old
        for old, new in pairs
        if isinstance(old, int) and isinstance(new, int) and old and new % old == 0
    ]
    return factors if factors and len(factors) == len(pairs) else None
