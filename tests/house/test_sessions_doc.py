"""docs/sessions.md is run: Python as doctests, commands as the command line calls them."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

import models.__main__
from ortkit.cli.main import run

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([DOCS / "sessions.md", *DOCS.glob("sessions/*.md")])
FENCED = re.compile(r"```(?P<kind>pycon|console)\n(?P<text>.*?)```", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,.]*(?:e[+-]?\d+)?")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the model that all pages speak of."""
    models.__main__.main(["bert", "--spelling", "ts", "-o", str(tmp_path / "bert.onnx")])
    return tmp_path


def blocks(page: Path, kind: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [found["text"] for found in FENCED.finditer(text) if found["kind"] == kind]


def test_there_are_pages_with_python_and_with_commands() -> None:
    assert sum(bool(blocks(page, "pycon")) for page in PAGES) > 1
    assert sum(bool(blocks(page, "console")) for page in PAGES) > 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_happens(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python first: it makes models that commands speak of."""
    monkeypatch.chdir(folder)
    check_python(page)
    for command, output in commands(page):
        check_command(command, output, capfd)


def check_python(page: Path) -> None:
    text = "".join(blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not result.failed, "".join(said)


def commands(page: Path) -> list[tuple[str, str]]:
    """Return (command, output) of all console blocks, in order."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def skeleton(line: str) -> str:
    """Return a line without what differs from run to run: numbers and the width of columns."""
    return " ".join(re.sub(r"[─━]+", "─", _NUMBER.sub("#", line)).split())


def check_command(command: str, output: str, capfd: pytest.CaptureFixture[str]) -> None:
    program, *arguments = shlex.split(command)
    assert program == "ortkit"
    capfd.readouterr()
    code = run(arguments)
    ended = capfd.readouterr()
    said = {skeleton(line) for line in (ended.out + ended.err).splitlines()}
    # What a check found is an answer; bad input is one where the page shows what is said of it.
    expected = {2} if output.startswith("ortkit: ") else {0, 1}
    assert code in expected, f"$ {command}\n{ended.err}"
    # Headings and sentences are as shown; lines with numbers may differ in order and in part.
    missing = [
        line
        for line in output.splitlines()
        if "#" not in skeleton(line) and "..." not in line and skeleton(line) not in said
    ]
    assert not missing, f"$ {command}\n" + "\n".join(missing) + f"\n---\n{ended.out}"
