"""The body of an op as ONNX Runtime runs it: a session of one node, whose function it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper

from ortkit.extend.body.function import opset_of
from ortkit.extend.check.op_cases import Array, Case, numpy_dtype
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.op_schema import Types
from ortkit.runtime.options import message
from ortkit.runtime.ort import import_onnxruntime

#: IR 10 has every element type that ops may have.
_IR_VERSION = 10


@dataclass(frozen=True)
class NoSession:
    """Why a body is not run."""

    reason: str
    is_missing_kernel: bool
    """Whether ONNX Runtime has no kernel for the element types."""


def body_session(
    op: DeclaredOp, body: onnx.FunctionProto, types: Types, there: Sequence[bool]
) -> Callable[[Case], tuple[Array, ...]] | NoSession:
    """Return what runs a body on a case, or why nothing does."""
    ort = import_onnxruntime()
    inputs = [op_input for op_input, flag in zip(op.schema.inputs, there, strict=True) if flag]
    named = [(item.name, types[item.type.kind]) for item in inputs]
    model = _model(op, body, named, types)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
    except Exception as error:  # noqa: BLE001  ONNX Runtime's own classes
        text = message(error)
        is_missing = "NOT_IMPLEMENTED" in str(error) or "Could not find an implementation" in text
        return NoSession(text, is_missing)

    def run(case: Case) -> tuple[Array, ...]:
        arrays = [array for array in case.inputs if array is not None]
        values = [
            ort.OrtValue.ortvalue_from_numpy(one)
            if one.dtype.name != "bfloat16"
            else ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                one.view(np.uint16), onnx.TensorProto.BFLOAT16
            )
            for one in (each.copy(order="C") for each in arrays)
        ]
        feeds = {one.name: value for one, value in zip(inputs, values, strict=True)}
        found = session.run_with_ort_values(None, feeds)
        return tuple(np.asarray(one.numpy()) for one in found)

    return run


def _model(
    op: DeclaredOp,
    body: onnx.FunctionProto,
    inputs: Sequence[tuple[str, str]],
    types: Types,
) -> onnx.ModelProto:
    """Return a model of one node of the op, with the body as its function."""

    def info(name: str, dtype: str) -> onnx.ValueInfoProto:
        code = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
        return onnx.helper.make_tensor_value_info(name, code, None)

    node = onnx.helper.make_node(
        op.name, [item[0] for item in inputs], [f"out_{name}" for name in op.schema.outputs],
        domain=op.domain,
    )  # fmt: skip
    node.attribute.extend(
        onnx.helper.make_attribute(
            name,
            int(attribute.default) if isinstance(attribute.default, bool) else attribute.default,
        )
        for name, attribute in op.schema.attributes.items()
        if attribute.default is not None and attribute.default != ()
    )
    graph = onnx.helper.make_graph(
        [node], "g", [info(name, dtype) for name, dtype in inputs],
        [info(f"out_{name}", types[kind.kind]) for name, kind in op.schema.outputs.items()],
    )  # fmt: skip
    opsets = [
        onnx.helper.make_opsetid("", opset_of(body)),
        onnx.helper.make_opsetid(op.domain, op.version),
        *(one for one in body.opset_import if one.domain not in ("", "ai.onnx")),
    ]
    return onnx.helper.make_model(
        graph, opset_imports=opsets, functions=[body], ir_version=_IR_VERSION
    )
