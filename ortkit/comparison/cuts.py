"""Parts of a model as models of their own: what leads to some values, and single steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

#: Added to the names of results where the value itself comes as an input.
MADE = "/made"
_SHAKEN = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})
_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS


@dataclass(frozen=True)
class Given:
    """A value that a part gets as an input."""

    name: str
    element_type: int
    """As ONNX numbers them."""
    shape: tuple[int, ...]


@dataclass
class Cutter:
    """One model, from which parts are cut; all parts share its tensors."""

    model: onnx.ModelProto
    """Its large tensors lie in files beside it."""
    makers: dict[str, int] = field(default_factory=dict)
    """By value, the node that makes it."""
    reads: list[tuple[str, ...]] = field(default_factory=list)
    """What each node reads, in its subgraphs too."""
    tensors: dict[str, onnx.TensorProto | onnx.SparseTensorProto] = field(default_factory=dict)
    inputs: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)

    @staticmethod
    def of(path: Path) -> Cutter:
        """Read a model whose nodes are in order."""
        made = Cutter(onnx.load(path, load_external_data=False))
        graph = made.model.graph
        made.inputs = {value.name: value for value in graph.input}
        made.tensors = {initializer.name: initializer for initializer in graph.initializer}
        made.tensors |= {item.values.name: item for item in graph.sparse_initializer}
        for index, node in enumerate(graph.node):
            made.reads.append(tuple(dict.fromkeys(_reads(node))))
            made.makers.update((name, index) for name in node.output if name)
        return made

    def nodes_to(self, wanted: Iterable[str], stops: Collection[str] = ()) -> list[int]:
        """Return the nodes that lead to values, in order; values in `stops` are given."""
        found: set[int] = set()
        pending = [self.makers[name] for name in wanted if name in self.makers]
        while pending:
            index = pending.pop()
            if index in found:
                continue
            found.add(index)
            names = self.reads[index]
            pending += [self.makers[n] for n in names if n in self.makers and n not in stops]
        return sorted(found)

    def given_to(self, wanted: Iterable[str], stops: Collection[str]) -> list[str]:
        """Return which of `stops`, and which of the model's inputs, lead to values at once."""
        nodes = self.nodes_to(wanted, stops)
        names = dict.fromkeys(name for index in nodes for name in self.reads[index])
        return [name for name in names if name in stops or name in self.inputs]

    def upto(self, wanted: Sequence[str], running: Sequence[str] = ()) -> onnx.ModelProto:
        """Return the part of the model that computes `wanted`, from the model's own inputs.

        What no node makes, such as a constant, comes with `/made` added to its name.

        Args:
            wanted: Values to give.
            running: Values that are computed too.
        """
        names = {item: item if item in self.makers else f"{item}{MADE}" for item in wanted}
        return self._part(names, (), running)

    def steps(self, wanted: Sequence[str], given: Collection[Given]) -> onnx.ModelProto:
        """Return what makes each of `wanted` from the given values alone.

        The results are called as the values with `/made` added: they are given too, to others.
        """
        return self._part({item: f"{item}{MADE}" for item in wanted}, given)

    def step(self, wanted: Sequence[str], given: Collection[Given]) -> onnx.ModelProto:
        """Return the same for values that are not given, under their own names."""
        return self._part({item: item for item in wanted}, given)

    def _part(
        self, wanted: Mapping[str, str], given: Collection[Given], running: Sequence[str] = ()
    ) -> onnx.ModelProto:
        """Return the part with all given values as inputs.

        Args:
            wanted: The results, and what they are called.
            given: Inputs in the place of nodes, constants or the model's own inputs.
            running: Values that are computed too.
        """
        source = self.model.graph
        part = onnx.ModelProto(ir_version=self.model.ir_version)
        part.opset_import.extend(self.model.opset_import)
        part.functions.extend(self.model.functions)
        part.graph.name = source.name or "part"
        stops = {item.name: item for item in given}
        renamed = {**{name: f"{name}{MADE}" for name in stops}, **wanted}
        nodes = self.nodes_to((*wanted, *running), stops)
        for index in nodes:
            node = part.graph.node.add()
            node.CopyFrom(source.node[index])
            for at, name in enumerate(node.output):
                node.output[at] = renamed.get(name, name)
        read = {name for index in nodes for name in self.reads[index]}
        kept = {name: name for name in read - stops.keys()}
        for name, called in wanted.items():
            if name not in self.makers:
                kept[name] = f"{name}/constant" if name in stops else name
                part.graph.node.add(op_type="Identity", input=[kept[name]], output=[called])
            part.graph.output.add(name=called)
        part.graph.input.extend(_declared(one) for one in given)
        for name, called in sorted(kept.items()):
            self._define(part.graph, name, called)
        return part

    def _define(self, graph: onnx.GraphProto, name: str, called: str) -> None:
        """Let a part have an input or a constant of the model, if the value is one."""
        if name in self.inputs:
            graph.input.append(self.inputs[name])
            graph.input[-1].name = called
        tensor = self.tensors.get(name)
        if isinstance(tensor, onnx.TensorProto):
            graph.initializer.append(tensor)
            graph.initializer[-1].name = called
        elif tensor is not None:
            graph.sparse_initializer.append(tensor)
            graph.sparse_initializer[-1].values.name = called


def shaken(part: onnx.ModelProto, types: Mapping[str, ir.DataType]) -> list[Given]:
    """Multiply every float that a part computes on the way with a number that is an input.

    Args:
        part: Changed in place; not its results.
        types: Of values, where they are known.

    Returns:
        The new inputs.
    """
    results = {value.name for value in part.graph.output}
    nodes = list(part.graph.node)
    del part.graph.node[:]
    factors = []
    for node in nodes:
        made = part.graph.node.add()
        made.CopyFrom(node)
        for at, name in enumerate(node.output):
            dtype = types.get(name)
            if dtype not in _SHAKEN or name in results or not name:
                continue
            factor = Given(f"{name}/factor", dtype.value, ())
            made.output[at] = f"{name}/exact"
            part.graph.node.add(op_type="Mul", input=[made.output[at], factor.name], output=[name])
            factors.append(factor)
    part.graph.input.extend(_declared(factor) for factor in factors)
    return factors


def element_type(array: np.ndarray) -> int:
    """Return the number that ONNX gives an array's type; arrays of objects are texts."""
    if array.dtype.kind in "OUS":
        return ir.DataType.STRING.value
    return ir.DataType.from_numpy(array.dtype).value


def _declared(given: Given) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(given.name, given.element_type, given.shape)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for body in bodies(node):
        yield from captured(body)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.type == _GRAPH:
            yield attribute.g
        elif attribute.type == _GRAPHS:
            yield from attribute.graphs


def captured(body: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a subgraph takes from around it."""
    own = {value.name for value in body.input}
    own.update(initializer.name for initializer in body.initializer)
    own.update(item.values.name for item in body.sparse_initializer)
    own.update(name for node in body.node for name in node.output)
    for node in body.node:
        yield from (name for name in _reads(node) if name not in own)
    yield from (value.name for value in body.output if value.name not in own)
