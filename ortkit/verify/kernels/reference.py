"""What the body of a kernel computes in float64, by onnx's reference evaluator.

For the process that runs kernels: it imports numpy and onnx only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ortkit.operators import where
from ortkit.verify.kernels.ops import OPS
from ortkit.verify.kernels.ops_blocks import allowed_rounding, rounding_steps
from ortkit.verify.kernels.promoted import promoted
from ortkit.verify.tolerances import TOLERANCES

#: Operators that round nothing.
_EXACT = where(exact=True) | {"Constant", "MaxPool"}
_EPSILON, _LARGEST = 2.0**-23, float(np.finfo(np.float32).max)
#: Operators that select what is computed in no wider type: a rounding may change nothing of it.
_SELECTIONS = frozenset({"NonMaxSuppression"})
#: Operators that multiply half their argument by one plus erf or tanh, which rounds to float32.
#: In the left tail that sum cancels.
_ONE_PLUS = frozenset({"Gelu"})
Values = list[np.ndarray]
Operands = list[np.ndarray | None]


class Reference:
    """A body in float64.

    Every float tensor is float64. A Cast to a float type rounds to that type, as it does in the
    body, and its result is float64 again. Integers and booleans stay as they are.
    """

    def __init__(
        self, function: onnx.FunctionProto, types: Mapping[str, np.dtype[np.generic]] | None = None
    ) -> None:
        """Promote a body.

        Args:
            function: The body.
            types: The types of its values by name, where each is rounded to its own; else float32
                is taken for all.
        """
        self._types = types or {}
        self._inputs, self._outputs = list(function.input), list(function.output)
        self._nodes = ReferenceEvaluator(promoted(function), new_ops=list(OPS)).rt_nodes_

    def __call__(self, inputs: Sequence[np.ndarray]) -> Values:
        """Return the outputs, floats in float64.

        Args:
            inputs: Floats in float64, too.

        Raises:
            Exception: Whatever an operator raises that cannot be evaluated.
        """
        return self._evaluate(inputs, _Change())

    def moved(self, inputs: Sequence[np.ndarray], epsilons: float, seed: int) -> Values:
        """Return the outputs with a random error in every rounding: Monte Carlo arithmetic.

        Elements that such errors move are allowed to be off by as much (Parker 1997).

        Args:
            inputs: Floats in float64.
            epsilons: Errors are up to this many epsilons of a value's type.
            seed: Decides the errors. With odd ones results overflow as float32 does.

        Raises:
            Exception: As a call, and where the body selects.
        """
        if any(node.op_type in _SELECTIONS for node in self._nodes):
            raise NotImplementedError("a selection is exact")
        random = np.random.default_rng(seed)
        errors = _Errors(random, epsilons, self._types, is_narrow=seed % 2 == 1)
        return self._evaluate(inputs, errors)

    def rounded(self, inputs: Sequence[np.ndarray]) -> Values:
        """Return the outputs where each value is rounded to its type, and is float64 again.

        Args:
            inputs: Floats in float64.

        Raises:
            Exception: As a call.
        """
        return self._evaluate(inputs, _Rounding(self._types))

    def _evaluate(self, inputs: Sequence[np.ndarray], change: _Change) -> Values:
        known: dict[str, np.ndarray | None] = {"": None}
        with np.errstate(all="ignore"):
            for name, array in zip(self._inputs, inputs, strict=True):
                known[name] = change.on_input(name, array)
            for node in self._nodes:
                operands = [known[name] for name in node.input]
                operands = change.on_operands(node.onnx_node, operands)
                for name, output in zip(node.output, node.run(*operands), strict=False):
                    known[name] = change.on_result(
                        node.op_type, operands, name, np.asarray(output)
                    )
        found = [known[name] for name in self._outputs]
        return [array for array in found if array is not None]


class _Change:
    """What becomes of values in one evaluation: they stay."""

    def on_input(self, name: str, x: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Return an input as the body reads it."""
        return x

    def on_operands(
        self,
        node: onnx.NodeProto,  # noqa: ARG002
        operands: Operands,
    ) -> Operands:
        """Return what an operator computes with."""
        return operands

    def on_result(
        self,
        op_type: str,  # noqa: ARG002
        operands: Sequence[np.ndarray | None],  # noqa: ARG002
        name: str,  # noqa: ARG002
        x: np.ndarray,
    ) -> np.ndarray:
        """Return a result as other operators read it."""
        return x


class _Rounding(_Change):
    """Values as their types hold them."""

    def __init__(self, types: Mapping[str, np.dtype[np.generic]]) -> None:
        self._types = types

    def on_result(
        self, op_type: str, operands: Sequence[np.ndarray | None], name: str, x: np.ndarray
    ) -> np.ndarray:
        """Round floats."""
        del op_type, operands
        dtype = self._types.get(name)
        if dtype is None or x.dtype != np.float64 or dtype == np.float64:
            return x
        return x.astype(dtype).astype(np.float64)


class _Errors(_Change):
    """A random error in each rounding."""

    def __init__(
        self,
        random: np.random.Generator,
        epsilons: float,
        types: Mapping[str, np.dtype[np.generic]],
        *,
        is_narrow: bool,
    ) -> None:
        self._random = random
        self._epsilons = epsilons
        self._types = types
        self._is_narrow = is_narrow

    def on_input(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return floats, each moved; others as they are."""
        if x.dtype != np.float64:
            return x
        dtype = self._types.get(name)
        epsilon = _EPSILON if dtype is None else TOLERANCES[dtype.name].epsilon
        step = self._epsilons * epsilon
        moved = x * (1 + step * self._random.uniform(-1, 1, x.shape))
        if self._is_narrow:
            moved = np.where(np.abs(moved) > _LARGEST, np.copysign(np.inf, moved), moved)
        return np.asarray(moved)

    def on_operands(self, node: onnx.NodeProto, operands: Operands) -> Operands:
        """Return operands of which one may be rounded, moved by as much."""
        x = operands[0] if operands else None
        if x is None or allowed_rounding(node) is None:
            return operands
        steps = self._epsilons * rounding_steps(node, x)
        return [x + steps * self._random.uniform(-1, 1, x.shape), *operands[1:]]

    def on_result(
        self, op_type: str, operands: Sequence[np.ndarray | None], name: str, x: np.ndarray
    ) -> np.ndarray:
        """Return floats moved unless the operator is exact, and integers that floats become."""
        if op_type == "Cast" and x.dtype.kind in "iu":
            return self._on_integers(operands[0], x)
        if op_type in _ONE_PLUS and operands[0] is not None:
            x = x + self._of_cancelled_sum(operands[0])
        return x if op_type in _EXACT else self.on_input(name, x)

    def _of_cancelled_sum(self, argument: np.ndarray) -> np.ndarray:
        """Return the error that a rounding of one plus erf or tanh makes in the result."""
        error = 0.5 * argument * self._epsilons * _EPSILON
        error *= self._random.uniform(-1, 1, argument.shape)
        return np.where(np.isfinite(argument), error, 0.0)

    def _on_integers(self, source: np.ndarray | None, result: np.ndarray) -> np.ndarray:
        """Return floats as integers: what does not fit may be any number."""
        if source is None or source.dtype.kind != "f":
            return result
        info = np.iinfo(result.dtype)
        fits = (source > info.min - 1.0) & (source < info.max + 1.0)
        return np.where(fits, result, self._random.integers(0, 100, result.shape)).astype(
            result.dtype
        )
