"""Products of uint8 and int8, which tensor cores have and Triton has not.

A kernel calls `unsigned_dot`, a function of its own text. The PTX of such a kernel multiplies
signed numbers, and its first factors are made unsigned before it is assembled. For Triton's
interpreter the text has other functions of the same names, which multiply exactly in float64.
"""

from __future__ import annotations

import re

from ortkit.errors import InternalError
from ortkit.kernels.triton.hand import kernel_text

_NAME = "def unsigned_dot("
#: Functions for GPUs, and functions of the same names for the interpreter, which has no assembly.
_FOR_GPUS, _INTERPRETED = "unsigned_dot_kernel", "unsigned_dot_interpreted_kernel"
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


def unsigned_functions() -> str:
    """Return the functions that a kernel of bytes calls, as text for the end of its module."""
    return _functions(_FOR_GPUS)


def interpretable(text: str) -> str:
    """Return a kernel's text with the functions of bytes that Triton's interpreter can run."""
    return text.replace(unsigned_functions(), _functions(_INTERPRETED))


def _functions(name: str) -> str:
    """Return a module without its head."""
    return kernel_text(name).partition("\n\n\n")[2]
