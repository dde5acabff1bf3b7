"""Docstrings and the help of commands are as short as the pages: see test_prose.py."""

from __future__ import annotations

import argparse
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortkit.cli.main import parser
from ortkit.cli.tree import actions
from tests.cli.test_cli_docs import leaves
from tests.house.test_prose import MAX_WORDS, ROOT, long_sentences

PACKAGES = ("custom_ops", "models", "ortkit", "scripts")
#: Package -> how many long sentences its docstrings may have. The numbers only get smaller.
EXCEPTIONS = {
    "custom_ops": 29,
    "ortkit/analysis": 1,
    "ortkit/comparison": 1,
    "ortkit/extend": 2,
    "ortkit/fusion": 9,
    "ortkit/graph": 7,
    "ortkit/kernels": 26,
    "ortkit/operators": 1,
    "ortkit/ops": 3,
    "ortkit/optimization": 2,
    "ortkit/passes": 6,
    "ortkit/precision": 1,
    "ortkit/provider": 3,
    "ortkit/rewrite": 1,
    "ortkit/runtime": 5,
    "ortkit/verify": 5,
    "scripts": 8,
}
_QUOTED = re.compile(
    r'(?P<begin>^[ \t]*r?)?(?:"""(?P<text>.*?)"""|\'\'\'.*?\'\'\')', re.DOTALL | re.MULTILINE
)
#: What a pass replaces, as ONNX text.
_GRAPHS = re.compile(r"^(?:Before|After)\b[^\n]*:\n(?:[ \t]+[^\n]*\n?|\n(?=[ \t]))+", re.MULTILINE)
#: An entry of `Args:` or `Raises:`, a line of a table or of code ends the sentence before it.
_ENTRY = re.compile(r"^\s+\*{0,2}[\w.]+(?: or \w+)?: |^\w+:$")


def docstrings(path: Path) -> Iterator[str]:
    """Yield the texts in three quotes that begin a line; parsing each file would take seconds."""
    for found in _QUOTED.finditer(path.read_text("utf-8")):
        if found["begin"] is not None:
            yield inspect.cleandoc(found["text"])


def long_in(text: str) -> list[str]:
    """Return the long sentences of a docstring, each entry of a section read by itself."""
    parts = [""]
    for line in _GRAPHS.sub("", text).splitlines():
        if _ENTRY.match(line):
            parts.append("")
        parts[-1] += f"{line.strip() if len(parts) > 1 else line}\n"
    return [each for part in parts for each in long_sentences(part)]


def place_of(path: Path) -> str:
    """Return the package, below `ortkit` the one in it."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: 2 if parts[0] == "ortkit" and len(parts) > 2 else 1])


def test_docstrings_are_short() -> None:
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for each in (each for text in docstrings(path) for each in long_in(text)):
                found.setdefault(place_of(path), []).append(f"{path.relative_to(ROOT)}: {each}")
    counts = Counter({place: len(texts) for place, texts in found.items()})
    more = {place for place in counts if counts[place] > EXCEPTIONS.get(place, 0)}
    assert not more, "\n".join(text for place in sorted(more) for text in found[place])
    assert counts.keys() == EXCEPTIONS.keys(), "a package without long sentences is no exception"


HELP = [(command, leaf) for command, leaf in leaves(parser())]


@pytest.mark.parametrize(("command", "leaf"), HELP, ids=[command for command, _ in HELP])
def test_help_is_short(command: str, leaf: argparse.ArgumentParser) -> None:
    texts = [leaf.description, *(action.help or "" for action in actions(leaf))]
    assert [each for text in texts for each in long_sentences(text)] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"Do it.\n\nArgs:\n    a: {'word ' * 20}\n    b: {'word ' * 20}\n", 0),
        (f"Do it.\n\nArgs:\n    a: {'word ' * 20}\n        {'word ' * 20}\n", 1),
        ("word " * (MAX_WORDS + 1), 1),
    ],
)
def test_entries_are_read_by_themselves(text: str, count: int) -> None:
    assert len(long_in(text)) == count
