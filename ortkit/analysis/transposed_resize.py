"""Resizes that ONNX Runtime breaks as it moves a Transpose over them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortkit.operators import where

#: What ONNX Runtime moves a Transpose over, among what stands between images.
_MOVED_OVER = (
    where(access="elementwise")
    | where(access="reduction")
    | {"Concat", "Identity", "Pad", "Resize", "Slice", "Softmax", "Split"}
)
REASON = "ONNX Runtime fails as it moves a Transpose over a Resize along axes, or a cubic one"


def breaks_resize(values: Iterable[ir.Value]) -> bool:
    """Say whether a Transpose that makes one of some values may break a Resize behind it.

    ONNX Runtime 1.31.1 permutes scales of some axes as if they were of all, and has no cubic
    Resize of NHWC.
    """
    left, seen = list(values), set[ir.Value]()
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        for node in value.consumers():
            if node.domain or node.op_type not in _MOVED_OVER:
                continue
            if node.op_type == "Resize" and _is_broken(node):
                return True
            left.extend(node.outputs)
    return False


def _is_broken(node: ir.Node) -> bool:
    mode = node.attributes.get("mode")
    is_cubic = mode is not None and not mode.is_ref() and mode.as_string() == "cubic"
    return is_cubic or "axes" in node.attributes
