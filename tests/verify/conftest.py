"""Verification is tested as users have it: kernels at all sizes that there is time for."""

from __future__ import annotations

import pytest

from ortkit.verify.kernels import check

_SECONDS, _INTERPRETED = dict(check.SECONDS), dict(check._INTERPRETED)


@pytest.fixture(autouse=True)
def _usual_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check.SECONDS, "quick", _SECONDS["quick"])  # type: ignore[arg-type]
    monkeypatch.setitem(check._INTERPRETED, "quick", _INTERPRETED["quick"])  # type: ignore[arg-type]
