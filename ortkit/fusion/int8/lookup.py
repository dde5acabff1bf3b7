"""Functions of one byte: what follows a quantized value, as a table of 256 bytes.

A SiLU in QDQ format is five operators on bytes, each a pass over memory in ONNX Runtime. What is
computed from one byte alone is known when the model is optimized. ONNX Runtime itself computes the
table, under its own optimizations, so that results are its own to the bit. It does so in a process
of its own, for all functions of a graph at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ortkit.analysis.quantization import is_op
from ortkit.errors import InternalError
from ortkit.fusion.int8.grids import MICROSOFT, Array, Grid, grid_of
from ortkit.fusion.int8.lookup_child import BYTES, Outcome, Table, TablesJob, tables
from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.growth import next_step
from ortkit.isolation.ended import Ended
from ortkit.isolation.run import run_isolated
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

#: Nodes of a function that are looked at.
_MOST = 12
#: ONNX Runtime's operators on bytes that read numbers beside one value.
_ON_BYTES = frozenset({"QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid"})
#: For all functions of a graph, and for one.
_ALL_SECONDS, _ONE_SECONDS = 120.0, 20.0
#: What became of functions, by their models; the most that are kept.
_KNOWN: dict[bytes, Outcome] = {}
_MOST_KNOWN = 4096
_Function: TypeAlias = tuple[tuple[ir.Node, ...], Grid]


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
) -> Lookup | Refused | None:
    """Return the longest function of a value in bytes that makes bytes again.

    Args:
        scope: The graph's.
        value: uint8.
        is_free: Says whether a region may take in a node.

    Returns:
        None if no such function follows; `Refused` if ONNX Runtime makes no table of it.
    """
    found = _function(scope, value, is_free)
    if found is None:
        return None
    nodes, grid = found
    model = _model(scope, value, nodes)
    if model not in _KNOWN:
        _compute([model, *_others(scope, nodes[0])])
    outcome = _KNOWN[model]
    if not isinstance(outcome, Table):
        return Refused(f"no table of a function of bytes: {outcome}")
    return Lookup(nodes, np.frombuffer(outcome.data, np.uint8), grid)


def _function(
    scope: Scope, value: ir.Value, is_free: Callable[[ir.Node], bool]
) -> _Function | None:
    nodes, end, found = list[ir.Node](), value, None

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
    return found


def _others(scope: Scope, beside: ir.Node) -> Iterator[bytes]:
    """Yield the models of the functions of all bytes in a node's graph."""
    graph = beside.graph
    for node in graph or ():
        if not node.outputs or scope.shapes.dtype(node.outputs[0]) != ir.DataType.UINT8:
            continue
        found = _function(scope, node.outputs[0], lambda one: one.graph is graph)
        if found is not None:
            yield _model(scope, node.outputs[0], found[0])


def _compute(models: Iterable[bytes]) -> None:
    """Find out what becomes of functions; if all of them give nothing, of each alone."""
    wanted = tuple(model for model in dict.fromkeys(models) if model not in _KNOWN)
    if len(_KNOWN) + len(wanted) > _MOST_KNOWN:
        _KNOWN.clear()
    try:
        made = run_isolated(tables, TablesJob(wanted), timeout_seconds=_ALL_SECONDS)
        if not isinstance(made, Ended):
            _KNOWN.update(zip(wanted, made, strict=True))
            return
        for model in wanted:
            one = run_isolated(tables, TablesJob((model,)), timeout_seconds=_ONE_SECONDS)
            _KNOWN[model] = f"the process {one}" if isinstance(one, Ended) else one[0]
    except InternalError as error:
        _KNOWN.update(dict.fromkeys(wanted, str(error)))


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
    names = {value: "x"}
    initializers, protos = list[onnx.TensorProto](), list[onnx.NodeProto]()

    def name(one: ir.Value | None) -> str:
        if one is None:
            return ""
        if one not in names:
            names[one] = f"v{len(names)}"
            array = scope.array(one, 1)
            if array is not None:
                initializers.append(numpy_helper.from_array(np.asarray(array), names[one]))
        return names[one]

    for node in nodes:
        proto = ir.to_proto(node)
        assert isinstance(proto, onnx.NodeProto)
        for field in ("name", "doc_string", "metadata_props", "input", "output"):
            proto.ClearField(field)
        proto.input.extend(map(name, node.inputs))
        proto.output.extend(map(name, node.outputs))
        protos.append(proto)
    graph = helper.make_graph(
        protos, "lookup", [helper.make_tensor_value_info("x", TensorProto.UINT8, [BYTES])],
        [helper.make_tensor_value_info(protos[-1].output[0], TensorProto.UINT8, [BYTES])],
        initializers,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", scope.opset()), helper.make_opsetid(MICROSOFT, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data: bytes = made.SerializeToString(deterministic=True)
    return data
