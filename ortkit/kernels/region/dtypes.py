"""Element types: as ONNX names them, as they lie in memory, and as kernels compute with them.

float16 and bfloat16 are converted to float32 when loaded and rounded once when stored, so that
nothing is rounded in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
# Of these every function is computed in float32; float64 has only what needs no vector math.
FLOATS = ("float32", "float16", "bfloat16")
NUMBERS = (*FLOATS, "float64", *INTEGERS)
DTYPES = (*NUMBERS, "bool")

# ONNX's TensorProto.DataType.
ELEMENT_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}

_MEMORY = {"bool": "uint8", "bfloat16": "uint16", "float8_e4m3fn": "uint8"}
_COMPUTE = {"float16": "float32", "bfloat16": "float32"}
_BFLOAT16_SHIFT = 16
_BFLOAT16_NAN = 0x7FC0


def compute_dtype(dtype: str) -> str:
    """Return the type of the expressions that stand for values of `dtype`."""
    return _COMPUTE.get(dtype, dtype)


def memory_dtype(dtype: str) -> str:
    """Return the type of a buffer that holds values of `dtype`."""
    return _MEMORY.get(dtype, dtype)


def bits_of(dtype: str) -> int:
    """Return the width of an integer or floating-point type that kernels compute with."""
    return np.dtype(dtype).itemsize * 8


def load(e: Emitter, raw: Expr, dtype: str) -> Expr:
    """Return the value of an element as read from a buffer of `memory_dtype(dtype)`."""
    if dtype == "bool":
        return e.not_equal(raw, e.u8(0))
    if dtype == "float16":
        return e.cast(raw, "float32")
    if dtype == "bfloat16":
        bits = e.cast(raw, "uint32") << e.constant(_BFLOAT16_SHIFT, "uint32")
        return e.bitcast(bits, "float32")
    return raw


def store_value(e: Emitter, value: Expr, dtype: str) -> Expr:
    """Return `value`, rounded to nearest even, as it is stored to such a buffer."""
    if dtype == "bool":
        return e.select(value, e.u8(1), e.u8(0))
    if dtype == "float16":
        return e.cast(value, "float16")
    if dtype == "bfloat16":
        return _to_bfloat16(e, value)
    return value


def constant(e: Emitter, value: float | int | bool, dtype: str) -> Expr:
    """Return a constant of `dtype` as expressions hold it; the value is one of the type's."""
    return e.constant(value, compute_dtype(dtype))


def rounded(e: Emitter, value: Expr, dtype: str) -> Expr:
    """Return a float32 value as it would be after having been stored as `dtype`."""
    if dtype not in _COMPUTE:
        return value
    # LLVM skips the narrow type where the value was an integer, in some loops and not in others.
    value = e.share(e.fence(e.share(value)))
    return load(e, e.share(store_value(e, value, dtype)), dtype)


def _to_bfloat16(e: Emitter, value: Expr) -> Expr:
    # By integers: apache-tvm 0.27's own conversion turns some NaN into infinity or zero.
    value = e.share(value)
    bits = e.share(e.bitcast(value, "uint32"))
    shift = e.constant(_BFLOAT16_SHIFT, "uint32")
    is_odd = (bits >> shift) & e.constant(1, "uint32")
    rounded_bits = (bits + e.constant(0x7FFF, "uint32") + is_odd) >> shift
    # Narrowed last: LLVM takes a choice between 16-bit lanes apart.
    nan = e.constant(_BFLOAT16_NAN, "uint32")
    return e.cast(e.share(e.select(e.is_nan(value), nan, rounded_bits)), "uint16")


def memory_bytes(dtype: str) -> int:
    """Return the size of one element in memory."""
    return bits_of(memory_dtype(dtype)) // 8
