"""Every architecture in models/ runs on made inputs and agrees with itself."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from models.catalog import BUILDERS, build, spellings
from ortkit.verify.pair import verify_models


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_a_tiny_model_agrees_with_itself(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(build(name, "tiny", spellings(name)[0]), path)
    found = verify_models(path, path)
    assert found.verdict == "yes", found.reason
    assert found.samples >= 3
    assert "inexact" not in found.reason
