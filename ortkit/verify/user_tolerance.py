"""What a user allows a result to be off, in the terms of `numpy.allclose`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from ortkit.errors import UserError

#: Elements compared at a time, to keep float64 copies of large outputs small.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class UserTolerance:
    """Bounds on `|actual - expected|`, element by element: `atol + rtol * |expected|`.

    It is held to in addition to the judgement of `verify/compare.py`, never instead of it. A
    number that is not given is 0, as soon as one is given for the output or for all.
    """

    atol: float | None = None
    rtol: float | None = None
    atol_of: Mapping[str, float] = field(default_factory=dict)
    """By output, in the place of `atol`."""
    rtol_of: Mapping[str, float] = field(default_factory=dict)
    """By output, in the place of `rtol`."""

    def bounds(self, name: str) -> tuple[float, float] | None:
        """Return atol and rtol of an output; None if nothing is given for it."""
        atol, rtol = self.atol_of.get(name, self.atol), self.rtol_of.get(name, self.rtol)
        if atol is None and rtol is None:
            return None
        return atol or 0.0, rtol or 0.0

    def check_names(self, outputs: Collection[str]) -> None:
        """Refuse bounds for outputs that there are none of.

        Raises:
            UserError: A name is unknown.
        """
        for flag, given in (("--atol", self.atol_of), ("--rtol", self.rtol_of)):
            for name in given:
                if name in outputs:
                    continue
                near = difflib.get_close_matches(name, outputs, n=1)
                known = f"the outputs are {', '.join(outputs)}"
                raise UserError(
                    f"the model has no output {name!r}",
                    where=f"{flag} {name}={given[name]:g}",
                    fix=f"did you mean {near[0]!r}" if near else known,
                )

    def exceeds(self, name: str, expected: object, actual: object) -> str:
        """Say how an output is further off than allowed; empty if it is not.

        NaN equals NaN, and an infinity the same one. What is no array of numbers is not judged.

        Args:
            name: The output.
            expected: What it should be: an array, a list of arrays or None.
            actual: What it is.
        """
        bounds = self.bounds(name)
        if bounds is None:
            return ""
        if isinstance(expected, list) and isinstance(actual, list):
            pairs = zip(expected, actual, strict=False)
            found = (self.exceeds(name, want, got) for want, got in pairs)
            return next(filter(None, found), "")
        if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
            return ""
        if expected.shape != actual.shape:
            return f"shape {list(actual.shape)} instead of {list(expected.shape)}"
        if _is_text(expected) or _is_text(actual):
            return ""
        return _exceeds(expected, actual, *bounds)


def _is_text(array: np.ndarray) -> bool:
    return array.dtype.kind in "OUS"


def _exceeds(expected: np.ndarray, actual: np.ndarray, atol: float, rtol: float) -> str:
    wanted, given = expected.reshape(-1), actual.reshape(-1)
    count, worst, at = 0, -1.0, 0
    for start in range(0, wanted.size, _BLOCK):
        want, got = (_wide(each[start : start + _BLOCK]) for each in (wanted, given))
        with np.errstate(invalid="ignore", over="ignore"):
            same = (want == got) | (np.isnan(want) & np.isnan(got))
            off = np.abs(got - want)
            allowed = np.where(np.isfinite(want), atol + rtol * np.abs(want), 0.0)
            wrong = ~same & ~(off <= allowed)
            over = np.where(wrong, np.nan_to_num(off - allowed, nan=np.inf), -1.0)
        count += int(wrong.sum())
        if over.size and over.max() > worst:
            worst, at = float(over.max()), start + int(over.argmax())
    if not count:
        return ""
    where = [int(i) for i in np.unravel_index(at, expected.shape)]
    return (
        f"{count} of {wanted.size} elements are beyond atol {atol:g} and rtol {rtol:g},"
        f" the furthest at {where}: {given[at]} instead of {wanted[at]}"
    )


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
