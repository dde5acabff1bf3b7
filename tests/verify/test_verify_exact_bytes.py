"""Sessions that are compared multiply bytes exactly, on processors without VNNI too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ortkit.verify import child


def test_sessions_are_asked_for_exact_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(
        child, "open_session", lambda _, plan: asked.append(dict(plan.settings.config))
    )
    kernels = SimpleNamespace(library=None, with_options=())
    for prepack in (True, False):
        setting = child.Setting(tmp_path / "m.onnx", tmp_path, prepack=prepack)
        child._session(None, setting, kernels)  # type: ignore[arg-type]
    assert [one["session.x64quantprecision"] for one in asked] == ["1", "1"]
