"""fuse-gelu: x * (1 + erf(x / sqrt 2)) / 2, however it is written, becomes Gelu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Exporters round 1 / sqrt 2 to as few as four digits.
CLOSE = 1e-3


@dataclass(frozen=True)
class FuseGelu(NodePass):
    """Recognize the erf form of GELU from its Erf outward.

    Before:
        t = Add(Erf(Div(x, 1.4142)), 1);  y = Mul(Mul(x, t), 0.5)
    After:
        y = Gelu(x)                    # com.microsoft::Gelu below opset 20

    The product may be in any order and association, with 0.5 as a factor or 2 as a divisor.

    Skips:
        * Inner results that others read, or that a graph returns.
        * Element types other than float32: ONNX Runtime's CPU provider has no such Gelu.

    Source:
        Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016); ONNX Gelu-20.
    """

    name: ClassVar[str] = "fuse-gelu"
    ops: ClassVar[Sequence[str]] = ("Erf",)

    def rewrite(self, site: Site) -> None:
        scaled = site.producer(site.input(0), "Mul", "Div")
        x = None if scaled is None else _unscaled(site, scaled)
        if x is None:
            return
        shifted = _consumer(site, site.output, "Add")
        if shifted is None or not _has_operand(site, shifted, 1.0):
            site.miss("its result is not used as 1 + erf(...)")
            return
        end = _product_end(site, x, shifted.outputs[0])
        if end is None:
            site.miss("1 + erf(...) is not multiplied by x and one half alone")
            return
        if site.dtype(x) != ir.DataType.FLOAT:
            site.miss("only float32 has a Gelu kernel on every provider")
            return
        last = Site(site.scope, end, self.name)
        if not last.claim("erf"):
            return
        if site.opset >= 20:
            made = last.op("Gelu", [x])
        else:
            site.scope.import_domain("com.microsoft", 1)
            made = last.op("Gelu", [x], domain="com.microsoft")
        last.replace(made)


def _unscaled(site: Site, node: ir.Node) -> ir.Value | None:
    """Return x where `node` computes x / sqrt 2."""
    for constant, other in ((1, 0), (0, 1)):
        number = site.scalar(node.inputs[constant])
        if number is None or (node.op_type == "Div" and constant == 0):
            continue
        factor = 1 / number if node.op_type == "Div" and number else float(number)
        if math.isclose(factor, math.sqrt(0.5), rel_tol=CLOSE):
            return node.inputs[other]
    return None


def _consumer(site: Site, value: ir.Value, *op_types: str) -> ir.Node | None:
    """Return the only node that reads `value`, if it is one of these ops."""
    if not site.only_use(value):
        return None
    node = next(iter(value.consumers()))
    return node if node.domain == "" and node.op_type in op_types else None


def _has_operand(site: Site, node: ir.Node, number: float) -> bool:
    return any(site.scalar(value) == number for value in node.inputs)


def _product_end(site: Site, x: ir.Value, factor: ir.Value) -> ir.Node | None:
    """Return the node where the product of `factor`, x and one half is complete."""
    value, scale, times_x = factor, 1.0, 0
    for _ in range(3):
        node = _consumer(site, value, "Mul", "Div")
        if node is None or (node.op_type == "Div" and node.inputs[0] is not value):
            return None
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        number, power = _as_scaled(site, other, x)
        if number is None or (node.op_type == "Div" and power):
            return None
        scale = scale / number if node.op_type == "Div" else scale * number
        times_x += power
        value = node.outputs[0]
        if times_x == 1 and math.isclose(scale, 0.5, rel_tol=1e-6):
            return node
        if times_x > 1:
            return None
    return None


def _as_scaled(site: Site, value: ir.Value | None, x: ir.Value) -> tuple[float | None, int]:
    """Read `value` as number * x ** power with power 0 or 1; (None, 0) if it is no such thing."""
    if value is x:
        return 1.0, 1
    if (number := site.scalar(value)) is not None:
        return float(number), 0
    node = site.producer(value, "Mul", "Div")
    if node is None or value is None or not site.only_use(value):
        return None, 0
    for constant, other in ((1, 0), (0, 1)):
        number = site.scalar(node.inputs[constant])
        if (
            number is None
            or node.inputs[other] is not x
            or (node.op_type == "Div" and not constant)
        ):
            continue
        return (1 / number if node.op_type == "Div" else float(number)), 1
    return None, 0
