"""The ways in which a model can become smaller: each yields candidates, the boldest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import PreconditionError

from ortkit.comparison.cuts import bodies
from ortkit.comparison.reduce_state import (
    Cuts,
    State,
    drop_functions,
    header,
    tensor_bytes,
    to_tensor,
)
from ortkit.graph.inline import inline_functions
from ortkit.graph.io.open import open_model

Candidate: TypeAlias = Callable[[], onnx.ModelProto | None]
"""Makes a model, or says that there is none."""
Step: TypeAlias = Callable[[State], Iterator[list[Candidate]]]
"""Yields rounds of candidates of one state; after one that holds it is asked again."""

#: Windows are kept alone only while this many cover the model.
_MOST_WINDOWS = 8
_CUTS: tuple[Cuts, ...] = ("inputs", "constants")


def tidy(state: State) -> Iterator[list[Candidate]]:
    """Drop what computes nothing: texts, metadata, functions and shapes of values."""
    model = state.cutter.model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.metadata_props[:], made.graph.value_info[:], made.graph.metadata_props[:]
    for one in (made, made.graph, *made.graph.node, *made.graph.input, *made.graph.output):
        one.ClearField("doc_string")
    for node in made.graph.node:
        del node.metadata_props[:]
    drop_functions(made)
    read = {name for names in state.cutter.reads for name in names}
    read.update(value.name for value in made.graph.output)
    tensors = [initializer for initializer in made.graph.initializer if initializer.name in read]
    del made.graph.initializer[:]
    made.graph.initializer.extend(tensors)
    if made.ByteSize() < model.ByteSize():
        yield [lambda: made]


def inline(state: State) -> Iterator[list[Candidate]]:
    """Put the bodies of functions in the place of their calls."""
    if not state.cutter.model.functions:
        return

    def made() -> onnx.ModelProto | None:
        model = open_model(state.cutter.model, folder=state.path.parent)
        try:
            inline_functions(model)
        except PreconditionError:
            return None
        return ir.serde.serialize_model(model)

    yield [made]


def fewer_nodes(state: State) -> Iterator[list[Candidate]]:
    """Keep parts of the nodes alone, then leave parts of them out; ever smaller parts."""
    count = state.nodes
    size = (count + 1) // 2
    while size >= 1 and count > 1:
        starts = range(0, count, size)
        windows = [range(start, min(start + size, count)) for start in starts]
        if len(windows) <= _MOST_WINDOWS:
            between = [range(w.start + size // 2, min(w.stop + size // 2, count)) for w in windows]
            for cuts in _CUTS:
                yield [_part(state, window, cuts) for window in (*windows, *between) if window]
        for cuts in _CUTS:
            yield [
                _part(state, [n for n in range(count) if n not in window], cuts)
                for window in windows[::-1]
                if len(window) < count
            ]
        size //= 2


def _part(state: State, kept: Sequence[int], cuts: Cuts) -> Candidate:
    return lambda: state.part(kept, cuts)


def fewer_outputs(state: State) -> Iterator[list[Candidate]]:
    """Give one of the outputs only, then leave out one, with the nodes that lead to it alone."""
    names = [value.name for value in state.cutter.model.graph.output]
    if len(names) > 1:
        yield [_outputs(state, [name]) for name in names]
        if len(names) > 2:
            yield [_outputs(state, [n for n in names if n != name]) for name in names]


def _outputs(state: State, names: Sequence[str]) -> Candidate:
    def made() -> onnx.ModelProto | None:
        part = state.part(state.cutter.nodes_to(names), "inputs")
        if part is not None:
            kept = [value for value in part.graph.output if value.name in names]
            del part.graph.output[:]
            part.graph.output.extend(kept)
        return part if part is not None and part.graph.output else None

    return made


def bypass(state: State) -> Iterator[list[Candidate]]:
    """Let what reads a node read an input of the node that has the same type and shape."""
    ways = {}
    for index, node in enumerate(state.cutter.model.graph.node):
        if len(node.output) == 1 and (source := _alike(state, node)):
            ways[index] = source
    nodes = list(ways)
    size = len(nodes)
    while size >= 1:
        chunks = [nodes[start : start + size] for start in range(0, len(nodes), size)]
        yield [_bypassed(state, {item: ways[item] for item in chunk}) for chunk in chunks]
        size //= 2


def _alike(state: State, node: onnx.NodeProto) -> str:
    wanted = _type_of(state, node.output[0])
    names = (name for name in node.input if name and wanted is not None)
    return next((name for name in names if _type_of(state, name) == wanted), "")


def _type_of(state: State, name: str) -> bytes | None:
    found = state.types.get(name) or state.cutter.inputs.get(name)
    return None if found is None else found.type.SerializeToString(deterministic=True)


def _bypassed(state: State, ways: dict[int, str]) -> Candidate:
    def made() -> onnx.ModelProto | None:
        graph = state.cutter.model.graph
        instead = {graph.node[index].output[0]: source for index, source in ways.items()}
        if any(value.name in instead for value in graph.output):
            return None  # an output keeps its name

        def final(name: str) -> str:
            while name in instead:
                name = instead[name]
            return name

        made = onnx.ModelProto()
        made.CopyFrom(state.cutter.model)
        kept = [node for index, node in enumerate(made.graph.node) if index not in ways]
        for node in kept:
            _rename(node, final)
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del made.graph.node[:]
        made.graph.node.extend(nodes)
        return made

    return made


def _rename(node: onnx.NodeProto, final: Callable[[str], str]) -> None:
    for at, name in enumerate(node.input):
        node.input[at] = final(name)
    for body in bodies(node):
        for inner in body.node:
            _rename(inner, final)


def branches(state: State) -> Iterator[list[Candidate]]:
    """Put one branch of an If in its place."""
    for index, node in enumerate(state.cutter.model.graph.node):
        if node.op_type == "If" and node.domain in ("", "ai.onnx"):
            yield [_branch(state, index, number) for number in range(2)]


def _branch(state: State, index: int, number: int) -> Candidate:
    def made() -> onnx.ModelProto | None:
        made = onnx.ModelProto()
        made.CopyFrom(state.cutter.model)
        nodes = list(made.graph.node)
        bodies_of_node = list(bodies(nodes[index]))
        if number >= len(bodies_of_node):
            return None
        body = bodies_of_node[number]
        made.graph.initializer.extend(body.initializer)
        ends = [
            onnx.helper.make_node("Identity", [value.name], [name])
            for value, name in zip(body.output, nodes[index].output, strict=False)
            if name
        ]
        together = [*nodes[:index], *body.node, *ends, *nodes[index + 1 :]]
        copies = [onnx.NodeProto.FromString(item.SerializeToString()) for item in together]
        del made.graph.node[:]
        made.graph.node.extend(copies)
        return made

    return made


def weights_as_inputs(state: State) -> Iterator[list[Candidate]]:
    """Let float weights be inputs: then the model does not hold their data."""
    large = [
        initializer.name
        for initializer in state.cutter.model.graph.initializer
        if tensor_bytes(initializer) > 1024
        and ir.DataType(initializer.data_type).is_floating_point()
    ]
    size = len(large)
    while size >= 1:
        chunks = [large[start : start + size] for start in range(0, len(large), size)]
        yield [_as_inputs(state, frozenset(chunk)) for chunk in chunks]
        size //= 2


def _as_inputs(state: State, names: frozenset[str]) -> Candidate:
    def made() -> onnx.ModelProto:
        made = onnx.ModelProto()
        made.CopyFrom(state.cutter.model)
        tensors = list(made.graph.initializer)
        kept = [onnx.TensorProto.FromString(tensor.SerializeToString())
                for tensor in tensors if tensor.name not in names]  # fmt: skip
        have = {value.name for value in made.graph.input}
        for tensor in tensors:
            if tensor.name in names and tensor.name not in have:
                info = onnx.helper.make_tensor_value_info(
                    tensor.name, tensor.data_type, list(tensor.dims)
                )
                made.graph.input.append(info)
        del made.graph.initializer[:]
        made.graph.initializer.extend(kept)
        return made

    return made


def smaller_sizes(state: State) -> Iterator[list[Candidate]]:
    """Make a size of weights smaller wherever it occurs: in weights, inputs and shapes."""
    weight: dict[int, int] = {}
    for one in state.cutter.model.graph.initializer:
        for size in one.dims:
            if size > 1:
                weight[size] = weight.get(size, 0) + tensor_bytes(one)
    for value in state.cutter.model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                weight.setdefault(dim.dim_value, 0)
    for size in sorted(weight, key=lambda number: (-weight[number], -number)):
        smaller = [n for n in (1, 2, 4, 8, 16, size // 2) if n < size]
        yield [_sized(state, size, n) for n in dict.fromkeys(smaller)]


def _sized(state: State, old: int, new: int) -> Candidate:
    def made() -> onnx.ModelProto:
        model = state.cutter.model
        made = header(model)
        made.graph.node.extend(model.graph.node)
        for node in made.graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    attribute.t.CopyFrom(_cut(attribute.t, state.path, old, new))
        for tensor in model.graph.initializer:
            made.graph.initializer.append(_cut(tensor, state.path, old, new))
        made.graph.sparse_initializer.extend(model.graph.sparse_initializer)
        made.graph.input.extend(model.graph.input)
        made.graph.output.extend(model.graph.output)
        for value in (*made.graph.input, *made.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value == old:
                    dim.dim_value = new
        return made

    return made


def _cut(tensor: onnx.TensorProto, path: Path, old: int, new: int) -> onnx.TensorProto:
    """Return a tensor with axes of one size cut, and small integers of that size replaced."""
    is_integer = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    if old not in tensor.dims and not (is_integer and tensor_bytes(tensor) <= 128):
        return tensor
    array = onnx.numpy_helper.to_array(tensor, base_dir=str(path.parent))
    if is_integer and array.size <= 16:
        array = np.where(array == old, np.asarray(new, array.dtype), array)
    index = tuple(slice(new) if size == old else slice(None) for size in array.shape)
    return to_tensor(np.ascontiguousarray(array[index]).reshape(array[index].shape), tensor.name)


RESIZES = "smaller sizes"
STEPS: tuple[tuple[str, Step], ...] = (
    ("fewer nodes", fewer_nodes),
    ("fewer outputs", fewer_outputs),
    ("functions inlined", inline),
    ("branches inlined", branches),
    ("nodes bypassed", bypass),
    ("weights as inputs", weights_as_inputs),
    (RESIZES, smaller_sizes),
    ("tidied", tidy),
)
