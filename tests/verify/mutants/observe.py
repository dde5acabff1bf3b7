"""Whether a fault moves any value that both graphs name by more than rounding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from mutants.inputs import Arrays
from mutants.weights import in_type

#: Of the largest magnitude of a row; float32 rounds a product of a thousand terms by about that.
ROUNDING = 3e-5
#: Of a lowered value as a whole: what is less could be noise of quantization.
LOWERED = 1e-3

#: Smaller rows count as so large, relative to the largest of all.
_LEAST = 1e-6


class Observer:
    """Holds what a candidate without faults computes, every value that the original names, too."""

    def __init__(
        self,
        original: onnx.ModelProto,
        candidate: onnx.ModelProto,
        sets: Sequence[Arrays],
        library: Path | None = None,
    ) -> None:
        """Run the candidate.

        Args:
            original: Its values are looked at.
            candidate: The candidate without faults.
            sets: Inputs; those that it cannot take are left out.
            library: The kernels without faults, if kernels are looked at.
        """
        named = _names(original) & _names(candidate)
        self._names = tuple(sorted(named))
        session = _session(candidate, self._names, library)
        ran = [(arrays, _run(session, arrays, self._names)) for arrays in sets]
        self._runs = [(arrays, found) for arrays, found in ran if found is not None]
        if not self._runs:
            raise AssertionError("the candidate runs on no input set")

    def moved(self, faulted: onnx.ModelProto, library: Path | None = None) -> float | None:
        """Return by how much of a row's largest value any value moves; None if it does not run."""
        try:
            session = _session(faulted, self._names, library)
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


class LoweringObserver:
    """Holds how far a lowered candidate without faults is off, at every value of the original."""

    def __init__(
        self, original: onnx.ModelProto, candidate: onnx.ModelProto, sets: Sequence[Arrays]
    ) -> None:
        """Run both; see `Observer`."""
        self._names = tuple(sorted(_names(original) & _names(candidate)))
        sessions = [_session(each, self._names, None) for each in (original, candidate)]
        ran = [(arrays, *(_run(each, arrays, self._names) for each in sessions))
               for arrays in sets]  # fmt: skip
        self._runs = [
            (arrays, exact, {name: _error(exact[name], good[name]) for name in self._names})
            for arrays, exact, good in ran
            if exact is not None and good is not None
        ]

    def moved(self, faulted: onnx.ModelProto) -> float | None:
        """Return the most that a value is off beyond twice what lowering costs; None: no run."""
        try:
            session = _session(faulted, self._names, None)
        except Exception:  # noqa: BLE001  a fault that does not load is none
            return None
        found = []
        for arrays, exact, errors in self._runs:
            bad = _run(session, arrays, self._names)
            if bad is not None:
                found += [_error(exact[name], bad[name]) - 2 * errors[name]
                          for name in self._names]  # fmt: skip
        return max(found) if found else None


def _error(exact: np.ndarray, found: np.ndarray) -> float:
    """Return the relative error of a float value as a whole, 0 where it cannot be told."""
    if exact.shape != found.shape or exact.dtype.kind != "f" or not np.isfinite(exact).all():
        return 0.0
    norm = float(np.linalg.norm(exact.astype(np.float64)))
    error = float(np.linalg.norm(exact.astype(np.float64) - found))
    return error / norm if norm > 0 and np.isfinite(error) else 0.0


def _names(model: onnx.ModelProto) -> set[str]:
    constants = {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    made = {name for node in model.graph.node for name in node.output if name}
    return made - constants


def _session(
    model: onnx.ModelProto, names: Sequence[str], library: Path | None
) -> ort.InferenceSession:
    wide = in_type(model, TensorProto.FLOAT)
    given = {output.name for output in wide.graph.output}
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in given)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1 if library is None else 2
    if library is not None:
        options.register_custom_ops_library(str(library))
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


def _distance(good: np.ndarray, bad: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest value of its row."""
    if good.shape != bad.shape or good.dtype != bad.dtype or good.dtype.kind not in "fiub":
        return np.inf
    if not good.size:
        return 0.0
    is_finite = np.isfinite(good)
    if (is_finite != np.isfinite(bad)).any():
        return np.inf
    first, second = (np.where(is_finite, each, 0.0).astype(np.float64) for each in (good, bad))
    scale = np.abs(first).max(axis=-1, keepdims=True) if first.ndim else np.abs(first)
    off = np.abs(first - second) / np.maximum(scale, _LEAST * max(np.abs(first).max(), _LEAST))
    return float(off.max())
