"""Everything that ortkit prints: tables, progress, JSON. Colour only on a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli.table_widths import WIDE, cut, fitted
from ortkit.text import with_short_keys

#: Off a terminal and without COLUMNS: rich would take 80 columns.
_PIPE_WIDTH = 160
#: Columns that the label of a line takes.
_LABEL = 10
_whole: ContextVar[bool] = ContextVar("whole", default=False)

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """Return a console; rich itself respects NO_COLOR and drops colour when piped."""
    from rich.console import Console

    class QuietPipe(Console):
        def on_broken_pipe(self) -> None:
            """Let the caller end quietly: rich would exit with 1."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return QuietPipe(stderr=stderr, width=width, highlight=False)


@contextmanager
def shown_as_asked(arguments: argparse.Namespace) -> Iterator[None]:
    """Print as `--quiet` and `--verbose` say."""
    token = _whole.set(getattr(arguments, "verbose", False))
    try:
        if getattr(arguments, "quiet", False) and not getattr(arguments, "json", False):
            with Path(os.devnull).open("w", encoding="utf-8") as none, redirect_stdout(none):
                yield
        else:
            yield
    finally:
        _whole.reset(token)


def document(content: Mapping[str, object]) -> None:
    """Print the one JSON document of a command that was given `--json`."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def raw(text: str) -> None:
    """Print text as it is, for other programs to read."""
    sys.stdout.write(text)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; columns of numbers stand right, None is an empty cell.

    It is as wide as the terminal at most: long words lose their middle, but with `--verbose`.
    Nothing is printed without rows.
    """
    if not rows:
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = console()
    texts = _labelled([[_cell(cell) for cell in row] for row in rows])
    widths, between = fitted(columns, texts, out.width)
    if not _whole.get():
        texts = [[cut(cell, widths[i]) for i, cell in enumerate(row)] for row in texts]
    heading = Text(harmless(title)) if title else None
    made = Table(
        title=heading, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        padding=(0, 1 if between == WIDE else 0),
    )  # fmt: skip
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows if row[index] is not None]
        numeric = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        made.add_column(
            Text(harmless(column)), justify="right" if numeric else "left", overflow="fold",
            width=None if _whole.get() else widths[index],
        )  # fmt: skip
    for row in texts:
        # As text: `[batch, seq]` is no markup.
        made.add_row(*map(Text, row))
    out.print(made)


def line(text: str = "") -> None:
    """Print one line to stdout, also where a name in it holds line breaks."""
    sys.stdout.write(harmless(text) + "\n")


def labelled(label: str, text: str) -> None:
    """Print text behind a label, wrapped below itself where the terminal is not as wide."""
    import textwrap

    width = max(console().width, 4 * _LABEL)
    indent = " " * _LABEL
    wrapped = textwrap.wrap(
        harmless(text), width - 1, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    sys.stdout.write("\n".join(wrapped) + "\n")


def lines(text: str) -> None:
    """Print a text of several lines to stdout: documentation or code, no names of a model."""
    sys.stdout.write(harmless(text, keep="\n\t") + "\n")


def note(text: str) -> None:
    """Print one line to stderr, also where a name in it holds line breaks."""
    sys.stderr.write(harmless(text) + "\n")


def harmless(text: str, *, keep: str = "") -> str:
    """Return text with its control characters written out: a model's names command no terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


class Stages:
    """Progress of a command's stages; ignores it all."""

    def __call__(self, stage: str) -> None:
        """Say that a stage begins."""

    def count(self, done: int, total: int) -> None:
        """Say how much of the stage is done, and of how much."""


@contextmanager
def progress(*, quiet: bool) -> Iterator[Stages]:
    """Show the running stage, and a bar where it can be counted, on stderr on a terminal only."""
    if quiet or not sys.stderr.isatty():
        yield Stages()
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), text, BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as shown:
        task = shown.add_task("start", total=None)

        class Shown(Stages):
            def __call__(self, stage: str) -> None:
                shown.update(task, description=harmless(stage), total=None, completed=0)

            def count(self, done: int, total: int) -> None:
                shown.update(task, completed=done, total=total)

        yield Shown()


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print `name  value` lines with the values below each other."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        line(f"{name:<{width}}  {value}")


def count_text(count: float) -> str:
    """Return a large count for people: `22.4 G`."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000 or unit == "T":
            return f"{count:.0f}" if unit == "" else f"{count:.2f} {unit}"
        count /= 1000
    return ""


def bytes_text(count: float) -> str:
    """Return a size for people: `346.0 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def _labelled(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return a table's cells with short names of generated operators."""
    labels = iter(with_short_keys(cell for row in texts for cell in row))
    return [[next(labels) for _ in row] for row in texts]


def _cell(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return harmless(str(cell))
    if isinstance(cell, int):
        return f"{cell:,}"
    digits = 0 if abs(cell) >= 1000 else 1 if abs(cell) >= 100 else 3
    return f"{cell:,.{digits}f}"
