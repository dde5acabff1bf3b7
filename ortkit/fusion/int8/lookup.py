"""Functions of one byte: what follows a quantized value, as a table of 256 bytes.

A SiLU in QDQ format is five operators on bytes, each a pass over memory in ONNX Runtime. What is
computed from one byte alone is known when the model is optimized. ONNX Runtime itself computes the
table, under its own optimizations, so that results are its own to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ortkit.analysis.quantization import is_op
from ortkit.env import set_runtime_log
from ortkit.fusion.int8.products import MICROSOFT, Array, Grid, grid_of
from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.growth import next_step
from ortkit.rewrite.scope import Scope

#: Bytes that there are.
BYTES = 256
#: Nodes of a function that are looked at.
_MOST = 12
#: ONNX Runtime's operators on bytes that read numbers beside one value.
_ON_BYTES = frozenset({"QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid"})


@dataclass(frozen=True)
class Lookup:
    """A function of bytes.

    Args:
        nodes: What computes it, in order.
        table: uint8 [256].
        grid: What its results stand for.
    """

    nodes: tuple[ir.Node, ...]
    table: Array
    grid: Grid


def find_lookup(
    scope: Scope, value: ir.Value, is_free: Callable[[ir.Node], bool]
) -> Lookup | None:
    """Return the longest function of a value in bytes that makes bytes again; None for none.

    Args:
        scope: The graph's.
        value: uint8.
        is_free: Says whether a region may take in a node.
    """
    nodes, end = list[ir.Node](), value
    found: tuple[tuple[ir.Node, ...], Grid] | None = None

    def is_inner(node: ir.Node) -> bool:
        return is_free(node) and _is_pointwise(node)

    while len(nodes) < _MOST:
        step = next_step(scope, end, is_inner, _MOST - len(nodes))
        if not step or not scope.shapes.same_shape(step[-1].outputs[0], value):
            break
        nodes += step
        end = nodes[-1].outputs[0]
        if (grid := _grid(scope, nodes[-1])) is not None:
            found = tuple(nodes), grid
    if found is None:
        return None
    table = _table(_model(scope, value, found[0]))
    return None if table is None else Lookup(found[0], np.frombuffer(table, np.uint8), found[1])


def _is_pointwise(node: ir.Node) -> bool:
    if is_op(node, "QuantizeLinear") or is_op(node, "DequantizeLinear"):
        return True
    if node.domain == MICROSOFT and node.op_type in _ON_BYTES:
        return True
    return access_of(node) == "elementwise"


def _grid(scope: Scope, node: ir.Node) -> Grid | None:
    """Return what the bytes stand for that a node makes; None if it makes none."""
    if scope.shapes.dtype(node.outputs[0]) != ir.DataType.UINT8:
        return None
    if is_op(node, "QuantizeLinear"):
        return grid_of(scope, node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None)
    if node.op_type in _ON_BYTES and len(node.inputs) > 4:
        return grid_of(scope, *node.inputs[-2:])
    return None


def _model(scope: Scope, value: ir.Value, nodes: Sequence[ir.Node]) -> bytes:
    """Return a model of nodes, on 256 bytes."""
    names, held, written = {value: "x"}, list[onnx.TensorProto](), list[onnx.NodeProto]()

    def name(one: ir.Value | None) -> str:
        if one is None:
            return ""
        if one not in names:
            names[one] = f"v{len(names)}"
            array = scope.array(one, 1)
            if array is not None:
                held.append(numpy_helper.from_array(np.asarray(array), names[one]))
        return names[one]

    for node in nodes:
        proto = ir.to_proto(node)
        assert isinstance(proto, onnx.NodeProto)
        for field in ("name", "doc_string", "metadata_props", "input", "output"):
            proto.ClearField(field)
        proto.input.extend(map(name, node.inputs))
        proto.output.extend(map(name, node.outputs))
        written.append(proto)
    graph = helper.make_graph(
        written, "lookup", [helper.make_tensor_value_info("x", TensorProto.UINT8, [BYTES])],
        [helper.make_tensor_value_info(written[-1].output[0], TensorProto.UINT8, [BYTES])], held,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", scope.opset()), helper.make_opsetid(MICROSOFT, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data: bytes = made.SerializeToString(deterministic=True)
    return data


@lru_cache(maxsize=1024)
def _table(model: bytes) -> bytes | None:
    """Return what ONNX Runtime makes of all bytes; None if it does not run the model."""
    import onnxruntime

    set_runtime_log(onnxruntime)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        (made,) = session.run(None, {"x": np.arange(BYTES, dtype=np.uint8)})
    except Exception:  # noqa: BLE001 - its exceptions have no base of their own
        return None
    return made.tobytes() if made.dtype == np.uint8 and made.shape == (BYTES,) else None
