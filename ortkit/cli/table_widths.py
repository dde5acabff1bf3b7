"""How wide the columns of a table are, so that all of it fits the terminal."""

from __future__ import annotations

from collections.abc import Sequence

#: Spaces between columns, and where that is too wide; all around there is one.
WIDE, NARROW = 3, 1
#: Words with letters are not cut shorter than this; numbers never.
_LEAST_WORD = 8
#: The same while columns are still far apart.
_LONG_WORD = 24
#: A cell of several words is not made longer lines of than these in all.
_LONGEST = 120


def fitted(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[int], int]:
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
    steps = ((whole, WIDE, _LONG_WORD), (words, WIDE, _LONG_WORD), (words, NARROW, _LEAST_WORD))
    edges = {WIDE: 3 * len(heads) - 1, NARROW: len(heads) + 1}
    for head, between, word in steps:
        widths = [max(pair) for pair in zip(cells, head, strict=True)]
        least = [
            max(own, *(_least(cell, word) for cell in column))
            for own, column in zip(head, columns, strict=True)
        ]
        if _shrink(widths, least, width - edges[between]):
            break
    return widths, between


def _shrink(widths: list[int], least: Sequence[int], room: int) -> bool:
    """Take from the widest columns until all fit; say whether they do."""
    while sum(widths) > room:
        wider = [now if now > floor else 0 for now, floor in zip(widths, least, strict=True)]
        if not any(wider):
            return False
        widths[wider.index(max(wider))] -= 1
    return True


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
    words = cell.split()
    return max((len(w) if _is_number(w) else min(len(w), most) for w in words), default=0)


def _is_number(word: str) -> bool:
    return not any(char.isalpha() and char != "e" for char in word)
