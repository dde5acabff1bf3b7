"""Everything that ortkit prints: tables, progress, JSON. Colour only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

#: Longer texts in a table lose their middle; `--json` has all of them.
_LONGEST = 120

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
    # Off a terminal rich would wrap at 80 columns and cut paths in two.
    width = None if stream.isatty() else 160
    return QuietPipe(stderr=stderr, width=width, highlight=False)


def document(content: Mapping[str, object]) -> None:
    """Print the one JSON document of a command that was given `--json`."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def raw(text: str) -> None:
    """Print text as it is, for other programs to read."""
    sys.stdout.write(text)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; columns of numbers stand right, None is an empty cell."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heading = Text(harmless(title)) if title else None
    made = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows if row[index] is not None]
        numeric = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        made.add_column(
            Text(harmless(column)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        # As text: `[batch, seq]` is no markup.
        made.add_row(*(Text(_cell(cell)) for cell in row))
    console().print(made)


def line(text: str = "") -> None:
    """Print one line to stdout, also where a name in it holds line breaks."""
    sys.stdout.write(harmless(text) + "\n")


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
    """What is told of a command's stages; ignores it all."""

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


def _cell(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        text = harmless(str(cell))
        half = _LONGEST // 2
        return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.3f}"
