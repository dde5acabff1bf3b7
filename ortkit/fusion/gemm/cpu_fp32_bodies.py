"""What the kernel of a product computes, as a function of rows and a packed matrix."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ortkit.fusion.gemm.cpu_fp32 import Product
from ortkit.fusion.regions.bodies import write_step
from ortkit.fusion.regions.node_writer import NodeWriter
from ortkit.kernels.layouts.fp32_panels import layout
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.rewrite.scope import Scope

Shape = Sequence[int | str]


def product_signature(
    scope: Scope, one: Product, rows: tuple[Shape, Shape], opset: int
) -> RegionSignature:
    """Return the signature of a product: inputs x, the packed matrix, and the bias if it has one.

    Args:
        scope: Its graph's.
        one: The product.
        rows: The sizes of x and of the result, but for the last.
        opset: What the body is written in.
    """
    depth, columns = one.depth, one.columns
    given, made = rows
    inputs = [_spec("x", (*given, depth)), _spec("w", layout(depth, columns).shape)]
    if one.bias is not None:
        inputs.append(_spec("b", (columns,)))
    name = "_".join(["product", *(node.op_type.lower() for node in one.epilogue)])
    body = body_text(_function(scope, one, opset))
    return RegionSignature(name, body, tuple(inputs), (_spec("y", (*made, columns)),))


def is_product(signature: RegionSignature) -> bool:
    """Say whether a signature is one of `product_signature`."""
    return signature.name.partition("_")[0] == "product"


def _spec(name: str, shape: Shape) -> TensorSpec:
    return TensorSpec(name, "float32", tuple(shape))


def _function(scope: Scope, one: Product, opset: int) -> onnx.FunctionProto:
    writer, inputs = NodeWriter(), ["x", "w"]
    matrix = writer.unpacked("w", layout(one.depth, one.columns))
    value = writer.op("MatMul", "x", matrix)
    if one.bias is not None:
        inputs.append("b")
        value = writer.op("Add", value, "b")
    for node in one.epilogue:
        value = _step(scope, node, value, writer, opset)
    function = onnx.FunctionProto(name="product", domain=DOMAIN, input=inputs, output=[value])
    function.node.extend(writer.nodes)
    function.opset_import.add(domain="", version=opset)
    return function


def _step(scope: Scope, node: ir.Node, value: str, writer: NodeWriter, opset: int) -> str:
    """Write what a node of the epilogue makes of a value, and return it."""
    names = []
    for operand in node.inputs:
        array = scope.array(operand, 1)
        if array is None:
            names.append("" if operand is None else value)
        else:
            names.append(writer.constant(array.reshape(())))
    return write_step(writer, node, names, opset)
