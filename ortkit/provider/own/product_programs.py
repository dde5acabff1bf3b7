"""The program of one product: a kernel over rows and a matrix that is packed in panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.fusion.cost import Prediction
from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.kernels.sizes import extent_of
from ortkit.provider.own.draft import spec_of
from ortkit.provider.own.heavy import Builder, Heavy, Judge
from ortkit.provider.own.weights import WIDTH, Origin, panels
from ortkit.rewrite.scope import Scope

_GELU_SINCE = 20


@dataclass(frozen=True)
class Product:
    """Rows of `x`, as [rows, depth], times `matrix` [depth, columns], plus `bias` [columns].

    `count` is the number of rows, nominal where it is not known; `origin` is what `matrix` is of.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    rows: int | str
    count: int
    matrix: np.ndarray
    origin: Origin | None
    bias: np.ndarray | None
    tail: tuple[ir.Node, ...]
    end: ir.Value

    @property
    def multiplies(self) -> int:
        """The multiply-adds of a run."""
        return self.count * self.matrix.size


def group_of(scope: Scope, one: Product, prediction: Prediction, judge: Judge) -> Heavy | Refused:
    """Return the group of a product, or why there is none."""
    depth, columns = one.matrix.shape
    given, made = spec_of(scope, one.x), spec_of(scope, one.end)
    if isinstance(given, Refused):
        return given
    if isinstance(made, Refused):
        return made
    builder = Builder(bakes=False, judge=judge, opset=scope.opset())
    x = builder.view(_spec("x", (one.rows, depth)), builder.enter(given))
    packed = panels(one.matrix)
    weights = [builder.weight(_spec("w", packed.shape), packed, one.origin)]
    if one.bias is not None:
        weights.append(builder.weight(_spec("b", one.bias.shape), one.bias))
    result = _spec("y", (one.rows, columns))
    place = builder.add(result)
    rows = _name_of(one.rows, (*given.shape, *made.shape))
    constants = [builder.tensors[weight] for weight in weights]
    specs = (_spec("x", (rows, depth)), *constants)
    name = "_".join(["product", *(node.op_type.lower() for node in one.tail)])
    signature = RegionSignature(name, _body(scope, one), specs, (_spec("y", (rows, columns)),))
    builder.step(signature, (x, *weights), (place,))
    if builder.refused is not None:
        return builder.refused
    program = builder.program(name, [builder.view(made, place)])
    regions = tuple(node.outputs[0].name or "" for node in one.nodes)
    return Heavy(
        program, (one.x,), (one.end,), builder.held, frozenset(one.nodes), prediction, regions,
        builder.origins,
    )  # fmt: skip


def _name_of(rows: int | str, sizes: Sequence[int | str]) -> int | str:
    """Return what the kernel calls a number of rows: products of sizes it could not tell apart."""
    if isinstance(rows, int) or len(extent_of(rows).symbols) == 1:
        return rows
    name, known = "rows", {symbol for size in sizes for symbol in extent_of(size).symbols}
    while name in known:
        name += "_"
    return name


def _spec(name: str, shape: Sequence[int | str]) -> TensorSpec:
    return TensorSpec(name, "float32", tuple(shape))


def _body(scope: Scope, one: Product) -> str:
    """Return a product with a packed matrix, as kernels know it, with what follows."""
    depth, columns = one.matrix.shape
    padded = -(-columns // WIDTH) * WIDTH
    nodes = [
        helper.make_node("Transpose", ["w"], ["planar"], perm=[1, 0, 2]),
        _constant("sizes", np.array([depth, padded])),
        helper.make_node("Reshape", ["planar", "sizes"], ["whole"]),
    ]
    matrix = "whole"
    if padded > columns:
        bounds = {"zero": 0, "columns": columns, "axis": 1}
        nodes += [_constant(name, np.array([bound])) for name, bound in bounds.items()]
        nodes.append(helper.make_node("Slice", ["whole", *bounds], ["matrix"]))
        matrix = "matrix"
    value = "t"
    nodes.append(helper.make_node("MatMul", ["x", matrix], [value]))
    inputs = ["x", "w"]
    if one.bias is not None:
        inputs.append("b")
        nodes.append(helper.make_node("Add", [value, "b"], ["sum"]))
        value = "sum"
    for number, node in enumerate(one.tail):
        names = []
        for index, operand in enumerate(node.inputs):
            array = None if operand is None else scope.array(operand, 1)
            if array is None:
                names.append("" if operand is None else value)
                continue
            names.append(f"c{number}_{index}")
            nodes.append(_constant(names[-1], array.reshape(())))
        attributes = {key: each.value for key, each in node.attributes.items()}
        nodes.append(helper.make_node(node.op_type, names, [f"t{number}"], **attributes))
        value = f"t{number}"
    function = onnx.FunctionProto(name="product", domain=DOMAIN, input=inputs, output=[value])
    function.node.extend(nodes)
    function.opset_import.add(domain="", version=max(scope.opset(), _GELU_SINCE))
    return body_text(function)


def _constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
