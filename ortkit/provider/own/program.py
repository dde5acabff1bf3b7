"""What one group of nodes becomes: kernels in a row over tensors that enter, stay or leave."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ortkit.kernels.signature import RegionSignature, TensorSpec, canonical_dim


@dataclass(frozen=True)
class Step:
    """One kernel.

    Args:
        signature: The signature of what it computes.
        inputs: Its inputs in order, as places among the program's tensors.
        outputs: Its outputs likewise.
    """

    signature: RegionSignature
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """Kernels in a row.

    Args:
        name: A readable word, an identifier such as `add_layer_norm`.
        tensors: All that enter, are baked in, are made on the way or leave.
        inputs: Which of them the caller gives, in the order in which it gives them.
        constants: Which are baked in, with their data.
        views: Which have the bytes of another under other sizes.
        outputs: Which leave, in the order in which the caller takes them.
        steps: In the order in which they run.
        weights: Which the session holds for it: constants in a layout of the kernels' own.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    inputs: tuple[int, ...]
    constants: Mapping[int, np.ndarray]
    views: Mapping[int, int]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    weights: tuple[int, ...] = ()

    def root(self, tensor: int) -> int:
        """Return whose bytes a tensor has: its own, or those of what it is a view of."""
        while tensor in self.views:
            tensor = self.views[tensor]
        return tensor

    @cached_property
    def key(self) -> str:
        """Sixteen hex digits: equal programs compute the same, if their weights are the same."""
        digest = hashlib.sha256()
        names: dict[str, str] = {}
        for tensor in self.tensors:
            dims = [canonical_dim(dim, names) for dim in tensor.shape]
            digest.update(f"{tensor.dtype}{dims};".encode())
        groups = (self.inputs, sorted(self.views.items()), self.outputs, self.weights)
        digest.update(repr(groups).encode())
        for step in self.steps:
            # The sizes of a signature are those of its tensors, but may be called otherwise.
            specs = (*step.signature.inputs, *step.signature.outputs)
            sizes = [[canonical_dim(dim, names) for dim in spec.shape] for spec in specs]
            digest.update(f"{step.signature.key}{step.inputs}{step.outputs}{sizes};".encode())
        for index_of_tensor, array in sorted(self.constants.items()):
            digest.update(f"{index_of_tensor}{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @property
    def symbol(self) -> str:
        """The C function's name."""
        return f"ortkit_{self.name}_{self.key}"
