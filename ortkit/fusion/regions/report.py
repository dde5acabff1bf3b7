"""What became of a region."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir


def op_types(nodes: Iterable[ir.Node]) -> tuple[str, ...]:
    """Return the operators of nodes, each once."""
    return tuple(dict.fromkeys(node.op_type for node in nodes))


@dataclass(frozen=True)
class RegionReport:
    """One region: what it is and what became of it."""

    kind: str
    at: str
    """Its last node's output, as the original model names it."""
    nodes: int
    emitted_as: str | None
    """The fused node's op type, None if it stays as it is."""
    reason: str
    """Why it stays, empty if it does not."""
    inputs: int
    outputs: int
    predicted_before_ns: int
    """As ONNX Runtime's own nodes, in one run on one thread (`fusion/regions/cost_model.py`)."""
    predicted_after_ns: int
    """As one kernel."""
    left_out: tuple[str, ...] = ()
    """Architectures of GPUs that its kernel did not compile for: why, and what they run."""
    sources: tuple[str, ...] = ()
    """Files with the code of its kernel, if that was to be kept."""
    ops: tuple[str, ...] = ()
    """The operators of its nodes, each once."""
    kept_from: str = ""
    """The fused op type of the source that it is; empty for a region that was formed today."""
