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
    model = case.build()
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
