"""raise-opset: the opset that kernels are written for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope

#: Axes, bounds and sizes are inputs since, and Softmax is along one axis.
KERNELS_SINCE = 13
#: A Softmax over several axes is converted only since here: a Reshape may copy a size of zero.
RAISED_TO = 14


@dataclass(frozen=True)
class RaiseOpset(GraphPass):
    """Convert an older model once, so that kernels and passes know one form of each operator.

    Before:
        opset 11:  a, b = Split<axis = 1, split = [8, 8]>(x)
    After:
        opset 14:  a, b = Split<axis = 1>(x, [8, 8])

    Skips:
        * A model with a node that cannot be written in the newer opset: nothing is converted.
        * Models of opset 13 and newer, and where `--max-opset` is lower than that.

    Source:
        ONNX changelog, Split-13, Squeeze-13, Unsqueeze-13, Softmax-13, Reshape-14.
    """

    name: ClassVar[str] = "raise-opset"

    def run(self, scope: Scope) -> None:
        if 0 < scope.opset() < KERNELS_SINCE:
            newest = scope.options.max_opset
            scope.require_opset(max(KERNELS_SINCE, min(RAISED_TO, newest)))
