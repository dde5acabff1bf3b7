"""Whether a fault moves any value that both graphs name by more than rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from mutants.inputs import Arrays
from mutants.weights import in_type

#: Of the largest magnitude of a row; float32 rounds a product of a thousand terms by about that.
ROUNDING = 3e-5

#: Smaller rows count as so large, relative to the largest of all.
_LEAST = 1e-6


class Observer:
    """Holds what a candidate without faults computes, every value that the original names, too."""

    def __init__(
        self, original: onnx.ModelProto, candidate: onnx.ModelProto, sets: Sequence[Arrays]
    ) -> None:
        """Run the candidate.

        Args:
            original: Its values are looked at.
            candidate: The candidate without faults.
            sets: Inputs; those that it cannot take are left out.
        """
        named = _names(original) & _names(candidate)
        self._names = tuple(sorted(named))
        session = _session(candidate, self._names)
        ran = [(arrays, _run(session, arrays, self._names)) for arrays in sets]
        self._runs = [(arrays, found) for arrays, found in ran if found is not None]
        if not self._runs:
            raise AssertionError("the candidate runs on no input set")

    @property
    def largest(self) -> dict[str, float]:
        """The largest magnitude of each value on the usual inputs, which are the first two."""
        return {
            name: max(_magnitude(found[name]) for _, found in self._runs[:2])
            for name in self._names
        }

    def moved(self, faulted: onnx.ModelProto) -> float | None:
        """Return by how much of a row's largest value any value moves; None if it does not run."""
        try:
            session = _session(faulted, self._names)
        except Exception:  # noqa: BLE001  a fault that does not load is none
            return None
        most, count = 0.0, 0
        for arrays, good in self._runs:
            bad = _run(session, arrays, self._names)
            if bad is None:
                continue
            count += 1
            most = max([most, *(_distance(good[name], bad[name]) for name in self._names)])
        return most if count else None


def _names(model: onnx.ModelProto) -> set[str]:
    constants = {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    made = {name for node in model.graph.node for name in node.output if name}
    return made - constants


def _session(model: onnx.ModelProto, names: Sequence[str]) -> ort.InferenceSession:
    wide = in_type(model, TensorProto.FLOAT)
    given = {output.name for output in wide.graph.output}
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in given)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(wide.SerializeToString(), options, ["CPUExecutionProvider"])


def _run(
    session: ort.InferenceSession, arrays: Arrays, names: Sequence[str]
) -> dict[str, np.ndarray] | None:
    feeds = {
        value.name: arrays[value.name].astype(np.float32)
        if value.type == "tensor(float)" else arrays[value.name]
        for value in session.get_inputs()
    }  # fmt: skip
    try:
        return dict(zip(names, session.run(list(names), feeds), strict=True))
    except Exception:  # noqa: BLE001  it does not take these sizes
        return None


def _magnitude(array: np.ndarray) -> float:
    if not array.size or array.dtype.kind != "f":
        return 0.0
    return float(np.abs(np.nan_to_num(array, posinf=0.0, neginf=0.0)).max())


def _distance(good: np.ndarray, bad: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest value of its row."""
    if good.shape != bad.shape or good.dtype != bad.dtype:
        return np.inf
    if good.dtype.kind != "f":
        return float(np.inf) if (good != bad).any() else 0.0
    if not good.size:
        return 0.0
    is_finite = np.isfinite(good)
    if (is_finite != np.isfinite(bad)).any():
        return np.inf
    first, second = (np.where(is_finite, each, 0.0).astype(np.float64) for each in (good, bad))
    scale = np.abs(first).max(axis=-1, keepdims=True) if first.ndim else np.abs(first)
    off = np.abs(first - second) / np.maximum(scale, _LEAST * max(np.abs(first).max(), _LEAST))
    return float(off.max())
