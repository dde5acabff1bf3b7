"""Groups that take convolutions or products: kernels over weights in a layout of their own.

The weights are constants of the model. They are packed when a session is made and stay in its
memory, as ONNX Runtime does with those of its own kernels. Only in a model that is compiled ahead
of time the kernel library holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.fusion.regions.cost_model import Prediction
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.provider.own.program import Program, Step
from ortkit.provider.own.weights import Origin, aligned
from ortkit.refusal import Refused

#: Of the operators with a form of their own in a kernel's body; see `kernels.region.reader`.
_LEAST_OPSET = 13

Accepts: TypeAlias = Callable[[RegionSignature], Refused | None]


@dataclass(frozen=True)
class AnchoredGroup:
    """A group that is known before regions are looked for.

    Args:
        program: What is run.
        inputs: For each of its inputs the value of the copy.
        outputs: Likewise.
        weights: For each of its weights the data.
        nodes: The copy's nodes that it stands for.
        prediction: Of a run of it, before and after.
        regions: What it is made of, by the names that reports give these.
        origins: For each of its weights the constant that it is packed from, None if it is
            computed.
    """

    program: Program
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    weights: tuple[np.ndarray, ...]
    nodes: frozenset[ir.Node]
    prediction: Prediction
    regions: tuple[str, ...]
    origins: tuple[Origin | None, ...]


@dataclass
class Builder:
    """Puts the program of a heavy group together.

    Args:
        bakes: Whether weights go into the kernel library.
        accepts: Says why there is no kernel for a signature.
        opset: That the bodies of small kernels are written in.
    """

    bakes: bool
    accepts: Accepts
    opset: int
    tensors: list[TensorSpec] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    views: dict[int, int] = field(default_factory=dict)
    weights: dict[int, np.ndarray] = field(default_factory=dict)
    packed: dict[int, Origin] = field(default_factory=dict)
    """Which constants weights are packed from."""
    steps: list[Step] = field(default_factory=list)
    refused: Refused | None = None
    """Why there is no kernel for one of its steps."""

    def add(self, spec: TensorSpec) -> int:
        """Add a tensor that a step makes, and return its place."""
        self.tensors.append(spec)
        return len(self.tensors) - 1

    def enter(self, spec: TensorSpec) -> int:
        """Add an input."""
        self.inputs.append(self.add(spec))
        return self.inputs[-1]

    def view(self, spec: TensorSpec, source: int) -> int:
        """Add a tensor that has the bytes of another."""
        place = self.add(spec)
        self.views[place] = source
        return place

    def weight(self, spec: TensorSpec, array: np.ndarray, origin: Origin | None = None) -> int:
        """Add a constant, which is copied: ONNX Runtime takes back the memory of its own."""
        place = self.add(spec)
        if origin is not None:
            self.packed[place] = origin
        self.weights[place] = aligned(array)
        return place

    def step(
        self, signature: RegionSignature, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        """Add a kernel."""
        self.refused = self.refused or self.accepts(signature)
        self.steps.append(Step(signature, tuple(inputs), tuple(outputs)))

    def transpose(self, place: int, perm: Sequence[int], name: str) -> int:
        """Add a kernel that changes the order of axes, and return what it makes."""
        source = self.tensors[place]
        result = TensorSpec(name, source.dtype, tuple(source.shape[axis] for axis in perm))
        function = onnx.FunctionProto(name="transpose", domain=DOMAIN, input=["x"], output=["y"])
        function.node.append(helper.make_node("Transpose", ["x"], ["y"], perm=list(perm)))
        # Kernels are made of bodies from 13 on; the operator has not changed since 1.
        function.opset_import.add(domain="", version=max(self.opset, _LEAST_OPSET))
        signature = RegionSignature("transpose", body_text(function), (source,), (result,))
        made = self.add(result)
        self.step(signature, (place,), (made,))
        return made

    def program(self, name: str, outputs: Sequence[int]) -> Program:
        """Return the finished program."""
        return Program(
            name,
            tuple(self.tensors),
            tuple(self.inputs),
            self.weights if self.bakes else {},
            self.views,
            tuple(outputs),
            tuple(self.steps),
            () if self.bakes else tuple(self.weights),
        )

    @property
    def held(self) -> tuple[np.ndarray, ...]:
        """What the session holds for the program."""
        return () if self.bakes else tuple(self.weights.values())

    @property
    def origins(self) -> tuple[Origin | None, ...]:
        """What `held` is packed from."""
        return () if self.bakes else tuple(self.packed.get(place) for place in self.weights)
