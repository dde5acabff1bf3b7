"""A model without padding, for CUDA graphs: which tokens there are is said by an input.

`--skip-padding` lets a model find its tokens in each run, by NonZero, and a graph cannot be
captured for that: sizes would depend on values. So it is cut in two there. The first model says of
each position whether it is kept, and passes on what it has computed. The second one is the rest,
with the indices of tokens as an input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import names_in, take_name
from ortkit.kernels.metadata import TOKENS_KEY
from ortkit.runtime.source import Loadable

_INT64 = ir.TensorType(ir.DataType.INT64)
_SIZES = frozenset({"Shape", "Size"})


@dataclass(frozen=True)
class PackedModel:
    """The two models, and what they have beside the inputs and outputs of the original.

    Args:
        path: The model that computes tokens.
        chooser: The one that says which there are, from some of the inputs.
        indices: Of `path`, inputs [1, tokens] of int64: positions of all samples, ascending.
        kept: Of `chooser`, outputs of bool, an element for each position; as many as `indices`.
        passed: Outputs of `chooser` that are inputs of `path`.
        zero: An input [1] of int64 that holds 0, of either if it has it.
    """

    path: Path
    chooser: Path
    indices: tuple[str, ...]
    kept: tuple[str, ...]
    passed: tuple[str, ...]
    zero: str

    @property
    def hidden(self) -> frozenset[str]:
        """The inputs of `path` that the original has not."""
        return frozenset((*self.indices, *self.passed, self.zero))


def packed_model(source: Loadable, folder: Callable[[], Path]) -> PackedModel | None:
    """Write the models of one without padding; None if it has another form, or padding.

    Args:
        source: What `ortkit optimize` wrote.
        folder: Gives one for the two models.
    """
    try:
        values = set(json.loads(source.header.metadata.get(TOKENS_KEY, "[]")))
    except (TypeError, ValueError):
        return None
    cut = _Cut.of(open_model(source.content), values) if values else None
    if cut is None:
        return None
    parent = folder()
    found = PackedModel(
        parent / "tokens.onnx", parent / "chooser.onnx", cut.indices, _names(cut.kept),
        _names(cut.passed), cut.zero.name or "",
    )  # fmt: skip
    save_model(cut.chooser(), found.chooser)
    save_model(cut.rest(), found.path)
    return found


@dataclass
class _Cut:
    """Where a model is cut.

    Args:
        model: It.
        found: The outputs of NonZero: indices of tokens.
        kept: What these are found in.
        passed: Values that come before, and are read behind.
        zero: An input that holds 0.
    """

    model: ir.Model
    found: list[ir.Value]
    kept: list[ir.Value]
    passed: list[ir.Value]
    zero: ir.Value

    @staticmethod
    def of(model: ir.Model, names: set[str]) -> _Cut | None:
        """Look for the outputs of NonZero of these names; None if something is in the way."""
        nodes = [node for node in model.graph if any(o.name in names for o in node.outputs)]
        kept = [node.inputs[0] for node in nodes if node.op_type == "NonZero"]
        if len(nodes) != len(names) or len(kept) != len(nodes) or None in kept:
            return None
        before = _before(model, [each for each in kept if each is not None])
        if any(node in before for node in nodes):
            return None  # what is padding by one mask follows from tokens of another
        sizes = _sizes(model)
        passed = [
            value
            for node in before
            for value in node.outputs
            if any(use.node not in before and use.node not in nodes for use in value.uses())
            and value not in sizes
        ]
        shapes = Shapes.infer(model)
        for value in passed:
            dtype = shapes.dtype(value)
            if dtype is None or value.is_graph_output():
                return None
            value.type = ir.TensorType(dtype)
        zero = ir.Value(name=take_name(names_in(model), "ortkit/zero"), type=_INT64)
        zero.shape = ir.Shape([1])
        model.graph.inputs.append(zero)
        _count_on_device(model, zero)
        outputs = [node.outputs[0] for node in nodes]
        return _Cut(model, outputs, [each for each in kept if each is not None], passed, zero)

    @property
    def indices(self) -> tuple[str, ...]:
        """The inputs that stand for the outputs of NonZero."""
        return _names(self.found)

    def chooser(self) -> ir.Model:
        """Return a model of what comes before."""
        outputs = list(self.model.graph.outputs)
        for value in self.kept:
            value.type = ir.TensorType(ir.DataType.BOOL)
        self.model.graph.outputs[:] = dict.fromkeys((*self.kept, *self.passed))
        made = _tidied(open_model(self.model))
        self.model.graph.outputs[:] = outputs
        return made

    def rest(self) -> ir.Model:
        """Return the model with inputs for what comes before; it is changed."""
        graph = self.model.graph
        for value in (*self.found, *self.passed):
            shape = ir.Shape([1, None]) if value in self.found else value.shape
            made = ir.Value(name=value.name, shape=shape, type=value.type or _INT64)
            value.replace_all_uses_with(made)
            value.name = f"{value.name}/before"
            graph.inputs.append(made)
        return _tidied(self.model)


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)


def _tidied(model: ir.Model) -> ir.Model:
    """Remove what no output needs, inputs too."""
    RemoveUnusedNodesPass()(model)
    needed = [v for v in model.graph.inputs if v.uses() or v.is_graph_output()]
    model.graph.inputs[:] = needed
    return model


def _before(model: ir.Model, kept: list[ir.Value]) -> dict[ir.Node, None]:
    """Return what `kept` follows from, and what follows from these nodes alone, in order."""
    needed, pending = set[ir.Node](), [value.producer() for value in kept]
    while pending:
        node = pending.pop()
        if node is not None and node not in needed:
            needed.add(node)
            pending += [None if value is None else value.producer() for value in node.inputs]
    for node in model.graph:
        given = [v for v in node.inputs if v is not None and v.const_value is None]
        makers = [value.producer() for value in given]
        if node.op_type != "NonZero" and given and all(maker in needed for maker in makers):
            needed.add(node)
    return {node: None for node in model.graph if node in needed}


def _sizes(model: ir.Model) -> set[ir.Value]:
    """Return what follows from sizes alone: it is computed on the host, or for each shape once."""
    found: set[ir.Value] = set()
    for node in model.graph:
        given = [v for v in node.inputs if v is not None and v.const_value is None]
        if node.op_type in _SIZES or (given and found.issuperset(given)):
            found.update(node.outputs)
    return found


def _count_on_device(model: ir.Model, zero: ir.Value) -> None:
    """Let what counts from 0 do so from a number on the device: else the host would do it."""
    graph, names = model.graph, names_in(model)

    def constant(number: object) -> ir.Value:
        array = np.array(number, np.int64)
        tensor = ir.tensor(array, name=take_name(names, "ortkit/const"))
        shape = ir.Shape(array.shape)
        value = ir.Value(name=tensor.name, shape=shape, type=_INT64, const_value=tensor)
        graph.register_initializer(value)
        return value

    def op(before: ir.Node, op_type: str, *inputs: ir.Value | None) -> ir.Value:
        node = ir.node(op_type, list(inputs), name=take_name(names, f"ortkit/{op_type}"))
        node.outputs[0].name = take_name(names, "ortkit/value")
        graph.insert_before(before, node)
        return node.outputs[0]

    for node in [node for node in graph if _is_iota(node)]:
        one, axis = constant(1), constant(0)
        size = op(node, "Reshape", node.inputs[1], constant([1]))
        ones = op(node, "Expand", op(node, "Add", zero, one), size)
        counted = op(node, "Sub", op(node, "CumSum", ones, axis), one)
        value = node.outputs[0]
        counted.shape, counted.type = value.shape, value.type
        value.replace_all_uses_with(counted)
        graph.remove(node, safe=True)


def _is_iota(node: ir.Node) -> bool:
    """Say whether a node counts from 0 in int64."""
    if (node.domain, node.op_type) != ("", "Range"):
        return False
    ends = [None if v is None else v.const_value for v in (node.inputs[0], node.inputs[2])]
    if any(each is None or each.dtype != ir.DataType.INT64 for each in ends):
        return False
    return [int(each.numpy()) for each in ends if each is not None] == [0, 1]
