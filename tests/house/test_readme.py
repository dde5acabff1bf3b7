"""The Python of README.md is run, in order, in one folder, as a newcomer would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import models.__main__
import ortkit
from ortkit.provider.registration import registered_providers

PAGE = Path(__file__).parents[2] / "README.md"
FENCED = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_what_is_shown_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.__main__.main(["bert", "--spelling", "ts", "-o", str(tmp_path / "model.onnx")])
    monkeypatch.chdir(tmp_path)
    tokens = np.ones((1, 8), np.int64)
    names: dict[str, Any] = {
        "numpy": np, "onnxruntime": onnxruntime, "ids": tokens, "mask": tokens,
    }  # fmt: skip
    blocks = FENCED.findall(PAGE.read_text("utf-8"))
    assert any("register_custom_ops_library" in block for block in blocks)
    try:
        for block in blocks:
            exec(block, names)
        assert "ReluExecutionProvider" in registered_providers()
    finally:
        ortkit.unregister_provider("ReluExecutionProvider")
    assert (tmp_path / "model.opt.ops.so").is_file()
    shape = names["session"].run(None, {"input_ids": tokens, "attention_mask": tokens})[0].shape
    assert shape == names["outputs"]["last_hidden_state"].shape
