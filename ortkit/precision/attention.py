"""Attention in bfloat16: which has a kernel, and its nodes.

Before:
    y = Attention(q, k, v, mask)
After:
    y = widened(rounded(Attention(widened(q16), widened(k16), widened(v16), mask)))

q16 is q rounded, which the product before it does where there is one. ONNX Runtime's attention
then computes in float32; our kernel multiplies in bfloat16 and rounds the weights of values too.
So its result is no better than bfloat16, and is rounded, here or by all that read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.library import refusal
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.precision.building import Builder
from ortkit.precision.packed import rounded_once, widened
from ortkit.precision.products import Product
from ortkit.precision.unfused import ATTENTION
from ortkit.refusal import Refused
from ortkit.targets.target import Target

# The first opset with Attention.
_OPSET = 23

#: Of fewer queries it is keys and values that take the time, and packing them costs more.
_LEAST_QUERIES = 8
_FLOAT, _BF16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16
_OPERANDS = 3


def find_attention(model: ir.Model, shapes: Shapes) -> Iterator[Product]:
    """Yield the attention of the main graph on three operands of float32, with one result."""
    for node in model.graph:
        if node.op_type != "Attention" or node.domain:
            continue
        if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            continue
        operands = [value for value in node.inputs[:_OPERANDS] if value is not None]
        if len(operands) < _OPERANDS or any(
            shapes.dtype(operand) != _FLOAT for operand in operands
        ):
            continue
        query, key, _ = operands
        name = node.outputs[0].name or ""
        yield Product(node, "attention", query, key, None, node, name)


def attention_refusal(product: Product, shapes: Shapes, level: str) -> str:
    """Return why attention has no kernel in bfloat16, empty if it has.

    Args:
        product: From `find_attention`.
        shapes: Of its model.
        level: Of processors, or `native`.
    """
    node = product.node
    shape = shapes.shape(product.x)
    queries = None if shape is None or len(shape) < 3 else shape[-2]
    if isinstance(queries, int) and queries < _LEAST_QUERIES:
        return f"it has only {queries} queries"
    signature = _signature(node, shapes)
    if isinstance(signature, str):
        return signature
    refused = refusal(signature, Target("cpu", level), "tvm")
    return refused.reason if isinstance(refused, Refused) else ""


def _signature(node: ir.Node, shapes: Shapes) -> RegionSignature | str:
    """Return the region that such attention becomes at least, or why there is none."""
    specs: list[TensorSpec] = []
    for value in (*node.inputs, node.outputs[0]):
        if value is None:
            continue
        shape, dtype = shapes.shape(value), shapes.dtype(value)
        if shape is None or dtype is None:
            return "the shape of an operand is not known"
        sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
        specs.append(TensorSpec(f"x{len(specs)}", dtype.numpy().name, sizes))
    function = onnx.FunctionProto(name="f", domain=DOMAIN)
    *names, result = (spec.name for spec in specs)
    function.input.extend(names)
    function.output.append(result)
    function.opset_import.add(domain="", version=_OPSET)
    given = iter(names)
    read = [next(given) if value is not None else "" for value in node.inputs]
    for index in range(_OPERANDS):
        narrow, wide = f"n{index}", f"w{index}"
        for source, made, dtype in ((read[index], narrow, _BF16), (narrow, wide, _FLOAT)):
            function.node.append(helper.make_node("Cast", [source], [made], to=int(dtype)))
        read[index] = wide
    attributes = [ir.to_proto(attribute) for attribute in node.attributes.values()]
    function.node.append(helper.make_node("Attention", read, [result]))
    function.node[-1].attribute.extend(attributes)
    return RegionSignature("attention", body_text(function), tuple(specs[:-1]), (specs[-1],))


@dataclass(frozen=True, eq=False)
class RoundedAttention:
    """Attention whose operands are rounded to bfloat16."""

    product: Product
    name: str = "bf16"

    def emit(self, build: Builder) -> ir.Value:
        """Make casts there and back, and the node itself."""
        node, key = self.product.node, self.product.key
        operands = list(node.inputs)
        wide: dict[ir.Value, ir.Value] = {}
        for index in range(_OPERANDS):
            source = operands[index]
            assert source is not None
            if source not in wide:
                wide[source] = widened(build, rounded_once(build, source), f"{key}/operand")
            operands[index] = wide[source]
        made = build.again(node, operands, f"{key}{ATTENTION}")
        if _is_rounded_behind(node.outputs[0]):
            return made
        return widened(build, rounded_once(build, made), f"{key}/wide")


def _is_rounded_behind(value: ir.Value) -> bool:
    """Say whether all that reads a value rounds it to bfloat16."""
    return (
        bool(value.uses())
        and not value.is_graph_output()
        and all(
            use.node.op_type == "Cast" and use.node.attributes["to"].as_int() == _BF16
            for use in value.uses()
        )
    )
