"""docs/guides/upgrades.md: what it shows of the installed ONNX Runtime happens."""

from __future__ import annotations

import shlex
from pathlib import Path

import onnxruntime
import pytest

from ortkit.cli.main import parser
from tests.house.test_programs import DOCS, blocks

PAGE = DOCS / "guides" / "upgrades.md"


def test_the_guide_shows_what_happens(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "116")
    for language, text in blocks(PAGE):
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), {})
    (console,) = [text for language, text in blocks(PAGE) if language == "console"]
    command, *shown = console.splitlines()
    done = call(*shlex.split(command.removeprefix("$ "))[1:])
    if "sound" in done.out:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} has no such fault")
    assert done.code == 1, done.err
    assert [line for line in shown if line not in done.out.splitlines()] == []


def test_the_recipe_for_continuous_integration_parses() -> None:
    (recipe,) = [text for language, text in blocks(PAGE) if language == "yaml"]
    lines = [line.split("run: ")[-1].strip() for line in recipe.splitlines()]
    commands = [line for line in lines if line.startswith("ortkit ")]
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command.partition(" > ")[0])
        assert words[0] == "ortkit"
        assert parser().parse_args(words[1:]).command in ("compare", "bisect")
