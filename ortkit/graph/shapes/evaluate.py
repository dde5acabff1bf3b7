"""Evaluate one node over constants.

Ops that only move data, integer arithmetic and the exactly rounded float ops run in numpy, which
gives ONNX Runtime's own bits. All others run in ONNX Runtime itself, one node at a time, or in
onnx's reference evaluator where no runtime is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.env import set_runtime_log
from ortkit.graph.shapes.numpy_ops import EXACT, MOVES, PLAIN, Array, Call

Inputs = Sequence[Array | None]


#: Results that ONNX Runtime hands over as numpy arrays of that very type (onnxruntime 1.31.1
#: gives float8 as uint8).
_STORED_TYPES = frozenset(
    f"tensor({name})"
    for name in ("bool", "float", "float16", "double", "int8", "int16", "int32", "int64",
                 "uint8", "uint16", "uint32", "uint64")
)  # fmt: skip


class Unsupported(Exception):  # noqa: N818 - a verdict, not an error
    """The node cannot be evaluated here; the message says why."""


def evaluate(node: ir.Node, inputs: Inputs, opsets: Mapping[str, int]) -> list[Array | None]:
    """Return the node's outputs, None for those that are not connected.

    Args:
        node: A node without subgraphs, of the default domain or one that ONNX Runtime knows.
        inputs: One array per input, None where the input is absent.
        opsets: Version of the node's domain.

    Raises:
        Unsupported: Neither numpy nor a runtime can evaluate it.
    """
    simple = EXACT.get(node.op_type) if node.domain == "" and len(node.outputs) == 1 else None
    is_known = node.op_type in MOVES or all(_is_plain(array) for array in inputs)
    if simple is not None and is_known:
        try:
            with np.errstate(all="ignore"):
                result = simple(Call(node, inputs, opsets[""]))
        except (ValueError, IndexError, TypeError, MemoryError) as error:
            raise Unsupported(f"numpy refuses it: {error}") from error
        if result is not None:
            return [np.ascontiguousarray(result).reshape(np.shape(result))]
    return _in_runtime(node, inputs, opsets)


def _is_plain(array: Array | None) -> bool:
    """Say whether the array is absent or has one of numpy's own number types."""
    return array is None or (array.dtype in PLAIN)


def _in_runtime(node: ir.Node, inputs: Inputs, opsets: Mapping[str, int]) -> list[Array | None]:
    if not _may_be_absent(node, inputs, opsets):
        # ONNX Runtime 1.31.1 loads such a node, and running it ends the process.
        raise Unsupported("an input is left out that the operator needs")
    model, feeds = _one_node_model(node, inputs, opsets)
    try:
        import onnxruntime
    except ImportError:
        return _in_reference(node, model, feeds)
    set_runtime_log(onnxruntime)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # it prints
        )
        for made in session.get_outputs():
            if made.type not in _STORED_TYPES:
                raise Unsupported(f"its result is a {made.type}")
        results = iter(session.run(None, feeds))
    except _runtime_errors() as error:
        raise Unsupported(f"ONNX Runtime cannot evaluate it: {_first_line(error)}") from error
    return [next(results) if value.name else None for value in node.outputs]


def _may_be_absent(node: ir.Node, inputs: Inputs, opsets: Mapping[str, int]) -> bool:
    """Say whether each input that is left out is optional, as far as ONNX knows the operator."""
    absent = [index for index, array in enumerate(inputs) if array is None]
    version = opsets.get(node.domain, 1)
    if not absent or not onnx.defs.has(node.op_type, version, node.domain):
        return True
    formal = onnx.defs.get_schema(node.op_type, version, node.domain).inputs
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return all(index < len(formal) and formal[index].option == optional for index in absent)


def _runtime_errors() -> tuple[type[Exception], ...]:
    """Return what ONNX Runtime raises: its own exceptions have no base but Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state

    found = vars(onnxruntime_pybind11_state).values()
    own = [each for each in found if isinstance(each, type) and issubclass(each, Exception)]
    return (RuntimeError, ValueError, *own)


def _in_reference(
    node: ir.Node, model: onnx.ModelProto, feeds: dict[str, Array]
) -> list[Array | None]:
    if node.domain != "":
        raise Unsupported("no ONNX Runtime is installed to evaluate it")
    from onnx.reference import ReferenceEvaluator

    try:
        results = iter(ReferenceEvaluator(model).run(None, feeds))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        raise Unsupported(f"the reference evaluator fails: {_first_line(error)}") from error
    return [np.asarray(next(results)) if value.name else None for value in node.outputs]


def _one_node_model(
    node: ir.Node, inputs: Inputs, opsets: Mapping[str, int]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    feeds: dict[str, Array] = {}
    infos = []
    names = []
    for i, array in enumerate(inputs):
        if array is None:
            names.append("")
            continue
        names.append(f"x{i}")
        if not _is_plain(array):
            raise Unsupported(f"its input has type {array.dtype}")
        feeds[f"x{i}"] = array
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        infos.append(onnx.helper.make_tensor_value_info(f"x{i}", dtype, array.shape))
    proto = ir.to_proto(node)
    assert isinstance(proto, onnx.NodeProto)
    del proto.input[:], proto.output[:]
    proto.input.extend(names)
    outputs = [f"y{i}" if value.name else "" for i, value in enumerate(node.outputs)]
    proto.output.extend(outputs)
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    imports = [onnx.helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    graph = onnx.helper.make_graph([proto], "one_node", infos, results)
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
