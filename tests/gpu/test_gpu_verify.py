"""Verification on CUDA: kernels run there, and a verdict that lacked them is completed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit import OptimizeOptions, optimize
from ortkit.fusion.regions import cost_model
from ortkit.verify.pair import verify_models

CHAIN = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) { a = Tanh(x) b = Exp(a) y = Erf(b) }"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return a model, and what is made of it with a kernel for CUDA."""
    monkeypatch.setattr(cost_model, "MINIMUM_GAIN", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_SAVED_NS", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_POINTS", 0)
    onnx.save(onnx.parser.parse_model(CHAIN), tmp_path / "m.onnx")
    result = optimize(tmp_path / "m.onnx", OptimizeOptions(target="cuda", level=3))
    assert result.report.verification is not None
    assert result.report.verification.verdict == "yes", result.report.verification.reason
    assert result.report.rolled_back == ()
    result.save(tmp_path / "made.onnx")
    return tmp_path / "m.onnx", tmp_path / "made.onnx"


def test_kernels_run_in_verification(made: tuple[Path, Path]) -> None:
    found = verify_models(*made, library=made[1].with_name("made.ops.so"))
    assert (found.verdict, found.not_compared) == ("yes", ())
