"""The pieces that `scripts/bench kernels` measures are what their rows say."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from scripts.benches.kernel_cases import CASES, Case
from scripts.benches.kernels import as_region, fused_model, line_of


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    session = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    return session.run(None, feeds)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_as_one_region_computes_the_same(case: Case) -> None:
    model = case.as_kernel()
    onnx.checker.check_model(case.build(), full_check=True)
    onnx.checker.check_model(model, full_check=True)
    signature = as_region(model)
    rng = np.random.default_rng(0)
    feeds = {
        spec.name: rng.standard_normal(spec.shape).astype(np.float32)
        for spec in signature.inputs[: len(model.graph.input)]
    }
    fused = fused_model(model, signature)
    for spec, found, expected in zip(
        signature.outputs, _run(fused, feeds), _run(model, feeds), strict=True
    ):
        assert found.shape == spec.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_an_empty_run_takes_is_taken_off_but_from_the_copy() -> None:
    process = {"before": [5.0, 7.0], "kernel": [3.0, 3.0], "memcpy": [1.0, 1.0]}
    line = line_of([process, process], 1.0)
    assert dict(line.minima) == {"before": 4.0, "kernel": 2.0, "memcpy": 1.0}
    assert dict(line.medians) == {"before": 5.0, "kernel": 2.0, "memcpy": 1.0}
    assert line.ratios["kernel"].value == 2.5


def test_a_region_in_another_layout_computes_the_same() -> None:
    for case in (case for case in CASES if case.region is not None):
        before, inner = case.build(), case.as_kernel()
        (weight,) = (item for item in before.graph.initializer if item.name == "weight")
        (other,) = (one for one in inner.graph.initializer if one.name == "weight")
        moved = onnx.numpy_helper.to_array(weight).transpose(2, 3, 1, 0)
        other.CopyFrom(onnx.numpy_helper.from_array(moved, "weight"))
        x = np.random.default_rng(0).standard_normal((1, 96, 112, 112)).astype(np.float32)
        (expected,) = _run(before, {"x": x})
        (found,) = _run(inner, {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1))})
        np.testing.assert_allclose(found.transpose(0, 3, 1, 2), expected, atol=1e-4)
