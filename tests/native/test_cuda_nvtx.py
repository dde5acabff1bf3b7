"""Ranges with the names of regions for NVTX tools: on request, and only with a tool."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.native.objects import HERE, compiled, linked
from tests.native.test_cuda_shim import SOURCES, fake_driver
from tests.native.test_shim import build

RANGES = ["push add", "pop", "push sum", "pop"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the program, the driver and the tool."""
    made = tmp_path_factory.mktemp("nvtx")
    build(made, [], *SOURCES)
    fake_driver(made / "driver", [])
    linked(made / "tool.so", [compiled(HERE / "fake_nvtx.cc", ["-fPIC"])], ["-shared"])
    return made


def ranges(folder: Path, **settings: str) -> list[str]:
    """What two runs print, of `add` and `sum`."""
    kept = {k: v for k, v in os.environ.items() if "NVTX" not in k}
    surroundings = {**kept, "LD_LIBRARY_PATH": str(folder / "driver"), **settings}
    done = subprocess.run(
        [folder / "program", "ranges"], env=surroundings, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


def test_a_tool_gets_a_range_for_each_run(folder: Path) -> None:
    tool = str(folder / "tool.so")
    assert ranges(folder, ORTKIT_NVTX="1", NVTX_INJECTION64_PATH=tool) == RANGES


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ORTKIT_NVTX": "1"},
        {"NVTX_INJECTION64_PATH": "tool.so"},
        {"ORTKIT_NVTX": "0", "NVTX_INJECTION64_PATH": "tool.so"},
        {"ORTKIT_NVTX": "1", "NVTX_INJECTION64_PATH": "absent.so"},
        {"ORTKIT_NVTX": "1", "NVTX_INJECTION64_PATH": "driver/libcuda.so.1"},
        {"ORTKIT_NVTX": "1", "NVTX_INJECTION64_PATH": "tool.so", "FAKE_NVTX": "refuse"},
        {"ORTKIT_NVTX": "1", "NVTX_INJECTION64_PATH": "tool.so", "FAKE_NVTX": "half"},
    ],
    ids=lambda settings: " ".join(settings.values()) or "nothing",
)
def test_without_a_request_or_a_tool_there_are_none(
    settings: dict[str, str], folder: Path
) -> None:
    if (path := settings.get("NVTX_INJECTION64_PATH")) is not None:
        settings = {**settings, "NVTX_INJECTION64_PATH": str(folder / path)}
    assert ranges(folder, **settings) == []
