"""drop-zero-state: recurrent layers start from zero by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.operators import where
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Inputs that hold an initial state, by op.
STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
#: Ops whose result is zero everywhere if their first input is.
KEEP_ZERO = tuple(sorted((where(moves_only=True) - {"Concat"}) | {"Cast"}))
#: Longest chain that is followed, and largest constant that is read.
DEPTH, ELEMENTS = 8, 1 << 16


@dataclass(frozen=True)
class DropZeroState(NodePass):
    """Leave out an initial state that is zero everywhere.

    Before:
        h = Expand(0.0, [1, batch, 16])
        y = LSTM(x, W, R, B, , h, h)
    After:
        y = LSTM(x, W, R, B)

    Skips:
        * States whose zeros are computed otherwise than by moving or repeating zeros.

    Source:
        ONNX LSTM, GRU, RNN-1 ... 22: an absent initial state is assumed to be 0.
    """

    name: ClassVar[str] = "drop-zero-state"
    ops: ClassVar[Sequence[str]] = tuple(STATES)

    def rewrite(self, site: Site) -> None:
        zeros = [i for i in STATES[site.node.op_type] if is_zero(site, site.input(i))]
        if zeros and site.claim("zero"):
            for index in zeros:
                site.set_input(index, None)


def is_zero(site: Site, value: ir.Value | None, depth: int = DEPTH) -> bool:
    """Say whether every element of `value` is provably zero."""
    if value is None or depth == 0:
        return False
    if (array := site.array(value, ELEMENTS)) is not None:
        return array.dtype.kind in "bfiu" and not bool(array.any())
    node = site.producer(value, "ConstantOfShape", *KEEP_ZERO)
    if node is None:
        return False
    if node.op_type != "ConstantOfShape":
        return is_zero(site, node.inputs[0], depth - 1)
    fill = node.attributes.get("value")
    return fill is None or (not fill.is_ref() and not fill.as_tensor().numpy().any())
