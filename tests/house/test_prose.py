"""Prose is short: lines of at most 120 characters, sentences of at most 30 words.

Tables, code and headings are no prose. A code span counts as a word, a link as its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_CHARACTERS, MAX_WORDS = 120, 30
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("docs/**/*.md", "README*.md", "CONTRIBUTING.md", "SECURITY.md")
    for page in ROOT.glob(pattern)
)
#: Page -> how many long lines and long sentences it may have. The numbers only get smaller.
EXCEPTIONS: dict[str, tuple[int, int]] = {}
_MARK = re.compile(r"^(?:[-*]|\d+\.)\s+")
_END = re.compile(r"""(?<=[.!?])["*)]*\s+(?=[A-Z0-9"*(`\[])|(?<=。)""")


def lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of prose, and whether each begins a paragraph or a list's item.

    An empty line stands for what is no prose.
    """
    is_code, is_apart = False, True
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("```"):
            is_code = not is_code
        elif not (
            is_code
            or bare.startswith(("|", "#", "<", ":::", "!["))
            or (line.startswith("    ") and is_apart)
        ):
            yield line, is_apart or bool(_MARK.match(bare))
            is_apart = not bare
            continue
        yield "", True
        is_apart = True


def sentences(text: str) -> Iterator[str]:
    paragraph = ""
    for line, begins in [*lines(text), ("", True)]:
        if begins or not line:
            plain = re.sub(r"`[^`]*`", "X", paragraph)
            yield from _END.split(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain))
            paragraph = ""
        paragraph += f" {_MARK.sub('', line.strip())}"


def long_lines(text: str) -> list[str]:
    return [line for line, _ in lines(text) if len(line) > MAX_CHARACTERS]


def long_sentences(text: str) -> list[str]:
    return [each.strip() for each in sentences(text) if len(each.split()) > MAX_WORDS]


@pytest.mark.parametrize("page", PAGES)
def test_prose_is_short(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    wide, long = long_lines(text), long_sentences(text)
    allowed_wide, allowed_long = EXCEPTIONS.get(page, (0, 0))
    assert len(wide) <= allowed_wide, "\n".join(wide)
    assert len(long) <= allowed_long, "\n".join(long)


def test_exceptions_are_needed() -> None:
    """A page that got shorter than its exception lowers it."""
    found = {
        page: (len(long_lines(text)), len(long_sentences(text)))
        for page in EXCEPTIONS
        if (text := (ROOT / page).read_text("utf-8"))
    }
    assert all(max(counts) > 0 for counts in found.values()), found


WORDS = " ".join(["word"] * 16)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"{WORDS}. {WORDS.capitalize()}.", 0),
        (f"{WORDS}; {WORDS}.", 1),
        (f"{WORDS}\n{WORDS}.", 1),
        (f"{WORDS}\n\n{WORDS}.", 0),
        (f"- {WORDS}\n- {WORDS}", 0),
        (f"- {WORDS}\n  {WORDS}", 1),
        (f"```\n{WORDS} {WORDS}\n```", 0),
        (f"| {WORDS} {WORDS} |", 0),
        (f"See [{WORDS}](x.md) `{WORDS}`.", 0),
    ],
)
def test_long_sentences_are_found(text: str, count: int) -> None:
    assert len(long_sentences(text)) == count


def test_long_lines_are_found() -> None:
    wide = "x" * 121
    assert long_lines(f"{wide}\n\n| {wide} |\n\n    {wide}\n\n# {wide}") == [wide]
