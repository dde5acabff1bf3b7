"""A region in float64, node by node through onnx.reference, and how far that can be trusted.

What a region's elements are conditioned like is found by trying: the region is evaluated again
with every rounding replaced by a random error of up to two epsilons of the node's dtype. An
element that these samples scatter is allowed to be off by as much, and one that is a number in
some and NaN or another integer in others says nothing (Parker, "Monte Carlo arithmetic", 1997).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from fuzz.values import FLOATS, Region
from ortkit.verify.kernels.ops import OPS

SAMPLES = 8
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}
LARGEST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.39e38, "float64": math.inf}
_WIDER = {"float64": "float64", "float32": "float32", "float16": "float32", "bfloat16": "float32"}
#: Below this results lose digits.
TINY = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126, "float64": 2.0**-1022}
_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: Operators that round nothing, or whose result is an element of an operand.
_EXACT = frozenset(
    {
        "Abs", "And", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
        "Ceil", "Clip", "Concat", "Constant", "Equal", "Expand", "Flatten", "Floor", "Gather",
        "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max",
        "Min", "Neg", "Not", "Or", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Round",
        "Sign", "Slice", "Split", "Squeeze", "ThresholdedRelu", "Transpose", "Unsqueeze", "Where",
        "Xor",
    }
)  # fmt: skip
#: Operators of many elements at once, as accurate as if their operands were a little off.
_ROWS = frozenset(
    {
        "CumSum", "LayerNormalization", "LogSoftmax", "Pow", "RMSNormalization", "ReduceL1",
        "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum",
        "ReduceSumSquare", "RotaryEmbedding", "Softmax", "Mean", "Sum",
    }
)  # fmt: skip

#: What a kernel need not tell from 0, as a denormal number costs processors a hundred cycles.
_FLUSHED = frozenset({"Softmax"})
#: Operators whose definition as it is written gives NaN at an infinity (-inf * 0, inf / inf), and
#: what their limit is there.
_LIMITS = {"Gelu": (0.0, None), "Mish": (0.0, None), "Swish": (0.0, None), "Softsign": (-1.0, 1.0)}

Results = dict[str, np.ndarray]


@dataclass(frozen=True)
class _Errors:
    """The errors of one sample.

    Args:
        rng: What they are drawn from.
        sign: 1 or -1; samples come in pairs of opposite errors, so that one of both falls to the
            other side of whatever is compared with its like. 0: every result is the nearest.
        is_repeated: Whether equal numbers get equal errors, as from a function.
        is_narrow: Whether results are rounded and overflow as their type does, sums of rows on
            the way, and limits at infinity are taken; else nothing is. Kernels may do either: they
            keep float16 in float32, add to products without rounding them first, and sum in any
            order; and what is nearly 1 may be equal to it.
        overflown: What a row is that overflows on the way, instead of NaN; None: NaN.
        is_wide: Whether float16 and bfloat16 are rounded as float32, which kernels keep them in.
    """

    rng: np.random.Generator
    sign: int
    is_repeated: bool
    is_narrow: bool
    overflown: float | None
    is_wide: bool = False

    def epsilon(self, dtype: str) -> float:
        """Return the error that a result of this type may have, relative."""
        return EPSILON[_WIDER[dtype] if self.is_wide else dtype]


class Reference:
    """A region to evaluate in float64."""

    def __init__(self, region: Region) -> None:
        function = _in_float64(region.function())
        self._dtypes = {name: value.dtype for name, value in region.values.items()}
        self._nodes = ReferenceEvaluator(function, new_ops=list(OPS)).rt_nodes_

    def run(self, feeds: Mapping[str, np.ndarray]) -> Results:
        """Return every value, without any error added."""
        return self._evaluate(feeds, None)

    def samples(self, feeds: Mapping[str, np.ndarray]) -> list[Results]:
        """Return the values of several runs with random errors in every rounding."""
        pairs = SAMPLES // 2
        rng = np.random.default_rng
        first = [_Errors(rng(0), 0, True, True, None)]
        if not {"float16", "bfloat16"}.isdisjoint(self._dtypes.values()):
            first += [_Errors(rng(0), sign, True, False, None, is_wide=True) for sign in (1, -1)]
        return [
            *(self._evaluate(feeds, errors) for errors in first),
            *(
                self._evaluate(
                    feeds,
                    _Errors(
                        rng(number % pairs),
                        1 if number < pairs else -1,
                        number % pairs < 2,
                        number % 2 == 1,
                        {3: 1e3, 7: -1e3}.get(number),
                    ),
                )
                for number in range(SAMPLES)
            ),
        ]

    def _evaluate(self, feeds: Mapping[str, np.ndarray], errors: _Errors | None) -> Results:
        results: dict[str, np.ndarray | None] = {"": None}
        for name, array in feeds.items():
            is_float = self._dtypes[name] in FLOATS
            results[name] = array.astype(np.float64) if is_float else array
        with np.errstate(all="ignore"):
            for node in self._nodes:
                inputs = [results[name] for name in node.input]
                is_row = errors is not None and node.op_type in _ROWS
                if errors is not None and is_row:
                    names = zip(inputs, node.input, strict=True)
                    inputs = [self._off(x, name, errors) for x, name in names]
                outputs = node.run(*inputs)
                if errors is not None and is_row and errors.overflown is not None:
                    outputs = [_replaced(output, inputs, errors.overflown) for output in outputs]
                for name, output in zip(node.output, outputs, strict=True):
                    results[name] = self._kept(node, inputs, name, output, errors)
        return {name: value for name, value in results.items() if value is not None}

    def _kept(
        self,
        node: OpRun,
        inputs: Sequence[np.ndarray | None],
        name: str,
        output: np.ndarray,
        errors: _Errors | None,
    ) -> np.ndarray:
        """Return a result as its type holds it, with an error if it is a rounded one."""
        dtype, array = self._dtypes[name], np.asarray(output)
        source = inputs[0] if inputs else None
        if dtype not in FLOATS:
            array = array.astype(dtype)
            if errors is not None and node.op_type == "Cast" and source is not None:
                return _any_out_of_range(source, array, errors)
            return array
        if errors is None:
            return _overflown(array, LARGEST[_WIDER[dtype]])
        if errors.is_narrow and node.op_type in _LIMITS and source is not None:
            for infinity, limit in zip((-np.inf, np.inf), _LIMITS[node.op_type], strict=True):
                array = array if limit is None else np.where(source == infinity, limit, array)
        if errors.is_narrow and node.op_type == "Clip":
            # A bound that is not given is the largest number of the type.
            array = np.clip(array, -LARGEST[dtype], LARGEST[dtype])
        is_sum = node.op_type.startswith("Reduce")
        # What a Cast rounds to the nearest may equal another number, and what is off never does.
        is_nearest = node.op_type == "Cast" and errors.is_narrow and errors.is_repeated
        if not is_nearest and _rounds(node.op_type, self._dtypes, node.input, dtype):
            array = _disturbed(array, dtype, errors, _terms(is_sum, source, array))
            if node.op_type == "LayerNormalization":
                array = array + _shifted_mean(node, inputs, dtype, errors)
            if node.op_type == "Gelu" and source is not None:
                array = array + _cancelled(source, array, dtype, errors)
        if errors.is_narrow and node.op_type in _FLUSHED:
            array = np.where(np.abs(array) < TINY[dtype], 0.0, array)
        return _held(array, dtype) if errors.is_narrow else array

    def _off(self, x: np.ndarray | None, name: str, errors: _Errors) -> np.ndarray | None:
        """Return an operand of a row's operator a little off; its squares overflow if narrow."""
        dtype = self._dtypes.get(name, "")
        if x is None or dtype not in FLOATS:
            return x
        moved = _disturbed(x, dtype, errors)
        return _overflown(moved, LARGEST[dtype] ** 0.5) if errors.is_narrow else moved


