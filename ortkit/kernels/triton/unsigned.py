"""Products of uint8 and int8, which tensor cores have and Triton has not.

A kernel calls `unsigned_dot`, a function of its own text with the line `_SIGNED`. The PTX of such
a kernel multiplies signed numbers, and its first factors are made unsigned before it is assembled.
Triton's interpreter multiplies exactly in float64 instead.
"""

from __future__ import annotations

import re

from ortkit.errors import InternalError

_NAME = "def unsigned_dot("
_SIGNED = "return tl.dot(a.to(tl.int8, bitcast=True), b, acc, out_dtype=tl.int32)"
_EXACT = (
    "return acc + tl.dot("
    "a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64).to(tl.int32)"
)  # fmt: skip
#: A function that is assembly, which the interpreter has not, and what it computes.
_SATURATED = re.compile(r"(def saturated_bytes\(x\):\n.*?\n    return ).*?# fmt: skip", re.DOTALL)
_BOUNDED = r"\1tl.minimum(tl.maximum(x, 0), 255).to(tl.uint8)"
#: Of `wgmma.mma_async` and `mma.sync`: the types of sums, of both factors, and again of sums.
_PRODUCT = re.compile(r"(mma(?:_async)?\.sync\.aligned\.\S*\.s32)\.s8\.s8\b")


def is_unsigned(text: str) -> bool:
    """Say whether a kernel multiplies uint8 by int8."""
    return _NAME in text


def unsigned_ptx(ptx: str) -> str:
    """Return PTX whose products of signed bytes have unsigned first factors.

    Raises:
        InternalError: It has no such product.
    """
    made, count = _PRODUCT.subn(r"\1.u8.s8", ptx)
    if not count:
        raise InternalError("a kernel of bytes without products of bytes")
    return made


def interpretable(text: str) -> str:
    """Return a kernel's text as Triton's interpreter computes it.

    Raises:
        InternalError: `unsigned_dot` is another function.
    """
    if not is_unsigned(text):
        return text
    if _SIGNED not in text:
        raise InternalError("unsigned_dot is another function than the PTX is changed for")
    return _SATURATED.sub(_BOUNDED, text.replace(_SIGNED, _EXACT))
