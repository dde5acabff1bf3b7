"""Programs run without ONNX Runtime, and whole plans checked value by value."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from ortkit.provider.bridge import (
    FAIL,
    KERNEL_FUNCTION_TYPE,
    MAKE_OUTPUT,
    PARALLEL_FOR,
    SCRATCH,
    KernelContext,
    View,
)
from ortkit.provider.own.claim_set import Claim
from ortkit.provider.own.planning import Plan
from ortkit.provider.own.program import Program

#: Bytes before and after each tensor that must stay as they are.
GUARD = 4096


class ProgramError(Exception):
    """What a program says when it refuses a run."""


def run_program(
    library: Path,
    program: Program,
    inputs: Sequence[np.ndarray],
    weights: Sequence[np.ndarray] = (),
    output_types: Mapping[int, int] = MappingProxyType({}),
) -> list[np.ndarray]:
    """Run a program on arrays; its tasks run one after the other, the last one first.

    Outputs have the types that the program wants, but for those of `output_types`.
    """
    outputs: list[np.ndarray] = []
    held: list[object] = []
    guards: list[np.ndarray] = []

    def guarded(dims: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array between bytes that nobody may write."""
        size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
        whole = np.full(size + 3 * GUARD, 0x5A, np.uint8)
        start = -whole.ctypes.data % 64 + GUARD
        guards.extend((whole[:start], whole[start + size :]))
        return whole[start : start + size].view(dtype).reshape(dims)

    reasons: list[str] = []

    def make_output(context: object, index: int, dims: object, rank: int, view: object) -> int:
        dtype = program.tensors[program.outputs[index]].dtype
        array = guarded(tuple(dims[:rank]), _dtype(dtype))  # type: ignore[index]
        outputs.append(array)
        described = view.contents  # type: ignore[attr-defined]
        described.tensor.data = array.ctypes.data
        described.element_type = output_types.get(index, _element_type(array.dtype))
        return 0

    def parallel_for(context: object, body: object, total: int, user: int) -> int:
        for index in reversed(range(total)):
            body(user, index)  # type: ignore[operator]
        return 0

    def scratch(context: object, size: int) -> int:
        array = guarded((size,), np.dtype(np.uint8))
        array[:] = 0xA5
        held.append(array)
        return array.ctypes.data

    def fail(context: object, code: int, reason: bytes) -> int:
        reasons.append(reason.decode())
        return code

    arrays = [np.asarray(array, order="C") for array in inputs]
    views = (View * max(1, len(arrays)))()
    data = (ctypes.c_void_p * max(1, len(arrays)))()
    for view, array in zip(views, arrays, strict=False):
        dims = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
        held.append(dims)
        view.tensor.data, view.tensor.rank, view.tensor.dims = array.ctypes.data, array.ndim, dims
        view.element_type = _element_type(array.dtype)
    for index, array in enumerate(arrays):
        data[index] = array.ctypes.data
    context = KernelContext(
        size=ctypes.sizeof(KernelContext), input_count=len(arrays),
        output_count=len(program.outputs), inputs=views, make_output=MAKE_OUTPUT(make_output),
        parallel_for=PARALLEL_FOR(parallel_for), scratch=SCRATCH(scratch), fail=FAIL(fail),
        data=data,
    )  # fmt: skip
    function = KERNEL_FUNCTION_TYPE((program.symbol, ctypes.CDLL(str(library))))
    held_weights = (ctypes.c_void_p * len(weights))(*(weight.ctypes.data for weight in weights))
    code = function(ctypes.addressof(held_weights), ctypes.addressof(context))
    if code != 0:
        raise ProgramError(f"{code}: {reasons[-1] if reasons else 'no reason'}")
    assert all((guard == 0x5A).all() for guard in guards), "written beyond a tensor"
    return outputs


def _element_type(dtype: np.dtype) -> int:
    return int(ir.DataType.from_numpy(dtype))


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def worst_error(
    model: ir.Model, plan: Plan, library: Path, feeds: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Run every claim of a plan on what ONNX Runtime computes, unoptimized.

    Returns for each claim the largest error, in units of the largest value; an error of 0 for
    one whose results only other claims can read.
    """
    values = _reference(model, plan, feeds)
    carried: dict[str, np.ndarray] = {}
    errors: dict[str, float] = {}
    for claim in sorted(plan.claims, key=lambda one: bool(_carried(one, values))):
        given = [carried.get(name, values[name]) for name in claim.inputs]
        made = run_program(library, claim.program, given, claim.weights)
        errors[claim.at] = 0.0
        for place, name, array in zip(claim.program.outputs, claim.outputs, made, strict=True):
            if place in claim.program.views.values() and claim.program.root(place) == place:
                carried[name] = array
                continue
            errors[claim.at] = max(errors[claim.at], _error(array, values[name]))
    return errors


def _carried(claim: Claim, values: Mapping[str, np.ndarray]) -> bool:
    return any(place in claim.program.views.values() for place in claim.program.inputs)


def _reference(
    model: ir.Model, plan: Plan, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    wanted = {name for claim in plan.claims for name in (*claim.inputs, *claim.outputs)}
    proto = ir.to_proto(model)
    known = {value.name for value in proto.graph.output} | set(feeds)
    for name in sorted(wanted - known):
        proto.graph.output.add().name = name
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    return {**feeds, **dict(zip(names, session.run(names, dict(feeds)), strict=True))}


def _error(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape, f"{got.shape}, not {want.shape}"
    assert got.dtype == want.dtype
    if got.size == 0:
        return 0.0
    left, right = got.astype(np.float64), want.astype(np.float64)
    assert (np.isnan(left) == np.isnan(right)).all(), "NaN in other places"
    scale = max(1.0, float(np.nanmax(np.abs(np.where(np.isinf(right), 0, right)))))
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    difference = np.abs(np.where(same, 0, left) - np.where(same, 0, right))
    return float(difference.max()) / scale
