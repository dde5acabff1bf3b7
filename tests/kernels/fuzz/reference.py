"""A region in float64, node by node through onnx.reference, and how far that can be trusted.

What a region's elements are conditioned like is found by trying: the region is evaluated again
with every rounding replaced by a random error of up to two epsilons of the node's dtype. An
element that these samples scatter is allowed to be off by as much, and one that is a number in
some and NaN or another integer in others says nothing (Parker, "Monte Carlo arithmetic", 1997).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from fuzz.ops64 import OPS
from fuzz.values import FLOATS, Region

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

#: Operators whose definition as it is written gives NaN at an infinity (-inf * 0, inf / inf), and
#: what their limit is there.
_LIMITS = {"Gelu": (0.0, None), "Mish": (0.0, None), "Swish": (0.0, None), "Softsign": (-1.0, 1.0)}

Results = dict[str, np.ndarray]


class Reference:
    """A region to evaluate in float64."""

    def __init__(self, region: Region) -> None:
        function = _in_float64(region.function())
        self._dtypes = {name: value.dtype for name, value in region.values.items()}
        self._nodes = ReferenceEvaluator(function, new_ops=list(OPS)).rt_nodes_

    def run(self, feeds: Mapping[str, np.ndarray]) -> Results:
        """Return every value, without any error added."""
        return self._evaluate(feeds, None, is_narrow=False)

    def samples(self, feeds: Mapping[str, np.ndarray]) -> list[Results]:
        """Return the values of several runs with random errors in every rounding.

        Every other one lets what a node computes overflow as its type does, and takes limits at
        infinity; the others let nothing overflow. Kernels may do either: they keep float16 in
        float32, and add to products without rounding them first.
        """
        seeds = range(SAMPLES)
        return [
            self._evaluate(feeds, np.random.default_rng(seed), is_narrow=seed % 2 == 1)
            for seed in seeds
        ]

    def _evaluate(
        self, feeds: Mapping[str, np.ndarray], rng: np.random.Generator | None, *, is_narrow: bool
    ) -> Results:
        results: dict[str, np.ndarray | None] = {"": None}
        for name, array in feeds.items():
            is_float = self._dtypes[name] in FLOATS
            results[name] = array.astype(np.float64) if is_float else array
        with np.errstate(all="ignore"):
            for node in self._nodes:
                inputs = [results[name] for name in node.input]
                if rng is not None and node.op_type in _ROWS:
                    inputs = [
                        self._off(x, name, rng, is_narrow)
                        for x, name in zip(inputs, node.input, strict=True)
                    ]
                outputs = node.run(*inputs)
                for name, output in zip(node.output, outputs, strict=True):
                    results[name] = self._kept(node, inputs, name, output, rng, is_narrow)
        return {name: value for name, value in results.items() if value is not None}

    def _kept(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[np.ndarray | None],
        name: str,
        output: np.ndarray,
        rng: np.random.Generator | None,
        is_narrow: bool,
    ) -> np.ndarray:
        dtype = self._dtypes[name]
        array = np.asarray(output)
        source = inputs[0] if inputs else None
        if dtype not in FLOATS:
            array = array.astype(dtype)
            if rng is not None and node.op_type == "Cast" and source is not None:
                return _any_out_of_range(source, array, rng)
            return array
        if is_narrow and node.op_type in _LIMITS and source is not None:
            for infinity, limit in zip((-np.inf, np.inf), _LIMITS[node.op_type], strict=True):
                array = array if limit is None else np.where(source == infinity, limit, array)
        if rng is not None and _rounds(node.op_type, self._dtypes, node.input, dtype):
            array = _disturbed(array, dtype, rng, _terms(node.op_type, source, array))
        # A product that overflows in float32 may be added to in one step, and not overflow.
        is_wide = rng is not None and not is_narrow
        largest = LARGEST["float64" if is_wide else dtype if is_narrow else _WIDER[dtype]]
        return np.where(np.abs(array) > largest, np.copysign(np.inf, array), array)

    def _off(
        self, x: np.ndarray | None, name: str, rng: np.random.Generator, is_narrow: bool
    ) -> np.ndarray | None:
        dtype = self._dtypes.get(name, "")
        if x is None or dtype not in FLOATS:
            return x
        moved = _disturbed(x, dtype, rng)
        return _overflown(moved, dtype) if is_narrow else moved


def _rounds(op: str, dtypes: Mapping[str, str], inputs: Sequence[str], dtype: str) -> bool:
    if op != "Cast":
        return op not in _EXACT
    return EPSILON.get(dtypes[inputs[0]], 0.0) < EPSILON[dtype]


def _terms(op: str, source: np.ndarray | None, result: np.ndarray) -> float:
    """Return how many epsilons a sum may be off, 1 for what is no sum.

    A running sum of n equal numbers rounds to the same side each time: ONNX Runtime's and
    kernels' were off by up to n / 19 epsilons at 5,400 elements.
    """
    if source is None or not op.startswith("Reduce") or not result.size:
        return 1.0
    return max(1.0, source.size / result.size / 64)


def _disturbed(
    x: np.ndarray, dtype: str, rng: np.random.Generator, epsilons: float = 1.0
) -> np.ndarray:
    """Move every element by half to two epsilons, or so many times that, up or down."""
    error = rng.uniform(0.5, 2.0, x.shape) * rng.choice((-1.0, 1.0), x.shape)
    # A kernel may compute what is narrower than float32 in float32: then nothing is rounded,
    # and a comparison of two such values may fall either way.
    scale = epsilons * EPSILON[dtype] * (np.abs(x) + TINY[dtype])
    return x + np.where(np.isfinite(x), error * scale, 0.0)


def _overflown(x: np.ndarray, dtype: str) -> np.ndarray:
    """Let sums and squares of a row overflow, as they do or not by the order of summation."""
    largest = LARGEST[dtype] ** 0.5 if dtype != "float64" else math.inf
    return np.where(np.abs(x) > largest, np.copysign(np.inf, x), x)


def _any_out_of_range(
    source: np.ndarray, array: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """What becomes of a float that the integer type cannot hold is nobody's promise."""
    if source.dtype.kind != "f" or array.dtype == bool:
        return array
    info = np.iinfo(array.dtype)
    is_held = (source > info.min - 1.0) & (source < info.max + 1.0)
    # Of one sign in a sample, so that whatever depends on the sign differs between samples.
    sign = 1 if info.min == 0 else rng.choice((-1, 1))
    any_number = sign * rng.integers(1, 100, array.shape)
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
