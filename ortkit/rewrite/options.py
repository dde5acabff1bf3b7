"""What the model is optimized for, as far as rewriting needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Target:
    """The execution provider that the result should be fast on."""

    kind: Kind = "cpu"
    level: int = 2
    """0 to 3; at 3 every recognised fusion is emitted, whatever it costs."""
    max_opset: int = 23
    """The default domain's version may be raised up to this where a fusion needs it."""
    has_signed_kernels: bool = False
    """Whether ONNX Runtime has kernels for int8 activations there, as it has on ARM; on x86 it has
    them for uint8."""
