"""What the body of a kernel computes in float64, by onnx's reference evaluator.

For the process that runs kernels: it imports numpy and onnx only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ortkit.verify.kernel_inputs import is_floating
from ortkit.verify.kernel_ops import OPS

_FLOATS = frozenset(
    {
        TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E5M2,
    }
)  # fmt: skip
#: Operators that round nothing: they move elements, choose among them or change a sign.
_EXACT = frozenset(
    {
        "Abs", "Ceil", "Clip", "Concat", "Constant", "Expand", "Flatten", "Floor", "Gather",
        "Identity", "Max", "MaxPool", "Min", "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu",
        "Reshape", "Round", "Sign", "Slice", "Split", "Squeeze", "ThresholdedRelu", "Transpose",
        "Unsqueeze", "Where",
    }
)  # fmt: skip
_EPSILON, _LARGEST = 2.0**-23, float(np.finfo(np.float32).max)
Values = list[np.ndarray]


class Reference:
    """A body in float64.

    Every float tensor is float64. A Cast to a float type rounds to that type, as it does in the
    body, and its result is float64 again. Integers and booleans stay as they are.
    """

    def __init__(self, function: onnx.FunctionProto) -> None:
        self._inputs, self._outputs = list(function.input), list(function.output)
        self._nodes = ReferenceEvaluator(_promoted(function), new_ops=list(OPS)).rt_nodes_

    def __call__(self, inputs: Sequence[np.ndarray]) -> Values:
        """Return the outputs, floats in float64.

        Args:
            inputs: Floats in float64, too.

        Raises:
            Exception: Whatever an operator raises that cannot be evaluated.
        """
        return self._evaluate(inputs, None)

    def moved(self, inputs: Sequence[np.ndarray], epsilons: float, seed: int) -> Values:
        """Return the outputs with a random error in every rounding: Monte Carlo arithmetic.

        Elements that such errors move are allowed to be off by as much (Parker 1997).

        Args:
            inputs: Floats in float64.
            epsilons: Errors are up to so many epsilons of float32.
            seed: Of the errors. With odd ones results overflow as float32 does.

        Raises:
            Exception: As a call.
        """
        random = np.random.default_rng(seed)
        return self._evaluate(inputs, _Errors(random, epsilons, is_narrow=seed % 2 == 1))

    def _evaluate(self, inputs: Sequence[np.ndarray], errors: _Errors | None) -> Values:
        known: dict[str, np.ndarray | None] = {"": None}
        for name, array in zip(self._inputs, inputs, strict=True):
            known[name] = array if errors is None else errors.on(array)
        with np.errstate(all="ignore"):
            for node in self._nodes:
                operands = [known[name] for name in node.input]
                for name, output in zip(node.output, node.run(*operands), strict=False):
                    result = np.asarray(output)
                    if errors is not None and node.op_type == "Cast" and result.dtype.kind in "iu":
                        result = errors.on_integers(operands[0], result)
                    elif errors is not None and node.op_type not in _EXACT:
                        result = errors.on(result)
                    known[name] = result
        found = [known[name] for name in self._outputs]
        return [array for array in found if array is not None]


class _Errors:
    """The errors of one evaluation."""

    def __init__(self, random: np.random.Generator, epsilons: float, *, is_narrow: bool) -> None:
        self._random = random
        self._step = epsilons * _EPSILON
        self._is_narrow = is_narrow

    def on(self, x: np.ndarray) -> np.ndarray:
        """Return floats, each moved; others as they are."""
        if x.dtype != np.float64:
            return x
        moved = x * (1 + self._step * self._random.uniform(-1, 1, x.shape))
        if self._is_narrow:
            moved = np.where(np.abs(moved) > _LARGEST, np.copysign(np.inf, moved), moved)
        return np.asarray(moved)

    def on_integers(self, source: np.ndarray | None, result: np.ndarray) -> np.ndarray:
        """Return floats as integers: what does not fit may be any number."""
        if source is None or source.dtype.kind != "f":
            return result
        info = np.iinfo(result.dtype)
        fits = (source > info.min - 1.0) & (source < info.max + 1.0)
        return np.where(fits, result, self._random.integers(0, 100, result.shape)).astype(
            result.dtype
        )


def _promoted(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return the body with float64 in place of each float type."""
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    for node in function.node:
        copy = result.node.add()
        copy.CopyFrom(node)
        if node.op_type == "Constant":
            _widen_constant(copy)
        elif node.op_type == "Cast":
            (to,) = (one.i for one in node.attribute if one.name == "to")
            if to in _FLOATS:
                name = f"{node.output[0]}/rounded"
                copy.output[0] = name
                again = helper.make_node("Cast", [name], [node.output[0]], to=TensorProto.DOUBLE)
                result.node.append(again)
    return result


def _widen_constant(node: onnx.NodeProto) -> None:
    (attribute,) = node.attribute
    if attribute.name == "value":
        array = numpy_helper.to_array(attribute.t)
    elif attribute.name in ("value_float", "value_floats"):
        numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        array = np.asarray(numbers, np.float32)
    else:
        return
    if is_floating(array.dtype):
        wide = numpy_helper.from_array(array.astype(np.float64))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", wide))
