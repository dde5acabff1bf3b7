"""One ONNX node: as ONNX Runtime computes it, and as a kernel of its own does."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnxruntime as ort
from elementwise import Array, Elementwise, numpy_dtype
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ortkit.kernels.region.dtypes import ELEMENT_TYPES
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.refusal import Refused

TYPE_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}
_BFLOAT16 = TYPE_NUMBERS["bfloat16"]
# numpy computes with these, if at all, only by rounding after each step.
_WIDER = {"bfloat16": "float32", "float16": "float32"}
#: The opset of operators that 20 lacks.
LATE = {"BitCast": 26, "Swish": 24}


@dataclass(frozen=True)
class Node:
    """An operator on flat arrays of these types."""

    op_type: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """An identifier."""
        values = [f"{name}{value}" for name, value in self.attributes.items()]
        letters = "_".join([self.op_type, *self.inputs, *values])
        return "".join(c if c.isalnum() else "_" for c in letters)

    @property
    def output(self) -> str | Refused:
        """The result's type by the table of operators."""
        entry = POINTWISE_OPS[self.op_type]
        return entry.result(self.inputs, {**entry.attributes, **self.attributes})

    def kernel(self) -> Elementwise:
        """The node as the table writes it."""
        entry, output = POINTWISE_OPS[self.op_type], self.output
        assert isinstance(output, str), output
        attributes = {**entry.attributes, **self.attributes}
        return Elementwise(
            self.name, self.inputs, output, lambda e, x: entry.write(e, attributes, x)
        )


def run_by_onnxruntime(node: Node, feeds: Sequence[Array]) -> Array | None:
    """The node's result in ONNX Runtime, None if it has no kernel for it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = _model(node).SerializeToString()
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions have no common class
        if "NOT_IMPLEMENTED" in str(error) or "Type Error" in str(error):
            return None
        raise
    values = {f"x{i}": as_value(array) for i, array in enumerate(cut(node, feeds))}
    (result,) = session.run_with_ort_values(["y"], values)
    output = node.output
    assert isinstance(output, str)
    return as_array(result, output, feeds[0].size)


def run_by_reference(node: Node, feeds: Sequence[Array]) -> Array:
    """The node's result in ONNX's reference implementation; bfloat16 by way of float32."""
    wide = replace(node, inputs=tuple(_WIDER.get(dtype, dtype) for dtype in node.inputs))
    output = node.output
    assert isinstance(output, str)
    arrays = [
        array.astype(np.float32) if dtype in _WIDER else array
        for array, dtype in zip(cut(node, feeds), node.inputs, strict=True)
    ]
    evaluator = ReferenceEvaluator(_model(wide))
    with np.errstate(all="ignore"):
        (result,) = evaluator.run(None, {f"x{i}": array for i, array in enumerate(arrays)})
        return np.asarray(result).astype(numpy_dtype(output))


def cut(node: Node, feeds: Sequence[Array]) -> list[Array]:
    """Clip's bounds are scalars."""
    if node.op_type != "Clip":
        return list(feeds)
    return [feeds[0], *(array[:1].reshape(()) for array in feeds[1:])]


def _model(node: Node) -> onnx.ModelProto:
    output = node.output
    assert isinstance(output, str)
    values = [
        helper.make_tensor_value_info(
            f"x{i}", TYPE_NUMBERS[dtype], [] if i and node.op_type == "Clip" else ["n"]
        )
        for i, dtype in enumerate(node.inputs)
    ]
    graph = helper.make_graph(
        [helper.make_node(node.op_type, [v.name for v in values], ["y"], **node.attributes)],
        "node",
        values,
        [helper.make_tensor_value_info("y", TYPE_NUMBERS[output], ["n"])],
    )
    opsets = [helper.make_opsetid("", LATE.get(node.op_type, 20))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def as_value(array: Array) -> ort.OrtValue:
    """A tensor for `run_with_ort_values`; numpy has no bfloat16 of its own."""
    if array.dtype.name == "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def as_array(value: ort.OrtValue, dtype: str, size: int) -> Array:
    """A result of it: `size` elements of `dtype`."""
    if dtype != "bfloat16":
        return np.asarray(value.numpy())
    pointer = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_uint16))
    bits = np.ctypeslib.as_array(pointer, (size,)).copy()
    return bits.view(numpy_dtype("bfloat16"))
