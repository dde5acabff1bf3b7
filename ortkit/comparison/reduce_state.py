"""A model while it is being made smaller: what is known of its values, and parts of it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.comparison.cuts import Cutter, bodies
from ortkit.comparison.node_runs import Failed, Part, Runner
from ortkit.comparison.sides import NodeSide, prepare
from ortkit.errors import OrtkitError
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Dim, Size
from ortkit.verify.inputs.feeds import Feeds

#: Integers up to this many are sizes and indices: made-up ones would not do.
_SMALL = 1024
#: Values of more elements do not become constants.
_LARGEST = 1 << 20
_RECORD_SECONDS = 600.0
_MOST_BYTES = 256 << 20
#: Taken for a size that is not known.
_USUAL_SIZE = 16

Cuts: TypeAlias = Literal["inputs", "constants"]
"""What the values become whose nodes are gone: inputs, but for small integers, or constants."""


@dataclass
class Recorder:
    """What the model computes as it came, value by value."""

    path: Path
    feeds: Feeds
    makers: Collection[str]
    known: dict[str, np.ndarray | None] = field(default_factory=dict)
    count: int = 0

    def value(self, name: str) -> np.ndarray | None:
        """Return a value, None where it is not known or large."""
        self.record([name])
        return self.known.get(name)

    def record(self, names: Iterable[str]) -> None:
        """Compute values, all at once."""
        wanted = [name for name in names if name in self.makers and name not in self.known]
        if not wanted:
            return
        self.known.update(dict.fromkeys(wanted))
        self.count += 1
        folder = self.path.parent / f"recorded{self.count}"
        try:
            side = prepare(NodeSide(self.path), self.feeds, folder / "model")
            runner = Runner(folder, self.feeds, _RECORD_SECONDS)
            there = [name for name in wanted if name in side.cutter.makers]
            found = runner.run_one(Part(side, side.cutter.upto(there)), runner.inputs)
        except OrtkitError:
            return  # they stay unknown
        if not isinstance(found, Failed):
            for name, value in found.items():
                if isinstance(value, np.ndarray) and value.size <= _LARGEST:
                    self.known[name] = np.array(value)
        shutil.rmtree(folder)


@dataclass
class State:
    """The smallest model so far."""

    path: Path
    """Its large tensors lie in a file beside it, which all candidates share."""
    cutter: Cutter
    types: dict[str, onnx.ValueInfoProto]
    """Of values of the main graph, where they are known."""
    recorder: Recorder | None = None

    @staticmethod
    def of(path: Path, recorder: Recorder | None = None) -> State:
        """Read a candidate."""
        cutter = Cutter.of(path)
        return State(path, cutter, _types(path, cutter), recorder)

    @property
    def nodes(self) -> int:
        """How many nodes there are, those in bodies and functions not counted."""
        return len(self.cutter.reads)

    @property
    def bytes(self) -> int:
        """How large the initializers are."""
        return sum(
            tensor_bytes(initializer) for initializer in self.cutter.model.graph.initializer
        )

    def small_integers(self) -> list[str]:
        """Return the values that look like sizes and indices."""
        return [name for name in self.cutter.makers if self._is_small_integer(name)]

    def _is_small_integer(self, name: str) -> bool:
        found = self.types.get(name)
        if found is None:
            return True
        kind = found.type.tensor_type
        is_integer = kind.elem_type in (6, 7, 9)
        count = 1
        for dim in kind.shape.dim:
            count *= dim.dim_value or 1
        return is_integer and count <= _SMALL

    def part(self, kept: Collection[int], cuts: Cuts) -> onnx.ModelProto | None:
        """Return the model of some of the nodes, None if it cannot be made.

        Results that no other kept node reads become outputs.
        """
        graph = self.cutter.model.graph
        nodes = sorted(kept)
        made = {name for index in nodes for name in graph.node[index].output if name}
        read = dict.fromkeys(name for index in nodes for name in self.cutter.reads[index])
        part = header(self.cutter.model)
        part.graph.node.extend(graph.node[index] for index in nodes)
        outside = [name for name in read if name not in made]
        if cuts == "constants" and self.recorder is not None:
            self.recorder.record(outside if self._is_large() else self.cutter.makers)
        for name in outside:
            if not self._bring(part.graph, name, cuts):
                return None
        wanted = [value.name for value in graph.output if value.name in made]
        used = {name for names in self.cutter.reads for name in names}
        wanted += [name for name in made & used if name not in read and name not in wanted]
        declared = {value.name: value for value in graph.output}
        for name in sorted(wanted, key=lambda one: self.cutter.makers[one]):
            known = declared.get(name) or self.types.get(name)
            part.graph.output.append(known or onnx.ValueInfoProto(name=name))
        drop_functions(part)
        return part if part.graph.output else None

    def _is_large(self) -> bool:
        """Say whether all values together are too much to be computed at once."""
        total = 0
        for type_ in self.types.values():
            count = 4
            for dim in type_.type.tensor_type.shape.dim:
                count *= dim.dim_value or _USUAL_SIZE
            total += count
        return total > _MOST_BYTES

    def _bring(self, graph: onnx.GraphProto, name: str, cuts: Cuts) -> bool:
        """Let a part have a value that it reads and does not make."""
        cutter = self.cutter
        if name in cutter.inputs:
            graph.input.append(cutter.inputs[name])
        tensor = cutter.tensors.get(name)
        if isinstance(tensor, onnx.TensorProto):
            graph.initializer.append(tensor)
        elif tensor is not None:
            graph.sparse_initializer.append(tensor)
        if name in cutter.inputs or tensor is not None:
            return True
        if cuts == "constants" or self._is_small_integer(name):
            value = self.recorder.value(name) if self.recorder is not None else None
            if value is not None:
                graph.initializer.append(to_tensor(value, name))
                return True
        if cuts == "constants" or name not in self.types:
            return False
        graph.input.append(self.types[name])
        return True


def header(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without nodes, values and tensors."""
    made = onnx.ModelProto(ir_version=model.ir_version)
    made.opset_import.extend(model.opset_import)
    made.functions.extend(model.functions)
    made.metadata_props.extend(model.metadata_props)
    made.graph.name = model.graph.name or "reduced"
    return made


