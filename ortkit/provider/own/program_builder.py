"""A program being put together, between values of the rewritten copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.describe import known_spec
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.sizes import join_unsolved, joined_rows
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.provider.own.program import Program, Step
from ortkit.refusal import Refused, needed, refusals
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
        weights: What the session holds for it.
    """

    program: Program
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    at: str
    prediction: Prediction
    parts: tuple[Candidate, ...]
    weights: tuple[ir.Value, ...] = ()


@dataclass
class ProgramBuilder:
    """A program being put together.

    Args:
        scope: The copy's.
        carried: Values that the original has not, which it is given all the same.
        bakes: Whether weights in a layout of the kernels' own go into the kernel library, too.
    """

    scope: Scope
    carried: frozenset[ir.Value] = frozenset()
    bakes: bool = False
    tensors: dict[ir.Value, int] = field(default_factory=dict)
    inputs: dict[ir.Value, int] = field(default_factory=dict)
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    parts: list[Candidate] = field(default_factory=list)
    weights: dict[int, ir.Value] = field(default_factory=dict)
    specs: dict[ir.Value, TensorSpec] = field(default_factory=dict)
    """Of values that the graph has not."""

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

    def hold(self, value: ir.Value, spec: TensorSpec) -> None:
        """Let the session hold a constant: ONNX Runtime takes back the memory of its own."""
        if value in self.tensors:
            return
        tensor = self.add(value, spec)
        if self.bakes:
            self.constants[tensor] = array_of(self.scope, value)
        else:
            self.weights[tensor] = value

    def add(self, value: ir.Value, spec: TensorSpec) -> int:
        """Add a value that the graph has not, or not as `spec` says."""
        self.specs[value] = spec
        return self._add(value)

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
        tensor = self.tensors[value]
        while tensor in self.views:
            tensor = self.views[tensor]
        return tensor

    def compute(
        self, signature: RegionSignature, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> Refused | None:
        """Add a kernel; it may see rows along one axis where a value has several.

        Returns:
            Why the kernel cannot be added, None if it was.
        """
        read, rows = list[int](), None
        for value, spec in zip(inputs, signature.inputs, strict=True):
            own = self.spec(value)
            if len(own.shape) != len(spec.shape):
                rows = joined_rows(own.shape[:-1])
                # Where a Reshape's sizes are data, only its result has a count with a name.
                if rows is None:
                    return Refused(f"the rows of {value.name!r} have no name")
                seen = ir.Value(name=spec.name)
                tensor = self.add(seen, replace(spec, shape=(rows, *spec.shape[1:])))
                self.views[tensor] = self.tensors[value]
                value = seen
            read.append(self.tensors[value])
        made = list[int]()
        for value, spec in zip(outputs, signature.outputs, strict=True):
            if rows is None or len(self.spec(value).shape) == len(spec.shape):
                made.append(self._add(value))
                continue
            seen = ir.Value(name=spec.name)
            made.append(self.add(seen, replace(spec, shape=(rows, *spec.shape[1:]))))
            self.view(value, seen)
        self.steps.append(Step(signature, tuple(read), tuple(made)))
        return None

    def add_part(self, candidate: Candidate) -> Refused | None:
        """Add the kernel of a region; returns why that cannot be, None if it was added."""
        assert candidate.signature is not None, "a region that is taken"
        refused = self.compute(
            candidate.signature, candidate.region.inputs, candidate.region.outputs
        )
        if refused is None:
            self.parts.append(candidate)
        return refused

    def spec(self, value: ir.Value) -> TensorSpec:
        """Return the type and sizes of a value that a kernel reads or makes."""
        found = self.specs.get(value) or known_spec(self.scope.shapes, value)
        assert found is not None, "a kernel's tensor of unknown shape"
        return found

    @refusals
    def assembled(self, ends: Sequence[ir.Value], root: Candidate) -> Assembled | Refused:
        """Return the finished program, or what its tensors lack."""
        if len({self.root(end) for end in ends}) < len(ends):
            return Refused("two results have the same bytes")
        specs: list[TensorSpec] = []
        for value in self.tensors:
            spec = needed(self.specs.get(value) or spec_of(self.scope, value))
            specs.append(spec)
        made = {index for step in self.steps for index in step.outputs}
        if any(self.root(end) not in made for end in ends):
            return Refused("a result has the bytes of what is read")
        read = [specs[index] for index in self.inputs.values()]
        program = Program(
            root.region.kind,
            join_unsolved(read, specs)[1],
            tuple(self.inputs.values()),
            self.constants,
            self.views,
            tuple(self.tensors[end] for end in ends),
            tuple(self.steps),
            tuple(self.weights),
        )
        before = sum(part.prediction.before_ns for part in self.parts)
        after = sum(candidate.prediction.after_ns for candidate in self.parts)
        return Assembled(
            program,
            tuple(self.inputs),
            tuple(ends),
            root.region.at,
            Prediction(before, after),
            tuple(self.parts),
            tuple(self.weights.values()),
        )


def array_of(scope: Scope, value: ir.Value) -> np.ndarray:
    """Return the data of a constant, which may be in no graph."""
    array = scope.array(value)
    if array is not None:
        return array
    assert value.const_value is not None, "a weight is a constant"
    return value.const_value.numpy()


def spec_of(scope: Scope, value: ir.Value) -> TensorSpec | Refused:
    """Return the type and sizes of a value, or that they are not known."""
    return known_spec(scope.shapes, value) or Refused(f"the shape of {value.name!r} is not known")
