"""Regions of any size and gain, for models that are too small to have any that pay."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ortkit
from ortkit.fusion.regions import cost_model
from ortkit.targets import cpu


@pytest.fixture
def every_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "MINIMUM_GAIN", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_SAVED_NS", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_POINTS", 0)


@pytest.fixture(params=["x86-64-v3", "x86-64-v4-bf16", "x86-64-v4-amx"])
def int8_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let models be optimized for one of the levels that kernels of bytes differ by."""
    level: str = request.param
    if not cpu.runs_here(level):
        pytest.skip(f"this machine does not run code for {level}")
    options = partial(ortkit.OptimizeOptions, cpu=level)
    monkeypatch.setattr(ortkit, "OptimizeOptions", options)
    return level
