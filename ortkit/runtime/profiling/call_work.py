"""What one call of a node computes and moves, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.operators import where
from ortkit.runtime.heavy import HEAVY
from ortkit.runtime.profiling.trace.events import NodeSignature, TensorShape

#: Operators that hand on their input's memory where ONNX Runtime can: what they move, if
#: anything, the trace does not say.
_VIEWS = where(access="control") | where(reshapes=True) | {"Identity"}


@dataclass(frozen=True)
class CallWork:
    """What one call computes and moves."""

    flops: int | None
    """None: not known."""
    bytes_moved: int | None
    weight_bytes: int
    """Those of them that are weights: read again in each run."""
    dtype: str
    """Of the elements that are computed with; empty if there are none."""
    inputs: tuple[TensorShape, ...]
    """With the packed weights where these are known."""


def work_by_trace(signature: NodeSignature) -> CallWork:
    """Return what the trace alone says: sizes, but not where weights may have been packed."""
    sizes = (signature.parameter_bytes, signature.activation_bytes, signature.output_bytes)
    moved = None if signature.op in _VIEWS or signature.op in HEAVY else sum(sizes)
    tensors = signature.inputs or signature.outputs
    dtype = tensors[0][0] if tensors else ""
    return CallWork(None, moved, signature.parameter_bytes, dtype, signature.inputs)
