"""Getting started and the guides are run, block by block, in a folder of their own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import models.__main__
from ortkit.cli.main import run
from tests.house.test_sessions_doc import skeleton

DOCS = Path(__file__).parents[2] / "docs"
FENCED = re.compile(r"```(python|console|pycon)\n(.*?)```", re.DOTALL)
RUN = [
    DOCS / "getting-started.md",
    # Nine commands, one of which times a model and one of which is given 5 s.
    pytest.param(DOCS / "guides" / "optimize.md", marks=pytest.mark.slow),
    DOCS / "guides" / "llm.md",
]
#: Python that needs a GPU, or names that only the reader has, is compiled and not run.
COMPILED = [DOCS / "guides" / "gpu.md", DOCS / "guides" / "llm.md"]


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCED.findall(page.read_text("utf-8"))


# A guide optimizes whole models: the drawn page takes up to 8 s.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_guide_shows_what_happens(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if page.stem != "getting-started":
        models.__main__.main(["bert", "--spelling", "ts", "-o", "model.onnx"])
    names: dict[str, Any] = {}
    for kind, text in blocks(page):
        if kind == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                check(command, shown, capsys)
        elif page not in COMPILED:
            exec(text, names)


def check(command: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of ortkit or of the model builders; what is shown must be said."""
    program, *arguments = shlex.split(command)
    capsys.readouterr()
    if program == "ortkit":
        assert run(arguments) == 0, command
    else:
        assert [program, *arguments[:2]] == ["python", "-m", "models"], command
        models.__main__.main(arguments[2:])
    said = {skeleton(line) for line in capsys.readouterr().out.splitlines()}
    assert {skeleton(line) for line in shown.splitlines() if line} <= said, command


@pytest.mark.parametrize("page", COMPILED, ids=lambda page: page.stem)
def test_python_for_other_machines_compiles(page: Path) -> None:
    programs = [text for kind, text in blocks(page) if kind == "python"]
    assert programs
    for program in programs:
        compile(program, str(page), "exec")
