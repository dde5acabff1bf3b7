"""sink-dequantize: bytes are moved instead of the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op, quantized_axis, scale_of, zero_of
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
#: Operators with kernels for bytes, and what may read their result as quantized numbers.
_MOVERS = ("Flatten", "MaxPool", "Reshape", "Squeeze", "Unsqueeze")
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: MaxPool of bytes.
_POOL_SINCE = 12


@dataclass(frozen=True)
class SinkDequantize(NodePass):
    """Move a DequantizeLinear after what only moves or compares its numbers.

    Some quantizers leave out QuantizeLinear behind such operators, and so hide from ONNX Runtime
    and from kernels that a product reads quantized numbers.

    Before:
        y = MaxPool(DequantizeLinear(q, scale, zero))
        z = Conv(y, DequantizeLinear(w, ...))
    After:
        y = DequantizeLinear(MaxPool(q), scale, zero)
        z = Conv(y, DequantizeLinear(w, ...))

    The operators are MaxPool, Reshape, Flatten, Squeeze and Unsqueeze.

    Skips:
        * Results that no product reads.
        * Results that a QuantizeLinear to another grid reads: ONNX Runtime (1.31.1) merges two
          pairs in a row into one, which changes numbers.
        * Several scales, scales that are not constant, not positive or not finite, constants.
        * MaxPool with indices or dilations, and GPUs.

    Source:
        A larger byte stands for a larger number, as the scale is positive.
    """

    name: ClassVar[str] = "sink-dequantize"
    ops: ClassVar[Sequence[str]] = _MOVERS

    def rewrite(self, site: Site) -> None:
        value = site.input(0)
        before = None if value is None else value.producer()
        if before is None or not is_op(before, "DequantizeLinear") or not site.traits.is_host:
            return
        numbers = before.inputs[0]
        if site.dtype(numbers) not in _BYTES or site.scope.is_constant(numbers):
            return
        readers = [(use.node, use.idx) for use in site.output.uses()]
        if not any(
            not node.domain and node.op_type in _PRODUCTS and index == 0 for node, index in readers
        ):
            return
        if reason := _refusal(site, before):
            site.miss(reason)
        elif site.claim("bytes"):
            node = site.node
            own = {each.name: each.value for each in node.attributes.values()}
            moved = site.op(node.op_type, [numbers, *node.inputs[1:]], own)
            # There is one scale, and no axis.
            kept = {a.name: a.value for a in before.attributes.values() if a.name != "axis"}
            inputs = [moved, *before.inputs[1:]]
            site.replace(site.op("DequantizeLinear", inputs, kept, domain=before.domain))


def _refusal(site: Site, before: ir.Node) -> str:
    """Return why a DequantizeLinear cannot be moved; empty if it can."""
    dtype = site.dtype(before.inputs[0])
    scale = scale_of(site, before)
    if scale is None or dtype is None or zero_of(site, before, dtype) is None:
        return "its scale or zero point is not constant"
    if scale.size != 1 or any(quantized_axis(site, before)):
        return "there are several scales"
    if not 0 < float(scale.reshape(())) < np.inf:
        return "its scale is not positive and finite"
    readers = [use.node for use in site.output.uses()]
    rounding = [node for node in readers if is_op(node, "QuantizeLinear")]
    if not all(_same_grid(site, before, node) for node in rounding):
        return "its result is quantized to another grid"
    if site.node.op_type != "MaxPool":
        return ""
    if site.opset < _POOL_SINCE:
        return f"MaxPool of bytes is there from opset {_POOL_SINCE} on"
    if len(site.node.outputs) > 1 or any(size != 1 for size in site.ints("dilations") or ()):
        return "a MaxPool with indices or dilations"
    return ""


def _same_grid(site: Site, before: ir.Node, after: ir.Node) -> bool:
    """Say whether a QuantizeLinear has the scale and the zero point of a DequantizeLinear."""
    dtype = site.dtype(before.inputs[0])
    if dtype is None or dtype != site.dtype(after.outputs[0]):
        return False
    scales = scale_of(site, before), scale_of(site, after)
    zeros = zero_of(site, before, dtype), zero_of(site, after, dtype)
    pairs = (scales, zeros)
    return all(
        one is not None and other is not None and one.size == other.size == 1
        and one.reshape(()) == other.reshape(())
        for one, other in pairs
    )  # fmt: skip
