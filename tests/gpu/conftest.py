"""Tests of what only a GPU shows; skipped, with the reason, where there is none."""

from __future__ import annotations

import importlib.util

import pytest

from ortkit.runtime.targets import CUDA, device_count


def why_not() -> str:
    """Return why CUDA cannot be tested here, empty if it can."""
    if importlib.util.find_spec("onnxruntime") is None:
        return "onnxruntime is not installed"
    import onnxruntime

    if CUDA not in onnxruntime.get_available_providers():
        return "this is not onnxruntime-gpu"
    return "" if device_count() else "there is no NVIDIA GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "tests/gpu" in item.path.as_posix()]
    if here and (reason := why_not()):
        for item in here:
            item.add_marker(pytest.mark.skip(reason=reason))
