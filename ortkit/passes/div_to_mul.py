"""div-to-mul: division by a float constant becomes multiplication by its reciprocal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
import numpy as np

from ortkit.analysis.weight_arithmetic import rounded
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class DivToMul(NodePass):
    """Replace x / c by x * (1 / c), which is faster and which products can absorb.

    Before:
        y = Div(x, 8.0)
    After:
        y = Mul(x, 0.125)

    Exact where every element of c is a power of two, else off by at most one rounding.

    Skips:
        * Integers, and reciprocals that are infinite or below the type's normal numbers.
        * With `exact`: constants that are not powers of two.
        * A quotient that an Erf reads: ONNX Runtime 1.31.1 fuses a GELU with Div inside, and
          not one with Mul (both tried).

    Source:
        Goldberg, "What Every Computer Scientist Should Know About Floating-Point Arithmetic"
        (1991): each of the two roundings is at most half an ulp.
    """

    name: ClassVar[str] = "div-to-mul"
    ops: ClassVar[Sequence[str]] = ("Div",)

    exact: bool = False
    """Only where not one bit of the result changes."""
    limit: int = 1 << 16
    """Largest number of elements of a constant that is rewritten."""

    def rewrite(self, site: Site) -> None:
        divisor = site.array(site.input(1), self.limit)
        if divisor is None or divisor.dtype.kind in "biu" or site.opset < 7:
            return
        if site.scope.is_constant(site.input(0)):
            return
        if any(node.op_type == "Erf" for node in site.output.consumers()):
            site.miss("ONNX Runtime recognizes a GELU by its Div")
            return
        if self.exact and not _are_powers_of_two(divisor):
            site.miss("its divisor is no power of two, and only exact rewrites are wanted")
            return
        with np.errstate(divide="ignore"):
            reciprocal = rounded(1.0 / np.asarray(divisor, np.float64), divisor)
        if reciprocal is None or not _is_normal(reciprocal):
            site.miss("the reciprocal of its divisor does not fit the type")
            return
        if site.claim("reciprocal"):
            factor = site.constant(reciprocal, f"{site.output.name}/factor")
            site.replace(site.op("Mul", [site.input(0), factor]))


def _is_normal(array: np.ndarray) -> bool:
    info = ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    return bool((np.abs(np.asarray(array, np.float64)) >= float(info.tiny)).all())


def _are_powers_of_two(array: np.ndarray) -> bool:
    mantissas, _ = np.frexp(np.asarray(array, np.float64))
    return bool((np.abs(mantissas) == 0.5).all())
