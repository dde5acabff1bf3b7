"""What a kernel rounds more than ONNX Runtime does, where little is left of large terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from ortkit.verify import pair

pytest.importorskip("tvm")


@pytest.fixture(scope="module")
def difference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a model whose result is what a 3x3 convolution rounds, and its input."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[1, 64, 28, 28] x) => (float[1, 64, 28, 28] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Sub (a, b) }"""
    )
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 64, 28, 28)).astype(np.float32)
    w = random.standard_normal((64, 64, 3, 3)).astype(np.float32)
    padded = np.pad(x[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    parts = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    exact = np.einsum("cyxij,ocij->oyx", parts, w, optimize=True)
    for name, array in {"w": w, "b": exact[None].astype(np.float32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    folder = tmp_path_factory.mktemp("difference")
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "x.npz", x=x)
    return folder / "model.onnx", folder / "x.npz"


def test_minimal_filtering(difference: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing but roundings come out, in another order others: nothing is proved."""
    from ortkit.cli.main import run

    original, inputs = difference
    candidate = tmp_path / "model.opt.onnx"
    command = ["optimize", str(original), "-o", str(candidate), "--no-verify", "--quiet"]
    assert run([*command, "--cpu", "x86-64-v3"]) == 0
    (function,) = onnx.load(candidate).functions
    assert function.name.startswith("winograd_conv")
    found = pair.verify_models(
        original, candidate, inputs=inputs, library=candidate.with_suffix(".ops.so")
    )
    assert found.verdict == "partly", found.reason
    assert "ill-conditioned" in found.not_compared[0].reason


def test_it_is_not_off_elsewhere(difference: tuple[Path, Path]) -> None:
    """The model's own result is next to nothing, or the test above would show nothing."""
    original, inputs = difference
    session = ort.InferenceSession(str(original), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, dict(np.load(inputs)))
    assert 0 < np.abs(y).max() < 1e-3
