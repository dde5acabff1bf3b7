"""The exporter script refuses what it cannot do; with torch installed it exports."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from models import export

HAS_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_says_what_to_install(tmp_path, capsys) -> None:
    assert export.main([str(tmp_path / "out")]) == 2
    assert "torch" in (text := capsys.readouterr().err)
    assert text.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and transformers")
@pytest.mark.parametrize("exporter", export.OPSETS)
def test_exports_what_torch_computes(exporter: str, tmp_path) -> None:
    import onnxruntime as ort

    arguments = [str(tmp_path), "--small", "--only", "llama_masked", "--exporter", exporter]
    assert export.main(arguments) == 0
    path = tmp_path / f"llama_masked.{exporter}.onnx"
    values = dict(np.load(path.with_suffix(".npz")))
    want = values.pop("y")
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, values)[0], want, rtol=1e-3, atol=1e-4)
