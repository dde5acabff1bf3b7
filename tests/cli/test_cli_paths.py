"""Paths that name no model: one line and exit code 2, and nothing waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

COMMANDS = (
    "optimize", "inspect", "verify small.onnx", "compare small.onnx", "profile", "memory", "run",
    "try", "diff small.onnx", "bisect", "trust", "reduce --check true", "tune",
    "provider compile", "profile --from", "profile diff small.onnx",
    "verify small.onnx small.onnx --inputs",
    "optimize small.onnx -o",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_name_is_not_the_current_folder(
    command: str, call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = call(*command.split(), "")
    assert done.code == 2
    assert "is empty; name a file" in done.err
    assert done.err.count("\n") == 1
    assert not done.out


NAMES = (
    "/",
    "pipe",
    "dangling",
    "loop",
    "loop/small.onnx",
    "a\nb",
    "q'u\"o",
    os.fsdecode(b"\xff"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", COMMANDS[:-2])
def test_what_is_no_model_is_one_line(
    command: str, name: str, call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody writes to is refused, not read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.onnx").write_bytes((folder / "small.onnx").read_bytes())
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    done = call(*command.split(), name)
    assert done.code == 2
    assert done.err.count("\n") == 1, done.err
    assert not done.out
