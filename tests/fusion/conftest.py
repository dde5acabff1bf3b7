"""Regions of any size and gain, for models that are too small to have any that pay."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.fusion.regions import cost_model


@pytest.fixture
def every_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "MINIMUM_GAIN", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_SAVED_NS", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_POINTS", 0)