def _shifted_mean(
    node: OpRun, inputs: Sequence[np.ndarray | None], dtype: str, errors: _Errors
) -> np.ndarray | float:
    """Return what moves in a LayerNormalization whose sums are off as those of ReduceMean are."""
    x, scale = inputs[0], inputs[1]
    if x is None or scale is None or not x.size:
        return 0.0
    axes = tuple(range(node.axis % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    shift = _disturbed(mean, dtype, errors, _terms(True, x, mean)) - mean
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + node.epsilon)
    return np.nan_to_num(shift / deviation * scale, posinf=0.0, neginf=0.0)


def _cancelled(x: np.ndarray, result: np.ndarray, dtype: str, errors: _Errors) -> np.ndarray:
    """Return what Gelu as it is written, x (1 + erf(x / sqrt(2))) / 2, loses below 0."""
    half = np.abs(x) / 2.0
    # Where erf is nearer to -1 than half an epsilon the sum is 0, and its error all there is.
    lost = np.minimum(errors.epsilon(dtype) / 2.0 * half, np.abs(result))
    part = errors.rng.uniform(0.5, 1.0, x.shape)
    return np.where((x < 0) & np.isfinite(x), errors.sign * part * lost, 0.0)


def _rounds(op: str, dtypes: Mapping[str, str], inputs: Sequence[str], dtype: str) -> bool:
    if op != "Cast":
        return op not in _EXACT
    return EPSILON.get(dtypes[inputs[0]], 0.0) < EPSILON[dtype]


def _terms(is_sum: bool, source: np.ndarray | None, result: np.ndarray) -> float:
    """Return how many epsilons a sum may be off, 1 for what is no sum.

    A running sum of n equal numbers rounds to the same side each time: ONNX Runtime's and
    kernels' were off by up to n / 19 epsilons at 5,400 elements.
    """
    if source is None or not is_sum or not result.size:
        return 1.0
    return max(1.0, source.size / result.size / 64)


def _disturbed(x: np.ndarray, dtype: str, errors: _Errors, epsilons: float = 1.0) -> np.ndarray:
    """Move every element by half to two epsilons, or so many times that, up or down."""
    part = errors.rng.uniform(-1.0, 1.0, x.shape)
    if errors.is_repeated:
        part = np.modf(np.sin(12.9898 * x + errors.rng.uniform(0, 6)) * 43758.5453)[0]
    error = errors.sign * np.where(part < 0, -1.0, 1.0) * (0.5 + 1.5 * np.abs(part))
    # A kernel may compute what is narrower than float32 in float32: then nothing is rounded,
    # and a comparison of two such values may fall either way.
    # Near the smallest numbers terms are lost that a larger result would not miss.
    scale = epsilons * errors.epsilon(dtype) * (np.abs(x) + 8 * TINY[dtype])
    return x + np.where(np.isfinite(x), error * scale, 0.0)


def _overflown(x: np.ndarray, largest: float) -> np.ndarray:
    return np.where(np.abs(x) > largest, np.copysign(np.inf, x), x)


def _held(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)


def _replaced(
    output: np.ndarray, inputs: Sequence[np.ndarray | None], number: float
) -> np.ndarray:
    if all(x is None or not np.isinf(x).any() for x in inputs):
        return output
    return np.where(np.isnan(output), number, output)


def _any_out_of_range(source: np.ndarray, array: np.ndarray, errors: _Errors) -> np.ndarray:
    """What becomes of a float that the integer type cannot hold is nobody's promise."""
    if source.dtype.kind != "f" or array.dtype == bool:
        return array
    info = np.iinfo(array.dtype)
    is_held = (source > info.min - 1.0) & (source < info.max + 1.0)
    # Of one sign in a sample, so that whatever depends on the sign differs between samples.
    sign = 1 if info.min == 0 else errors.sign
    any_number = sign * errors.rng.integers(1, 100, array.shape)
    return np.where(is_held, array, any_number.astype(array.dtype))


def _in_float64(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return the function with every float type replaced by float64."""
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    for node in result.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOAT_TYPES:
                attribute.i = TensorProto.DOUBLE
            if node.op_type == "Constant" and attribute.t.data_type in _FLOAT_TYPES:
                exact = numpy_helper.to_array(attribute.t).astype(np.float64)
                attribute.t.CopyFrom(numpy_helper.from_array(exact))
    return result
