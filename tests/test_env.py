"""Folders of users without a home, as containers run them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ortkit import env


def test_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("ORTKIT_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert env.cache_dir().parent == Path(tempfile.gettempdir())
    assert env.state_dir() is None
