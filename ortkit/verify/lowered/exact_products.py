"""Products of bytes by ONNX Runtime's kernels whose sums are exact.

ONNX defines products of quantized numbers by exact sums. Without VNNI ONNX Runtime's kernels for
AVX2 (1.31.1) add up two products of uint8 and int8 in 16 bits. These sums saturate where weights
have more than 7 bits. Those of its kernels for uint8 and uint8 do not. So int8 weights become
uint8 here, 128 larger, in the models that verification runs.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_tensor
from ortkit.graph.inline import inlined
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import names_in, nodes_below, take_name
from ortkit.targets.cpu import saturates_products

_MICROSOFT = "com.microsoft"
_QDQ = ("", _MICROSOFT)
#: Which inputs are what is multiplied, the weights, and the weights' zero points. The factors of a
#: ConvInteger are multiplied the other way round: of uint8 by int8 they do not saturate.
_OPERANDS: dict[tuple[str, str], tuple[int, int, int]] = {
    ("", "QLinearConv"): (0, 3, 5), ("", "QLinearMatMul"): (0, 3, 5),
    (_MICROSOFT, "QGemm"): (0, 3, 5), ("", "MatMulInteger"): (0, 1, 3),
    (_MICROSOFT, "MatMulIntegerToFloat"): (0, 1, 5),
    (_MICROSOFT, "DynamicQuantizeMatMul"): (0, 1, 3), (_MICROSOFT, "QAttention"): (0, 1, 7),
}  # fmt: skip
#: ONNX Runtime makes products of bytes of these, where they read DequantizeLinear.
_FLOAT_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
#: Added to the names of what is 128 larger.
_SUFFIX = "/uint8"
#: Magnitudes up to here do not saturate: 255 times two of them fit 16 bits.
_NARROW = 64


def with_exact_products(model: ir.Model) -> ir.Model:
    """Return a model whose products are exact, functions inlined; itself where all of them are."""
    if not saturates_products():
        return model
    copy = inlined(model)
    copy = model.clone() if copy is model else copy
    return copy if make_products_exact(copy) else model


def make_products_exact(model: ir.Model, names: Collection[str] | None = None) -> frozenset[str]:
    """Let weights be uint8 in a model, in place, where this processor's products saturate.

    Args:
        model: Bodies of functions are left alone.
        names: Of the weights that may change; None: all.

    Returns:
        The names of the weights that changed.
    """
    if not saturates_products():
        return frozenset()
    return _Change(model, names).run()


class _Change:
    """The change of one model."""

    def __init__(self, model: ir.Model, names: Collection[str] | None) -> None:
        self._model, self._wanted = model, names
        self._shapes = Shapes.infer(model)
        self._names = names_in(model)
        self._raised: dict[ir.Value, ir.Value] = {}

    def run(self) -> frozenset[str]:
        changed = set()
        for node in list(nodes_below(self._model.graph)):
            found = self._operands(node)
            if found is None:
                continue
            weight, zero = found
            value, zeros = node.inputs[weight], _input(node, zero)
            assert value is not None
            if self._wanted is not None and value.name not in self._wanted:
                continue
            raised = self._zero(node, zeros)
            if raised is None:
                continue
            changed.add(value.name or "")
            node.resize_inputs(max(len(node.inputs), zero + 1))
            node.replace_input_with(weight, self._weight(value, node))
            node.replace_input_with(zero, raised)
        return frozenset(changed)

    def _operands(self, node: ir.Node) -> tuple[int, int] | None:
        """Return the inputs that are weights and their zero points, where products saturate."""
        if node.op_type == "DequantizeLinear" and node.domain in _QDQ:
            value = node.inputs[0]
            is_wide = value is not None and self._is_wide(value)
            is_constant = value is not None and (
                constant_tensor(value) is not None or _quantizer(value) is not None
            )
            return (0, 2) if is_wide and is_constant and _is_multiplied(node.outputs[0]) else None
        found = _OPERANDS.get((node.domain, node.op_type))
        if found is None:
            return None
        x, weight, zero = found
        first, value = node.inputs[x], node.inputs[weight]
        if first is None or value is None or self._shapes.dtype(first) == ir.DataType.INT8:
            return None
        return (weight, zero) if self._is_wide(value) else None

    def _is_wide(self, value: ir.Value) -> bool:
        """Say whether numbers are int8, and some of them beyond 7 bits as far as is known."""
        tensor = constant_tensor(value)
        if tensor is None:
            return self._shapes.dtype(value) == ir.DataType.INT8
        if tensor.dtype != ir.DataType.INT8 or not tensor.size:
            return False
        numbers = tensor.numpy()
        return bool(numbers.max() > _NARROW or numbers.min() < -_NARROW)

    def _zero(self, node: ir.Node, value: ir.Value | None) -> ir.Value | None:
        """Return zero points 128 larger; None where they are not known."""
        if value is None:
            shape: tuple[int, ...] = ()
            if node.op_type == "DequantizeLinear":
                scale = node.inputs[1]
                known = None if scale is None else constant_tensor(scale)
                if known is None:
                    return None
                shape = tuple(known.shape.numpy())
            return self._constant("zero", ir.tensor(np.full(shape, 128, np.uint8)))
        tensor = constant_tensor(value)
        if tensor is None or tensor.dtype != ir.DataType.INT8:
            return None
        if value not in self._raised:
            self._raised[value] = self._constant(value.name or "zero", _as_uint8(tensor))
        return self._raised[value]

    def _weight(self, value: ir.Value, node: ir.Node) -> ir.Value:
        tensor = constant_tensor(value)
        if tensor is not None:
            if value not in self._raised:
                self._raised[value] = self._constant(value.name or "weight", _as_uint8(tensor))
            return self._raised[value]
        quantizer = _quantizer(value)
        zero = None if quantizer is None else self._zero(quantizer, quantizer.inputs[2])
        if quantizer is None or zero is None:
            return self._computed(value, node)
        made = ir.node(
            quantizer.op_type, [*quantizer.inputs[:2], zero], dict(quantizer.attributes),
            domain=quantizer.domain,
        )  # fmt: skip
        return self._insert(node, value, made, ir.DataType.UINT8)

    def _computed(self, value: ir.Value, node: ir.Node) -> ir.Value:
        """Return numbers that nodes in front of a node make 128 larger."""
        middle = self._constant("middle", ir.tensor(np.array(128, np.int32)))
        wide = ir.node("Cast", [value], {"to": int(ir.DataType.INT32)})
        larger = ir.node("Add", [wide.outputs[0], middle])
        made = ir.node("Cast", [larger.outputs[0]], {"to": int(ir.DataType.UINT8)})
        self._insert(node, value, wide, ir.DataType.INT32)
        self._insert(node, value, larger, ir.DataType.INT32)
        return self._insert(node, value, made, ir.DataType.UINT8)

    def _insert(
        self, node: ir.Node, value: ir.Value, step: ir.Node, dtype: ir.DataType
    ) -> ir.Value:
        """Return the result of a step that is inserted in front of a node."""
        result = step.outputs[0]
        result.name = take_name(self._names, f"{value.name}{_SUFFIX}")
        result.type = ir.TensorType(dtype)
        assert node.graph is not None
        node.graph.insert_before(node, step)
        return result

    def _constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a new constant of the main graph; nested graphs see it too."""
        name = take_name(self._names, f"{name}{_SUFFIX}")
        shape = ir.Shape(tensor.shape.numpy())
        new = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor
        )
        tensor.name = name
        self._model.graph.register_initializer(new)
        return new


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _quantizer(value: ir.Value) -> ir.Node | None:
    """Return the QuantizeLinear that makes int8 of a constant; None for other values."""
    node = value.producer()
    if node is None or node.op_type != "QuantizeLinear" or node.domain not in _QDQ:
        return None
    given = node.inputs[0]
    is_known = given is not None and constant_tensor(given) is not None
    return node if is_known and _input(node, 2) is not None else None


def _is_multiplied(value: ir.Value) -> bool:
    """Say whether a product reads a value, behind a Transpose if there is one."""
    nodes = [use.node for use in value.uses()]
    nodes += [
        use.node for node in nodes if node.op_type == "Transpose" for use in node.outputs[0].uses()
    ]
    return any(node.op_type in _FLOAT_PRODUCTS and not node.domain for node in nodes)


def _as_uint8(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return int8 numbers as uint8 that are 128 larger: of eight bits the first one flipped."""
    read = partial(_flipped, tensor)
    return ir.LazyTensor(read, ir.DataType.UINT8, ir.Shape(tensor.shape.numpy()))


def _flipped(tensor: ir.TensorProtocol) -> ir.Tensor[np.ndarray]:
    return ir.Tensor(np.asarray(tensor.numpy().view(np.uint8) ^ 128))
