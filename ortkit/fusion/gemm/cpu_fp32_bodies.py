"""What the kernel of a product computes, as a function of rows and a packed matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.fusion.gemm.cpu_fp32 import Product
from ortkit.fusion.regions.bodies import Call, is_runtime_own, standard_form
from ortkit.kernels.layouts.fp32_panels import constant_node, layout, matrix_nodes
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
    nodes = matrix_nodes("w", "matrix", one.depth, one.columns)
    nodes.append(helper.make_node("MatMul", ["x", "matrix"], ["p"]))
    inputs, value = ["x", "w"], "p"
    if one.bias is not None:
        inputs.append("b")
        nodes.append(helper.make_node("Add", [value, "b"], ["s"]))
        value = "s"
    for number, node in enumerate(one.epilogue):
        nodes += _step(scope, node, value, number, opset)
        value = f"t{number}"
    function = onnx.FunctionProto(name="product", domain=DOMAIN, input=inputs, output=[value])
    function.node.extend(nodes)
    function.opset_import.add(domain="", version=opset)
    return function


def _step(
    scope: Scope,
    node: ir.Node,
    value: str,
    number: int,
    opset: int,
) -> list[onnx.NodeProto]:
    """Return nodes that make `t<number>` of a value, as a node of the epilogue does."""
    nodes, names = list[onnx.NodeProto](), list[str]()
    for index, operand in enumerate(node.inputs):
        array = scope.array(operand, 1)
        if array is None:
            names.append("" if operand is None else value)
            continue
        names.append(f"c{number}_{index}")
        nodes.append(constant_node(names[-1], array.reshape(())))
    made = f"t{number}"
    if is_runtime_own(node):
        numbers = {key: each.as_float() for key, each in node.attributes.items()}
        call = Call(tuple(names), (made,), numbers, np.dtype(np.float32), opset)
        return [*nodes, *standard_form(node, call)]
    attributes = {key: each.value for key, each in node.attributes.items()}
    return [*nodes, helper.make_node(node.op_type, names, [made], **attributes)]
