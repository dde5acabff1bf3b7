"""merge-casts: one Cast for two in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

_D = ir.DataType
#: Types that hold every value of the key, exactly.
HOLDS = {
    _D.BOOL: {_D.INT8, _D.UINT8, _D.INT16, _D.INT32, _D.INT64, _D.FLOAT16, _D.FLOAT, _D.DOUBLE},
    _D.INT8: {_D.INT16, _D.INT32, _D.INT64, _D.FLOAT16, _D.FLOAT, _D.DOUBLE},
    _D.UINT8: {_D.INT16, _D.UINT16, _D.INT32, _D.INT64, _D.FLOAT16, _D.FLOAT, _D.DOUBLE},
    _D.INT16: {_D.INT32, _D.INT64, _D.FLOAT, _D.DOUBLE},
    _D.UINT16: {_D.INT32, _D.INT64, _D.FLOAT, _D.DOUBLE},
    _D.INT32: {_D.INT64, _D.DOUBLE},
    _D.FLOAT16: {_D.FLOAT, _D.DOUBLE},
    _D.BFLOAT16: {_D.FLOAT, _D.DOUBLE},
    _D.FLOAT: {_D.DOUBLE},
}


@dataclass(frozen=True)
class MergeCasts(NodePass):
    """Skip a Cast whose type holds every value of the type before it.

    Before:
        t = Cast<to = DOUBLE>(x)       # x: float
        y = Cast<to = FLOAT16>(t)
    After:
        y = Cast<to = FLOAT16>(x)

    Skips:
        * A first Cast that can lose something.
        * Casts to text, which looks different for each type.

    Source:
        ONNX Cast-25, "Casting between types".
    """

    name: ClassVar[str] = "merge-casts"
    ops: ClassVar[Sequence[str]] = ("Cast",)

    def rewrite(self, site: Site) -> None:
        inner = site.producer(site.input(0), "Cast")
        if inner is None or (source := inner.inputs[0]) is None:
            return
        first, between = site.dtype(source), site.dtype(inner.outputs[0])
        if first is None or between not in HOLDS.get(first, set()):
            if first is not None and between is not None and first != between:
                site.miss(f"{first.name} to {between.name} may lose something")
            return
        if site.int("to", 0) == ir.DataType.STRING:
            site.miss(f"{between.name} is not written as {first.name} is")
            return
        if site.claim("exact"):
            site.set_input(0, source)
