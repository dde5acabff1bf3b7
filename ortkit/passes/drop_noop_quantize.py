"""drop-noop-quantize: what was quantized already is not quantized once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op, quantized_axis, scale_of, zero_of
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

_D = ir.DataType
#: Types whose numbers, times a scale and divided by it, round to themselves in float32.
_EXACT = frozenset({_D.INT4, _D.UINT4, _D.INT8, _D.UINT8, _D.INT16, _D.UINT16})
#: Of QuantizeLinear's precision: as its input, or float32.
_FLOATS = (0, int(_D.FLOAT))
#: Scales whose products with all of those numbers are finite and normal.
_LEAST, _MOST = 2.0**-126, 2.0**100


@dataclass(frozen=True)
class DropNoopQuantize(NodePass):
    """Skip a DequantizeLinear and QuantizeLinear with the same scale and zero point.

    Such pairs are left where what stood between them is removed, and hide from ONNX Runtime that
    the convolution after them reads quantized numbers.

    Before:
        t = DequantizeLinear(q, scale, zero)
        y = QuantizeLinear(t, scale, zero)
    After:
        y = q

    Skips:
        * Scales or zero points that differ, or are not constant.
        * Types whose numbers float32 does not hold with a scale, and scales that are no float32.

    Source:
        ONNX QuantizeLinear-10 ... 25, DequantizeLinear-10 ... 25.
    """

    name: ClassVar[str] = "drop-noop-quantize"
    ops: ClassVar[Sequence[str]] = ("QuantizeLinear", "com.microsoft::QuantizeLinear")

    def rewrite(self, site: Site) -> None:
        value = site.input(0)
        before = None if value is None else value.producer()
        if before is None or not is_op(before, "DequantizeLinear"):
            return
        source = before.inputs[0]
        if source is None:
            return
        if reason := _difference(site, before, source):
            site.miss(reason)
        elif site.can_replace(source) and site.claim("same-grid"):
            site.replace(source)


def _difference(site: Site, before: ir.Node, source: ir.Value) -> str:
    """Return why the numbers after a pair may not be those before it; empty if they are."""
    dtype = site.dtype(source)
    if dtype is None or dtype != site.dtype(site.output) or dtype not in _EXACT:
        return "it is quantized to another type"
    scales = scale_of(site, before), scale_of(site, site.node)
    zeros = zero_of(site, before, dtype), zero_of(site, site.node, dtype)
    if any(array is None for array in (*scales, *zeros)):
        return "its scale or zero point is not constant"
    scale = scales[0]
    if scale is None or scale.dtype != np.float32:
        return "its scale is no float32"
    if site.dtype(before.outputs[0]) != _D.FLOAT or site.int("precision", 0) not in _FLOATS:
        return "what lies between is no float32"
    if not ((scale >= _LEAST) & (scale <= _MOST)).all():
        return "its scale is too small or too large to be exact"
    if not _same(*scales) or not _same(*zeros):
        return "it is quantized with another scale or zero point"
    if quantized_axis(site, before) != quantized_axis(site, site.node):
        return "it is quantized along another axis"
    return ""


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype:
        return False
    # One number is a scalar for some exporters and a vector for others.
    same_shape = one.shape == other.shape or one.size == other.size == 1
    return same_shape and bool((one.reshape(-1) == other.reshape(-1)).all())
