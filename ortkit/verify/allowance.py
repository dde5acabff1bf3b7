"""What a candidate may do that its original does not."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class Allowance:
    """A lowering that the user asked for."""

    computed_in: str = ""
    """A coarser float type that float32 is computed in, as numpy names it; empty if none."""
    stated: float = 0.0
    """An error that the user accepts of each output and of each step; see `accuracy.py`."""

    @property
    def half(self) -> ir.DataType | None:
        """The type that constants may be rounded to, if they may be."""
        return ir.DataType[self.computed_in.upper()] if self.computed_in else None


DEFAULT = Allowance()
