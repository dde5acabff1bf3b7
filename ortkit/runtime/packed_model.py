"""A model without padding, for CUDA graphs: how many tokens there are is said by an input.

`--skip-padding` lets a model find its tokens in each run, by NonZero, and a graph cannot be
captured for that: sizes would depend on values. Here NonZero is replaced: tokens go to as many
slots as an input has. A second model, of what precedes the NonZero, counts the tokens.
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
from ortkit.graph.walk import names_in, take_name
from ortkit.kernels.metadata import TOKENS_KEY
from ortkit.runtime.source import Loadable

_INT64 = ir.TensorType(ir.DataType.INT64)


@dataclass(frozen=True)
class PackedModel:
    """The two models, and what they have beside the inputs and outputs of the original.

    Args:
        path: The model whose tokens have slots.
        counter: The one that counts tokens, from some of the inputs.
        slots: Of `path`, inputs [1 + slots] of int64 that hold 0, 1, ...; of `counter`, such
            inputs with no slot.
        counts: Outputs of `counter`, [1, 1] of int64: how many tokens go to each of `slots`.
    """

    path: Path
    counter: Path
    slots: tuple[str, ...]
    counts: tuple[str, ...]


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
    model = open_model(source.content)
    nodes = [node for node in model.graph if any(each.name in values for each in node.outputs)]
    if not values or len(nodes) != len(values) or any(_kept(node) is None for node in nodes):
        return None
    writer = _Writer(model, names_in(model))
    slots = [writer.slots() for _ in nodes]
    counts = [writer.replace(*pair) for pair in zip(nodes, slots, strict=True)]
    for node in [node for node in model.graph if _is_iota(node)]:
        writer.compute_on_device(node, slots[0])
    place = folder()
    path, counter = place / "slots.onnx", place / "counter.onnx"
    save_model(model, path)
    model.graph.outputs[:] = counts
    RemoveUnusedNodesPass()(model)
    if any(node in writer.filled for node in model.graph):
        return None  # what is padding by one mask follows from what tokens of another hold
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.uses()]
    save_model(model, counter)
    return PackedModel(path, counter, _names(slots), _names(counts))


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)


def _kept(node: ir.Node) -> ir.Value | None:
    """Return what a NonZero takes flattened, [samples, positions]; None if it is none of these."""
    flat = node.inputs[0].producer() if node.op_type == "NonZero" and node.inputs[0] else None
    return flat.inputs[0] if flat is not None and flat.op_type == "Reshape" else None


def _is_iota(node: ir.Node) -> bool:
    """Say whether a node counts from 0 in int64: ONNX Runtime lets the host do that."""
    if (node.domain, node.op_type) != ("", "Range"):
        return False
    ends = [None if v is None else v.const_value for v in (node.inputs[0], node.inputs[2])]
    if any(each is None or each.dtype != ir.DataType.INT64 for each in ends):
        return False
    return [int(each.numpy()) for each in ends if each is not None] == [0, 1]


class _Writer:
    """Inserts nodes in a model's main graph."""

    def __init__(self, model: ir.Model, names: set[str]) -> None:
        self._graph, self._names = model.graph, names
        self.filled: set[ir.Node] = set()
        """Nodes that let tokens have slots."""

    def slots(self) -> ir.Value:
        """Add an input."""
        name = take_name(self._names, "ortkit/slots")
        value = ir.Value(name=name, type=_INT64, shape=ir.Shape([f"{name}/count"]))
        self._graph.inputs.append(value)
        return value

    def replace(self, node: ir.Node, slots: ir.Value) -> ir.Value:
        """Put tokens in slots where a NonZero found them; return how many tokens there are.

        Token i of those that are kept goes to slot i. What is not kept goes to a last slot, which
        is cut off. Slots beyond the tokens hold the first position: rows are computed for them
        that nothing reads.
        """
        kept = _kept(node)
        assert kept is not None, "its form was looked at"

        def op(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
            return self._op(node, op_type, *inputs, **attributes)

        zero, one, every = (self._constant(np.array(n, np.int64)) for n in (0, 1, [1]))
        ones = op("Cast", op("Or", kept, op("Not", kept)), to=ir.DataType.INT64.value)
        kept_number = op("Cast", kept, to=ir.DataType.INT64.value)
        counts = op("ReduceSum", kept_number, every, keepdims=1)
        both = self._constant(np.array([0, 1], np.int64))
        count = op("ReduceSum", counts, both, keepdims=1)
        count.shape, count.type = ir.Shape([1, 1]), _INT64
        number, place = (
            op("Add", op("Sub", op("CumSum", each, one), one),
               op("Sub", op("CumSum", total, zero), total))
            for each, total in (
                (kept_number, counts), (ones, op("ReduceSum", ones, every, keepdims=1)),
            )
        )  # fmt: skip
        last = op("ReduceMax", slots, keepdims=0)
        slot = op("Where", kept, op("Min", number, last), last)
        flat = self._constant(np.array([-1], np.int64))
        data, start = op("Sub", slots, slots), self._constant(np.array([0], np.int64))
        full = op("ScatterElements", data, op("Reshape", slot, flat), op("Reshape", place, flat))
        made = full.producer()
        assert made is not None, "it was inserted"
        self.filled.add(made)
        cut = op("Slice", full, start, flat, start)
        found = op("Reshape", cut, self._constant(np.array([1, -1], np.int64)))
        self._stand_in(node.outputs[0], found)
        return count

    def compute_on_device(self, node: ir.Node, slots: ir.Value) -> None:
        """Count from 0 on the device, from a number there: the first slot's."""
        first, end = (self._constant(np.array([n], np.int64)) for n in (0, 1))
        one, zero = (self._constant(np.array(n, np.int64)) for n in (1, 0))
        limit = node.inputs[1]
        assert limit is not None, "a Range has a limit"
        size = self._op(node, "Reshape", limit, end)
        number = self._op(node, "Add", self._op(node, "Slice", slots, first, end, first), one)
        sums = self._op(node, "CumSum", self._op(node, "Expand", number, size), zero)
        self._stand_in(node.outputs[0], self._op(node, "Sub", sums, one))

    def _stand_in(self, value: ir.Value, new: ir.Value) -> None:
        new.shape, new.type = value.shape, value.type
        value.replace_all_uses_with(new)
        node = value.producer()
        assert node is not None, "it is no input"
        self._graph.remove(node, safe=True)

    def _constant(self, array: np.ndarray) -> ir.Value:
        name = take_name(self._names, "ortkit/const")
        tensor = ir.tensor(array, name=name)
        shape = ir.Shape(array.shape)
        value = ir.Value(name=name, shape=shape, type=_INT64, const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def _op(self, before: ir.Node, op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes)
        node.name = take_name(self._names, f"ortkit/{op_type}")
        node.outputs[0].name = take_name(self._names, "ortkit/value")
        self._graph.insert_before(before, node)
        return node.outputs[0]
