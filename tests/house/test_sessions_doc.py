"""docs/sessions.md is run: Python as doctests, commands in a shell of their own."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import models.__main__

PAGE = Path(__file__).parents[2] / "docs" / "sessions.md"
FENCED = re.compile(r"```(?P<kind>pycon|console)\n(?P<text>.*?)```", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,.]*(?:e[+-]?\d+)?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sessions")
    models.__main__.main(["bert", "--spelling", "ts", "-o", str(made / "bert.onnx")])
    return made


def blocks(kind: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return [found["text"] for found in FENCED.finditer(text) if found["kind"] == kind]


def test_python_gives_what_the_page_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    parser = doctest.DocTestParser()
    test = parser.get_doctest("".join(blocks("pycon")), {}, PAGE.name, str(PAGE), 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    result = runner.run(test, out=said.append)
    assert result.attempted > 10
    assert not result.failed, "".join(said)


def commands() -> list[tuple[str, str]]:
    """Return (command, output) of all console blocks, in order."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def skeleton(line: str) -> str:
    """Return a line without what differs from run to run: numbers and the width of columns."""
    return " ".join(re.sub(r"[─━]+", "─", _NUMBER.sub("#", line)).split())


def test_commands_give_what_the_page_shows(folder: Path) -> None:
    environment = {**os.environ, "ORTKIT_CACHE": str(folder / "cache"), "COLUMNS": "160"}
    for command, output in commands():
        program, *arguments = shlex.split(command)
        assert program == "ortkit"
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "ortkit", *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        said = {skeleton(line) for line in (ended.stdout + ended.stderr).splitlines()}
        assert ended.returncode in (0, 1), f"$ {command}\n{ended.stderr}"
        # Headings and sentences are as shown; rows of numbers may differ in order and in part.
        missing = [
            line
            for line in output.splitlines()
            if "#" not in skeleton(line) and "..." not in line and skeleton(line) not in said
        ]
        assert not missing, f"$ {command}\n" + "\n".join(missing) + f"\n---\n{ended.stdout}"
