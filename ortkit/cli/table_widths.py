"""How wide the columns of a table are, so that all of it fits the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

#: Spaces between columns, and where that is too wide; all around there is one.
WIDE, NARROW = 3, 1
#: Words with letters are not cut shorter than this; numbers never.
_LEAST_WORD = 8
#: The same while columns are still far apart.
_LONG_WORD = 24
#: A text of several words loses its middle where it is longer than this.
_LONGEST = 240
#: Lines of a cell that is still easy to read.
_TALL = 3
#: Between a number and its unit, and between a name and its count: no line breaks there.
_UNBROKEN = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=(?:B|[kMGT]B|ns|µs|ms|s|%)(?!\w))|(?<=\d%) (?=[a-z]+$)")
_COUNT = re.compile(rf"(?<=[a-z)]) (?=\d[\d.]*(?:{_UNBROKEN}\w+)?(?:,|;|$))")


class Fit(NamedTuple):
    """How a table stands in its width."""

    widths: list[int]
    """Width of each column."""
    between: int
    """Spaces between columns."""
    is_easy: bool
    """Whether it reads well: no word is cut short, and no cell is taller than three lines."""


def fitted(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Fit:
    """Return the width of each column and the spaces between them.

    Long words lose their middle and cells take several lines, those of the widest columns first;
    then heads take several lines, then columns stand closer and words get shorter.

    Args:
        heads: Of the columns.
        rows: Cells.
        width: Of the terminal.
    """
    columns = list(zip(*rows, strict=True))
    cells = [max(len(cell[:_LONGEST]) for cell in column) for column in columns]
    whole, words = list(map(len, heads)), list(map(_longest_word, heads))
    steps = (
        (whole, WIDE, _LONG_WORD),
        (words, WIDE, _LONG_WORD),
        (words, NARROW, _LONG_WORD),
        (words, NARROW, _LEAST_WORD),
    )
    edges = {WIDE: 3 * len(heads) - 1, NARROW: len(heads) + 1}
    for head, between, word in steps:
        widths = [max(pair) for pair in zip(cells, head, strict=True)]
        least = [
            max(own, *(_least(cell, word) for cell in column))
            for own, column in zip(head, columns, strict=True)
        ]
        room = width - edges[between]
        if _shrink(widths, least, room):
            _widen(widths, whole, room)
            break
    tallest = max(
        len(wrapped(cell, own)) for row in rows for cell, own in zip(row, widths, strict=True)
    )
    return Fit(widths, between, word == _LONG_WORD and tallest <= _TALL)


def wrapped(text: str, width: int, *, whole_words: bool = False) -> list[str]:
    """Return the lines of a text; a number stays with its unit, and a name with its count.

    Args:
        text: On one line.
        width: Of a line.
        whole_words: Let a word that is wider than a line stand out instead of breaking it.
    """
    bound = _UNIT.sub(_UNBROKEN, text)
    counted = _COUNT.sub(_UNBROKEN, bound)
    if max(map(len, counted.split(" "))) <= width:
        bound = counted
    lines = textwrap.wrap(bound, width, break_on_hyphens=False, break_long_words=not whole_words)
    return [line.replace(_UNBROKEN, " ") for line in lines] or [""]


def _shrink(widths: list[int], least: Sequence[int], room: int) -> bool:
    """Take from the widest columns until all fit; say whether they do."""
    while sum(widths) > room:
        wider = [now if now > floor else 0 for now, floor in zip(widths, least, strict=True)]
        if not any(wider):
            return False
        widths[wider.index(max(wider))] -= 1
    return True


def _widen(widths: list[int], heads: Sequence[int], room: int) -> None:
    """Give the heads that take several lines what room is left."""
    while sum(widths) < room:
        lacking = [head - now for head, now in zip(heads, widths, strict=True)]
        if max(lacking) <= 0:
            return
        widths[lacking.index(max(lacking))] += 1


def cut(text: str, width: int) -> str:
    """Take out the middle of words that are wider than a column, and of a very long text."""
    if len(text) <= width:
        return text
    return " ".join(_cut(word, width) for word in _cut(text, max(width, _LONGEST)).split(" "))


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _least(cell: str, most: int) -> int:
    """Return how narrow a cell may be: words with letters are cut to `most`."""
    words = _UNIT.sub(_UNBROKEN, cell).split(" ")
    return max((len(w) if _is_number(w) else min(len(w), most) for w in words), default=0)


def _is_number(word: str) -> bool:
    number = word.partition(_UNBROKEN)[0]
    return not any(char.isalpha() and char != "e" for char in number)
