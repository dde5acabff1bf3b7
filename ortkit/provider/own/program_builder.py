"""A program being put together, between values of the rewritten copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.sizes import join_unsolved
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.provider.own.program import Program, Step
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

#: Constants of more bytes are not baked in.
MAX_CONSTANT_BYTES = 16 << 20


@dataclass(frozen=True)
class Assembled:
    """A program, and between which values of the original it stands.

    Args:
        program: Its inputs and outputs are `inputs` and `outputs`, in this order.
        inputs: Values of the copy; those that are not carried have the names of the original's.
        outputs: Likewise.
        at: The name that reports give it: that of its last output.
        prediction: Of all that it computes.
        parts: The regions that it computes, in order.
    """

    program: Program
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    at: str
    prediction: Prediction
    parts: tuple[Candidate, ...]


@dataclass
class ProgramBuilder:
    """A program being put together."""

    scope: Scope
    carried: frozenset[ir.Value] = frozenset()
    tensors: dict[ir.Value, int] = field(default_factory=dict)
    inputs: dict[ir.Value, int] = field(default_factory=dict)
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    parts: list[Candidate] = field(default_factory=list)

    def has(self, value: ir.Value) -> bool:
        return value in self.tensors

    def _add(self, value: ir.Value) -> int:
        return self.tensors.setdefault(value, len(self.tensors))

    def enter(self, value: ir.Value) -> None:
        self.inputs[value] = self._add(value)

    def bake(self, value: ir.Value) -> Refused | None:
        array = self.scope.array(value)
        if array is None or array.nbytes > MAX_CONSTANT_BYTES:
            return Refused(f"constant {value.name!r} is too large to be baked in")
        self.constants[self._add(value)] = array
        return None

    def view(self, value: ir.Value, source: ir.Value) -> None:
        self.views[self._add(value)] = self.tensors[source]

    def follow(self, value: ir.Value, end: ir.Value) -> None:
        """Add the reshapes from a result to what it leaves as."""
        path: list[ir.Value] = []
        while end is not value:
            node = end.producer()
            assert node is not None and node.inputs[0] is not None
            path.append(end)
            end = node.inputs[0]
        for reached in reversed(path):
            if reached not in self.tensors:
                self.view(reached, end)
            end = reached

    def root(self, value: ir.Value) -> int:
        place = self.tensors[value]
        while place in self.views:
            place = self.views[place]
        return place

    def compute(
        self,
        signature: RegionSignature,
        inputs: Iterable[ir.Value],
        outputs: Iterable[ir.Value],
        one: Candidate,
    ) -> None:
        read = tuple(self.tensors[value] for value in inputs)
        self.steps.append(Step(signature, read, tuple(self._add(value) for value in outputs)))
        self.parts.append(one)

    def assembled(self, ends: Sequence[ir.Value], root: Candidate) -> Assembled | Refused:
        """Return the finished program, or what its tensors lack."""
        if len({self.root(end) for end in ends}) < len(ends):
            return Refused("two results have the same bytes")
        specs: list[TensorSpec] = []
        for value in self.tensors:
            spec = spec_of(self.scope, value)
            if isinstance(spec, Refused):
                return spec
            specs.append(spec)
        made = {place for step in self.steps for place in step.outputs}
        if any(self.root(end) not in made for end in ends):
            return Refused("a result has the bytes of what is read")
        read = [specs[place] for place in self.inputs.values()]
        program = Program(
            root.region.kind,
            join_unsolved(read, specs)[1],
            tuple(self.inputs.values()),
            self.constants,
            self.views,
            tuple(self.tensors[end] for end in ends),
            tuple(self.steps),
        )
        before = sum(one.prediction.before_ns for one in self.parts)
        after = sum(one.prediction.after_ns for one in self.parts)
        return Assembled(
            program,
            tuple(self.inputs),
            tuple(ends),
            root.region.at,
            Prediction(before, after),
            tuple(self.parts),
        )


def spec_of(scope: Scope, value: ir.Value) -> TensorSpec | Refused:
    """Return the type and sizes of a value, or that they are not known."""
    return sizes_of(scope.shapes, value) or Refused(f"the shape of {value.name!r} is not known")


def sizes_of(shapes: Shapes, value: ir.Value) -> TensorSpec | None:
    """Return the type and sizes of a value, None if they are not known."""
    shape, dtype = shapes.shape(value), shapes.dtype(value)
    if shape is None or dtype is None:
        return None
    sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
    return TensorSpec(value.name or "", dtype.numpy().name, sizes)
