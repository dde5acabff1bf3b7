"""A copy of a model to plant a fault in: a value is computed differently and keeps its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

Rng: TypeAlias = np.random.Generator
Holder: TypeAlias = onnx.GraphProto | onnx.FunctionProto


@dataclass(frozen=True)
class Fault:
    """One faulted candidate.

    Args:
        name: The kind of the fault.
        kind: "unconditional", "conditional" or "lowering".
        model: The candidate with the fault.
        library: The kernel library that the candidate is judged with.
        max_error: What an output may be off in a candidate in fewer bits.
        computed_in: The float type that the candidate computes float32 in.
    """

    name: str
    kind: str
    model: onnx.ModelProto
    library: Path | None = None
    max_error: float = 0.0
    computed_in: str = ""


@dataclass(frozen=True)
class Site:
    """A node, and the graph or function that it stands in."""

    draft: Draft
    holder: Holder
    node: onnx.NodeProto

    @property
    def op(self) -> str:
        """The operator's name, whatever its domain."""
        return self.node.op_type

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value."""
        for each in self.node.attribute:
            if each.name == name:
                return helper.get_attribute_value(each)
        return default

    def set_attribute(self, name: str, value: object) -> None:
        """Give an attribute another value."""
        kept = [each for each in self.node.attribute if each.name != name]
        del self.node.attribute[:]
        self.node.attribute.extend([*kept, helper.make_attribute(name, value)])

    def array(self, index: int) -> np.ndarray | None:
        """Return an input's value if it is a constant."""
        inputs = self.node.input
        if index >= len(inputs) or not inputs[index]:
            return None
        return self.draft.array(self.holder, inputs[index])

    def set_array(self, index: int, array: np.ndarray) -> None:
        """Let the node, and no other, read another constant."""
        self.node.input[index] = self.draft.constant(self.holder, self.node, array)

    def become(self, op: str, *inputs: str, domain: str = "", **attributes: object) -> None:
        """Put another operator in the node's place, under the names of its outputs."""
        made = helper.make_node(op, inputs, self.node.output[:1], domain=domain, **attributes)
        self.node.CopyFrom(made)

    def before(self, op: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Add a node in front of this one and return its output."""
        out = self.draft.fresh()
        made = helper.make_node(op, inputs, [out], domain=domain, **attributes)
        self.draft.insert(self.holder, self.draft.place(self.holder, self.node), made)
        return out

    def after(self, build: Callable[[Site, str], str], output: int = 0) -> None:
        """Compute an output from what the node gives, under its old name.

        Args:
            build: Adds nodes in front of the given site that read the given value; returns the
                value that takes its name.
            output: Which of the node's outputs.
        """
        name, good = self.node.output[output], self.draft.fresh()
        self.node.output[output] = good
        end = helper.make_node("Identity", [good], [name])
        at = self.draft.place(self.holder, self.node)
        end = self.draft.insert(self.holder, at + 1, end)
        end.input[0] = build(Site(self.draft, self.holder, end), good)

    def like(self, number: float | Sequence[float], value: str) -> str:
        """Return a constant of the element type of `value`."""
        made = self.draft.constant(self.holder, self.node, np.asarray(number, np.float32))
        return self.before("CastLike", made, value)

    def numbers(self, *values: int) -> str:
        """Return an int64 vector."""
        return self.draft.constant(self.holder, self.node, np.asarray(values, np.int64))


class Draft:
    """A copy of a model, and how its graph and its fused functions are changed."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        # A draft of a draft has more nodes, so names differ.
        self._prefix = f"planted{sum(1 for _ in self.sites())}"
        self._count = 0

    def sites(self, *ops: str) -> Iterator[Site]:
        """Yield all nodes, or those of some operators, in the graph and in functions."""
        for holder in (self.model.graph, *self.model.functions):
            for node in list(holder.node):
                if not ops or node.op_type in ops:
                    yield Site(self, holder, node)

    def array(self, holder: Holder, name: str) -> np.ndarray | None:
        """Return a constant's value; None for a value that is computed."""
        for tensor in holder.initializer if isinstance(holder, onnx.GraphProto) else ():
            if tensor.name == name:
                return numpy_helper.to_array(tensor)
        for node in holder.node:
            if name in node.output and node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        return numpy_helper.to_array(attribute.t)
                    if attribute.name.startswith("value_"):
                        value = np.asarray(helper.get_attribute_value(attribute))
                        return value.astype(np.float32) if value.dtype == np.float64 else value
        return None

    def constant(self, holder: Holder, node: onnx.NodeProto, array: np.ndarray) -> str:
        """Add a constant in front of a node."""
        name = self.fresh()
        made = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
        self.insert(holder, self.place(holder, node), made)
        return name

    def insert(self, holder: Holder, at: int, node: onnx.NodeProto) -> onnx.NodeProto:
        """Insert a node; other nodes' places move, their objects stay."""
        holder.node.insert(at, node)
        return holder.node[at]

    def place(self, holder: Holder, node: onnx.NodeProto) -> int:
        """Return the place of a node, which is known by its first output."""
        for at, each in enumerate(holder.node):
            if list(each.output) == list(node.output):
                return at
        raise LookupError(node.op_type)

    def fresh(self) -> str:
        """Return a name that is not in use."""
        self._count += 1
        return f"{self._prefix}_{self._count}"

    def producer(self, holder: Holder, name: str) -> onnx.NodeProto | None:
        """Return the node that computes a value."""
        return next((node for node in holder.node if name in node.output), None)

    def readers(self, holder: Holder, name: str) -> list[onnx.NodeProto]:
        """Return the nodes that read a value."""
        return [node for node in holder.node if name in node.input]
