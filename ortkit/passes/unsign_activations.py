"""unsign-activations: quantized activations in uint8, where there are kernels for these alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op, zero_of
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

_INT8 = ir.DataType.INT8
#: Operators whose integer kernels want one type of all that they read and give; weights of
#: products are not among them.
_OF_ONE_TYPE = frozenset(
    {"Add", "Concat", "Div", "Gather", "Max", "Min", "Mul", "Pow", "Sub", "Where"}
)


@dataclass(frozen=True)
class UnsignActivations(NodePass):
    """Let int8 activations be uint8, each number and zero point 128 larger.

    On x86 ONNX Runtime makes integer kernels of groups whose activations are uint8. Its own
    conversion (1.31.1) leaves out what several nodes read, and so most of a residual network.
    On CUDA kernels of ours convolve uint8.

    Before:
        q = QuantizeLinear(x, scale, zero)         # zero: int8
        y = DequantizeLinear(q, scale, zero)
    After:
        q = QuantizeLinear(x, scale, zero + 128)   # uint8
        y = DequantizeLinear(q, scale, zero + 128)

    Skips:
        * Quantized numbers that are read otherwise, or returned.
        * Weights, zero points that are not constant.
        * Numbers that are quantized again at once. ONNX Runtime (1.31.1) merges two pairs of one
          type into one on a grid of its own, and leaves pairs of two types alone.
        * Processors that have kernels for int8.

    Source:
        ONNX QuantizeLinear-10 ... 25: the quotient is rounded and the zero point added before it
        is cut off at the ends of the type, so that both give the same values.
    """

    name: ClassVar[str] = "unsign-activations"
    ops: ClassVar[Sequence[str]] = (
        "QuantizeLinear", "com.microsoft::QuantizeLinear",
        "DequantizeLinear", "com.microsoft::DequantizeLinear",
    )  # fmt: skip

    def rewrite(self, site: Site) -> None:
        if site.traits.has_signed_int8(site.scope.target.level):
            return
        if is_op(site.node, "QuantizeLinear"):
            self._activations(site)
        else:
            self._constant(site)

    def _activations(self, site: Site) -> None:
        if site.dtype(site.output) != _INT8:
            return
        readers = [(use.node, use.idx) for use in site.output.uses()]
        if site.output.is_graph_output() or not readers:
            return
        if not all(index == 0 and is_op(node, "DequantizeLinear") for node, index in readers):
            site.miss("its numbers are read otherwise than by DequantizeLinear")
            return
        if _is_requantized(site, [node for node, _ in readers]):
            site.miss("its numbers are quantized again at once")
            return
        nodes = [site.node, *(node for node, _ in readers)]
        zeros = [zero_of(site, node, _INT8) for node in nodes]
        if not all(zero is not None and zero.dtype == np.int8 for zero in zeros):
            site.miss("its zero point is not constant")
            return
        if not site.claim("uint8"):
            return
        scale = self._single(site, site.node)
        made = site.op(
            "QuantizeLinear", [site.node.inputs[0], scale, self._raised(site, zeros[0])],
            {a.name: a.value for a in site.node.attributes.values() if a.name != "output_dtype"},
            domain=site.node.domain,
        )  # fmt: skip
        for (node, _), zero in zip(readers, zeros[1:], strict=True):
            site.scope.set_input(node, 1, self._single(site, node))
            _set_zero(site, node, self._raised(site, zero))
            site.scope.set_input(node, 0, made)

    def _constant(self, site: Site) -> None:
        """Convert the constant operand of a sum, so that it has the type of the other one."""
        value = site.input(0)
        if value is None or site.dtype(value) != _INT8 or not site.scope.is_constant(value):
            return
        uses = list(site.output.uses())
        if not uses or any(use.node.op_type not in _OF_ONE_TYPE for use in uses):
            return
        numbers, zero = site.array(value), zero_of(site, site.node, _INT8)
        if numbers is None or zero is None or zero.dtype != np.int8:
            site.miss("its zero point is not constant")
            return
        if site.claim("uint8-constant"):
            site.scope.set_input(site.node, 1, self._single(site, site.node))
            _set_zero(site, site.node, self._raised(site, zero))
            site.set_input(0, self._raised(site, numbers, is_single=False))

    @staticmethod
    def _raised(site: Site, numbers: np.ndarray | None, *, is_single: bool = True) -> ir.Value:
        assert numbers is not None
        # 128 more of eight bits is the first bit flipped.
        raised = np.asarray(np.asarray(numbers, np.int8).view(np.uint8) ^ 128)
        return site.constant(raised.reshape(()) if is_single and raised.size == 1 else raised)

    @staticmethod
    def _single(site: Site, node: ir.Node) -> ir.Value | None:
        """Return the scale; one of one number as a scalar, as QLinearAdd of ONNX Runtime wants."""
        scale = site.array(node.inputs[1], 1)
        is_row = scale is not None and scale.size == 1 and scale.ndim > 0
        return site.constant(scale.reshape(())) if is_row and scale is not None else node.inputs[1]


def _is_requantized(site: Site, readers: Sequence[ir.Node]) -> bool:
    """Say whether QuantizeLinear directly follows a DequantizeLinear, on either side."""
    source = site.input(0)
    if source is not None and is_op(source.producer(), "DequantizeLinear"):
        return True
    after = (use.node for node in readers for use in node.outputs[0].uses())
    return any(is_op(node, "QuantizeLinear") for node in after)


def _set_zero(site: Site, node: ir.Node, zero: ir.Value) -> None:
    site.scope.set_input(node, 2, zero)