def drop_functions(model: onnx.ModelProto) -> None:
    """Remove the functions that nothing calls."""
    called = _called(model)
    kept = [function for function in model.functions if (function.domain, function.name) in called]
    del model.functions[:]
    model.functions.extend(kept)


def _called(model: onnx.ModelProto) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    pending = list(model.graph.node)
    functions = {(function.domain, function.name): function for function in model.functions}
    while pending:
        node = pending.pop()
        key = node.domain, node.op_type
        if key in functions and key not in found:
            pending += functions[key].node
        found.add(key)
        for body in bodies(node):
            pending += body.node
    return found


def start(model: Path, folder: Path) -> Path:
    """Write a model so that candidates can share its tensors; return its path.

    Raises:
        ModelError: It is no valid model.
    """
    path = folder / "model.onnx"
    save_model(open_model(model), path, external_data=True)
    return path


def to_tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    """Return an initializer."""
    made: onnx.TensorProto = ir.serde.serialize_tensor(ir.tensor(array, name=name))
    return made


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return how large a tensor's data is, wherever it lies."""
    count = 1
    for size in tensor.dims:
        count *= size
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    return count * max(ir.DataType(tensor.data_type).bitwidth, 8) // 8


def _types(path: Path, cutter: Cutter) -> dict[str, onnx.ValueInfoProto]:
    model = open_model(path)
    shapes = Shapes.infer(model)
    found = {}
    for node in model.graph:
        for value in node.outputs:
            dtype, shape = shapes.dtype(value), shapes.shape(value)
            name = value.name or ""
            if name in cutter.makers and dtype is not None and shape is not None:
                dims = [_written(size) for size in shape]
                found[name] = onnx.helper.make_tensor_value_info(name, dtype.value, dims)
    return found


def _written(size: Size) -> int | str | None:
    if isinstance(size, Dim):
        return str(size)
    return size
