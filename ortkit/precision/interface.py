"""lower-interface: a model's float32 inputs and outputs become half precision too."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.graph.walk import names_in, take_name
from ortkit.precision.lower import FLOAT, HALF_DTYPES
from ortkit.rewrite.log import Hit, RewriteLog
from ortkit.rewrite.passes import ModelPass


@dataclass(frozen=True)
class LowerInterface(ModelPass):
    """Take and give half precision where a model has float32; names and shapes stay.

    Before:
        x (float), y (float)
    After:
        x (float16): Cast(x, FLOAT) for those that read it;  y (float16): Cast of what it was

    Each input and output is a rewrite of its own, so that one that half precision does not hold
    can be taken back.

    Skips:
        * Inputs with a default value, which are weights as much as inputs.
    """

    name: ClassVar[str] = "lower-interface"
    to: str = "fp16"

    def run(self, model: ir.Model, log: RewriteLog) -> None:
        chosen = [
            name
            for kind, name in _float_names(model.graph)
            if log.claim(self.name, self.to, name, f"{kind} {name!r}")
        ]
        retype(model, chosen, HALF_DTYPES[self.to])


def lowered_names(hits: Iterable[Hit]) -> frozenset[str]:
    """Return the inputs and outputs that are in half precision by these rewrites."""
    return frozenset(
        hit.id.removeprefix(f"{hit.pass_name}:{hit.rule}:")
        for hit in hits
        if hit.pass_name == LowerInterface.name
    )


def with_float_interface(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Return a copy that takes and gives float32 again, for a comparison with the original."""
    copy = model.clone()
    retype(copy, names, FLOAT)
    return copy


def retype(model: ir.Model, names: Collection[str], dtype: ir.DataType) -> None:
    """Give inputs and outputs another type; inside the graph each is cast from or to what it was.

    Args:
        model: It is changed.
        names: Of inputs and outputs; an output that is an input goes with that.
        dtype: The type that they get.
    """
    graph, used = model.graph, names_in(model)
    for value in graph.inputs:
        if value.name in names and value.dtype is not None:
            _retype_input(graph, value, dtype, used)
    for value in dict.fromkeys(graph.outputs):
        if value.name in names and not value.is_graph_input() and value.dtype is not None:
            _retype_output(graph, value, dtype, used)


def _float_names(graph: ir.Graph) -> Iterable[tuple[str, str]]:
    for value in graph.inputs:
        if value.dtype == FLOAT and value.name and value.name not in graph.initializers:
            yield "input", value.name
    for value in dict.fromkeys(graph.outputs):
        if value.dtype == FLOAT and value.name and not value.is_graph_input():
            yield "output", value.name


def _retype_input(graph: ir.Graph, value: ir.Value, dtype: ir.DataType, used: set[str]) -> None:
    uses, was = list(value.uses()), value.dtype
    assert was is not None
    value.type = ir.TensorType(dtype)
    if not uses:
        return
    node = _cast(value, was, used)
    for use in uses:
        use.node.replace_input_with(use.idx, node.outputs[0])
    graph.insert_before(graph[0], node)


def _retype_output(graph: ir.Graph, value: ir.Value, dtype: ir.DataType, used: set[str]) -> None:
    node = _cast(value, dtype, used)
    made = node.outputs[0]
    graph.append(node)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = made
    # Initializers are known by their names.
    is_initializer = graph.initializers.get(value.name or "") is value
    if is_initializer:
        graph.initializers.pop(value.name or "")
    value.name, made.name = made.name, value.name
    if is_initializer:
        graph.register_initializer(value)
    made.doc_string, value.doc_string = value.doc_string, None


def _cast(value: ir.Value, dtype: ir.DataType, used: set[str]) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(dtype)})
    (made,) = node.outputs
    made.name = take_name(used, f"{value.name}/{dtype.name.lower()}")
    node.name = take_name(used, f"{made.name}/Cast")
    made.type, made.shape = ir.TensorType(dtype), value.shape
    return node
