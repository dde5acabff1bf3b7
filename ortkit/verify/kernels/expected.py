"""What a kernel is to give in one case: its body in float64 and in working precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial

import numpy as np

from ortkit.verify.kernels.blocks import Operand
from ortkit.verify.kernels.job import one_line
from ortkit.verify.kernels.judge import Found, judge_output
from ortkit.verify.kernels.reference import Reference

FLOAT64 = "float64"


class Expected:
    """The results of a body for one set of inputs."""

    def __init__(
        self,
        reference: Reference,
        operands: Sequence[Operand],
        body: Sequence[np.ndarray],
        *,
        is_number_for_nan: bool,
    ) -> None:
        """Compute the body in float64; where that fails, working precision takes its place.

        Args:
            reference: The body in float64.
            operands: Its inputs.
            body: Its results in working precision.
            is_number_for_nan: Whether the kernel may give a number where both are NaN.
        """
        self._is_number_for_nan = is_number_for_nan
        self._reference = reference
        self._inputs = [each.wide for each in operands]
        self._body = list(body)
        self._taken: Callable[[Sequence[np.ndarray]], list[np.ndarray]] = list
        self.precision = FLOAT64
        try:
            self._exact = reference(self._inputs)
        except Exception as error:  # noqa: BLE001  said in the report
            self._replace(one_line(error))
            return
        if [x.shape for x in self._exact] != [x.shape for x in body]:
            self._replace("the reference has other shapes")

    def _replace(self, reason: str) -> None:
        self._exact = list(self._body)
        self.precision = f"working precision: {reason}"

    def row(self, number: int, axes: Sequence[int | None]) -> Expected:
        """Return one row of the results.

        Args:
            number: The row's.
            axes: By output, the axis that rows are along; None where there is none.
        """
        found = copy(self)
        take = partial(_row_of, number=number, axes=axes)
        found._exact, found._body = take(self._exact), take(self._body)
        found._taken = take
        return found

    def judge(self, got: Sequence[np.ndarray], roundings: float) -> Iterator[Found]:
        """Yield the comparison of each output.

        Args:
            got: The kernel's results.
            roundings: How many times its body's roundings the kernel makes.
        """
        for index, (exact, body, result) in enumerate(
            zip(self._exact, self._body, got, strict=True)
        ):
            if self._is_number_for_nan:
                result = _with_nan(result, exact, body)
            yield judge_output(index, exact, body, result, roundings=roundings, moved=self._moved)

    def _moved(self, epsilons: float, seed: int) -> Sequence[np.ndarray] | None:
        try:
            return self._taken(self._reference.moved(self._inputs, epsilons, seed))
        except Exception:  # noqa: BLE001  then nothing is near a threshold
            return None


def _row_of(
    outputs: Sequence[np.ndarray], *, number: int, axes: Sequence[int | None]
) -> list[np.ndarray]:
    pairs = zip(outputs, axes, strict=True)
    return [x if axis is None else np.take(x, [number], axis) for x, axis in pairs]


def _with_nan(result: np.ndarray, exact: np.ndarray, body: np.ndarray) -> np.ndarray:
    """Return a result with NaN for each number where the body gives NaN."""
    is_nan = np.isfinite(result.astype(np.float64)) & (exact != exact) & (body != body)
    return np.where(is_nan, np.asarray(np.nan, result.dtype), result) if is_nan.any() else result
