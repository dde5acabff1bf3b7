"""The products with constant weights: what a CPU can compute in a lower precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array, is_constant
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import control_bodies, control_nodes_below
from ortkit.operators import where
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.site import describe

PASS = "lower-precision"
_OPS = ("MatMul", "Gemm", "Conv")
_FLOAT = ir.DataType.FLOAT
#: Nodes that tell that a model is quantized already where they stand.
QUANTIZED = where(access="quantize")


@dataclass(frozen=True, eq=False)
class Product:
    """A MatMul, Gemm or Conv of float32 with a constant weight, and the bias behind it."""

    node: ir.Node
    kind: Literal["product", "convolution", "attention"]
    x: ir.Value
    """What is multiplied: [..., k], or for a convolution [batch, channels, ...]."""
    weight: ir.Value
    """Constant; of attention the keys, which are not."""
    bias: ir.Value | None
    """Constant, [n], or of a Gemm or an Add behind a MatMul anything that is [n] but for ones."""
    last: ir.Node
    """The Add of the bias behind a MatMul, or the activation behind a Conv, else the node."""
    key: str
    """The name of what it computes, by which reports and ids name it."""

    def array(self) -> np.ndarray:
        """Return the weight: [k, n] for products, [n, channels, ...] for convolutions."""
        array = constant_array(self.weight)
        assert array is not None
        return array.T if self.is_transposed else array

    def bias_array(self) -> np.ndarray | None:
        """Return the bias as [n]; None if there is none."""
        array = None if self.bias is None else constant_array(self.bias)
        if array is None:
            return None
        count = self.array().shape[0 if self.kind == "convolution" else 1]
        return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (count,)))

    @property
    def activation(self) -> ir.Node | None:
        """The Relu or Clip that alone reads a convolution."""
        is_own = self.kind == "convolution" and self.last is not self.node
        return self.last if is_own else None

    @property
    def is_transposed(self) -> bool:
        """Whether the node reads the weight as [n, k]."""
        trans_b = self.node.attributes.get("transB")
        return self.node.op_type == "Gemm" and trans_b is not None and trans_b.as_int() == 1


def find_products(model: ir.Model, shapes: Shapes, log: RewriteLog) -> tuple[Product, ...]:
    """Return the products of the main graph; for others the reason goes into `log`."""
    found = []
    for node in model.graph:
        for body in control_bodies(node):
            for inner in control_nodes_below(body):
                if inner.op_type in _OPS and inner.domain == "":
                    _miss(log, inner, "it stands in a body of control flow")
        if node.op_type not in _OPS or node.domain != "":
            continue
        result = _read(model, shapes, node)
        if isinstance(result, Product):
            found.append(result)
        else:
            _miss(log, node, result)
    return tuple(found)


def _miss(log: RewriteLog, node: ir.Node, reason: str) -> None:
    log.miss(PASS, describe(node), reason, tuple(value.name or "" for value in node.outputs))


def _read(model: ir.Model, shapes: Shapes, node: ir.Node) -> Product | str:
    """Return a node as a product, or why it is none."""
    x, weight = node.inputs[0], node.inputs[1]
    assert x is not None and weight is not None
    if any(producer.op_type in QUANTIZED for producer in _beside(node)):
        return "it is quantized already"
    if not is_constant(weight, model):
        return "its weight is no constant"
    if is_constant(x, model):
        return "it is constant"
    if shapes.dtype(x) != _FLOAT or weight.dtype not in (None, _FLOAT):
        return "it is not in float32"
    array = constant_array(weight)
    if array is None or array.size == 0 or array.dtype != np.float32:
        return "its weight is not in float32"
    if not np.isfinite(array).all():
        return "its weight holds what is no number"
    if node.op_type == "Conv":
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return _with_bias(model, node, "convolution", x, weight, bias)
    if array.ndim != 2:
        return f"its weight has {array.ndim} axes"
    if node.op_type == "Gemm":
        return _gemm(model, node, x, weight)
    rank = shapes.rank(x)
    if rank is None or rank < 2:
        return "what it multiplies is no matrix"
    last, bias = _bias_behind(model, node, array.shape[1])
    return Product(node, "product", x, weight, bias, last, last.outputs[0].name or "")


def _gemm(model: ir.Model, node: ir.Node, x: ir.Value, weight: ir.Value) -> Product | str:
    def number(name: str, default: float) -> float:
        attribute = node.attributes.get(name)
        return default if attribute is None else float(attribute.value)

    if number("transA", 0):
        return "what it multiplies is transposed"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if number("alpha", 1) != 1 or (bias is not None and number("beta", 1) != 1):
        return "it scales what it computes"
    return _with_bias(model, node, "product", x, weight, bias)


def _with_bias(
    model: ir.Model,
    node: ir.Node,
    kind: Literal["product", "convolution"],
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
) -> Product | str:
    if bias is not None and not is_constant(bias, model):
        return "its bias is no constant"
    last = _activation_behind(model, node) if kind == "convolution" else node
    made = Product(node, kind, x, weight, bias, last, last.outputs[0].name or "")
    if bias is not None:
        array = constant_array(bias)
        rows = 1 if array is None or array.ndim < 2 else array.shape[0]
        if array is None or array.dtype != np.float32 or rows != 1:
            return "its bias is not one number for each column"
    return made


def _activation_behind(model: ir.Model, node: ir.Node) -> ir.Node:
    """Return the Relu, or Clip with constant bounds, that alone reads a node; else the node."""
    value = node.outputs[0]
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return node
    reader = uses[0].node
    if reader.domain != "" or reader.graph is not node.graph or uses[0].idx != 0:
        return node
    bounds = [value for value in reader.inputs[1:] if value is not None]
    fits = reader.op_type == "Relu" or (
        reader.op_type == "Clip" and all(is_constant(value, model) for value in bounds)
    )
    return reader if fits else node


def _bias_behind(model: ir.Model, node: ir.Node, columns: int) -> tuple[ir.Node, ir.Value | None]:
    """Return the Add of one constant for each column behind a MatMul, and the constant."""
    value = node.outputs[0]
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return node, None
    add = uses[0].node
    if add.op_type != "Add" or add.domain != "" or add.graph is not node.graph:
        return node, None
    other = add.inputs[1 - uses[0].idx]
    if other is None or other is value or not is_constant(other, model):
        return node, None
    array = constant_array(other)
    if array is None or array.dtype != np.float32 or array.shape != (columns,):
        return node, None
    return add, other


def _beside(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        if value is not None and (producer := value.producer()) is not None:
            yield producer
