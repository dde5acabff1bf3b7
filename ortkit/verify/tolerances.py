"""The one table of how far a result may be from the reference, in epsilons of its dtype.

An epsilon is the distance from 1 to the next value of the dtype. Errors are measured against
the largest magnitude of the row (see `compare.py`), so that a row's small elements, which
carry the rounding of its large ones, are not judged by their own size.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """How far results of one dtype may be from the reference."""

    epsilon: float
    allowed_eps: float
    reason: str


_FLOAT8 = "one rounding of the result, which may fall to either neighbour"

#: By dtype, as numpy and ml_dtypes name it.
TOLERANCES: dict[str, Tolerance] = {
    "float64": Tolerance(
        2.0**-52, 4096.0, "ONNX Runtime's float64 exp and erf are polynomials good to some 1e-13"
    ),
    # ONNX Runtime's optimizations alone: 5 at most on the tiny models of models/, 11 on the
    # full bert (12 layers, sums of up to 3,072 products); onnxruntime 1.31.1, AVX-512.
    "float32": Tolerance(
        2.0**-23, 128.0, "sums of thousands of products in another order, over a dozen layers"
    ),
    "float16": Tolerance(
        2.0**-10, 16.0, "one rounding per fused step that no longer rounds in between"
    ),
    "bfloat16": Tolerance(
        2.0**-7, 8.0, "as float16; its few bits hide all but the last roundings"
    ),
    "float8_e4m3fn": Tolerance(2.0**-3, 1.0, _FLOAT8),
    "float8_e4m3fnuz": Tolerance(2.0**-3, 1.0, _FLOAT8),
    "float8_e5m2": Tolerance(2.0**-2, 1.0, _FLOAT8),
    "float8_e5m2fnuz": Tolerance(2.0**-2, 1.0, _FLOAT8),
    "float8_e8m0fnu": Tolerance(1.0, 1.0, _FLOAT8),
    "float4_e2m1fn": Tolerance(0.5, 1.0, _FLOAT8),
}

#: By the coarsest type in which a model has values (`int8`: it quantizes), the part of a row's
#: scale beyond which a spread of perturbed runs allows no more.
CAPS = {
    "float32": 2.0**-7, "float16": 2.0**-4, "bfloat16": 2.0**-3, "int8": 2.0**-4,
}  # fmt: skip

#: What a row may be off, as a multiple of how far the perturbed runs move it at most: the runs are
#: eight draws of what roundings do, and a candidate is another one.
SPREAD_FACTOR = 2.0

#: A node of a model may be off by this many times what another run of it is.
OWN_ERROR_FACTOR = 4.0

#: Rows smaller than this part of the tensor's largest magnitude are judged at this part:
#: one float32 rounding of the largest value, where terms of that size cancel.
PEAK_PART = 2.0**-10

#: No row is judged at a smaller scale: what is left of values of size one that cancel.
SCALE_FLOOR = 2.0**-20

#: Elements larger than this many times their row's median are sentinels (-1e9 in a mask): each is
#: judged by its own size, and they do not set the scale of the others.
SENTINEL_FACTOR = 2.0**12


def allowed_eps(dtype: str, computed_in: str = "") -> float:
    """Return how many epsilons a value of a float `dtype` may be off.

    Args:
        dtype: A key of `TOLERANCES`.
        computed_in: A coarser float type that the value was computed in, empty if it was not.
    """
    coarse, fine = TOLERANCES[computed_in or dtype], TOLERANCES[dtype]
    return max(fine.allowed_eps, coarse.allowed_eps * coarse.epsilon / fine.epsilon)
