"""Everything that ortkit prints: tables, progress, JSON. Colour only on a terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ortkit.cli.table_widths import WIDE, Fit, cut, fitted, wrapped
from ortkit.text import json_text, with_short_keys

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
    sys.stdout.write(json_text(content))


def raw(text: str) -> None:
    """Print text as it is, for other programs to read."""
    sys.stdout.write(text)


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    spare: Sequence[str] = (),
) -> None:
    """Print a table; columns of numbers stand right, None is an empty cell.

    It is as wide as the terminal at most: long words lose their middle, but with `--verbose`.
    Nothing is printed without rows, nor a column without values.

    Args:
        title: Above it.
        columns: Titles of columns.
        rows: Cells.
        spare: Columns that a narrow terminal goes without, the first one first.
    """
    if not rows:
        return
    out = console()
    empty = {name for name, *cells in zip(columns, *rows, strict=True) if _is_empty(cells)}
    made = _Columns.of(columns, rows, empty, out.width)
    left_out: list[str] = []
    for name in spare:
        if made.fit.is_easy or _whole.get():
            break
        if name in columns and name not in empty:
            left_out.append(name)
            made = _Columns.of(columns, rows, {*empty, *left_out}, out.width)
    _print_table(out, title, made)
    if left_out:
        names = ", ".join(name for name in columns if name in left_out)
        labelled("", f"not shown in {out.width} columns: {names}")


class _Columns(NamedTuple):
    """The columns of a table that are shown."""

    heads: list[str]
    is_numeric: list[bool]
    texts: list[list[str]]
    fit: Fit

    @staticmethod
    def of(
        columns: Sequence[str], rows: Sequence[Sequence[object]], hidden: set[str], width: int
    ) -> _Columns:
        """Choose columns, and fit them into a width."""
        kept = [index for index, name in enumerate(columns) if name not in hidden]
        heads = [harmless(columns[index]) for index in kept]
        texts = _labelled([[_cell(row[index]) for index in kept] for row in rows])
        numeric = [_is_numeric([row[index] for row in rows]) for index in kept]
        return _Columns(heads, numeric, texts, fitted(heads, texts, width))


def _is_empty(cells: Sequence[object]) -> bool:
    return all(cell is None or cell == "" for cell in cells)


def _is_numeric(cells: Sequence[object]) -> bool:
    values = [cell for cell in cells if cell is not None]
    return bool(values) and all(isinstance(cell, int | float) for cell in values)


def _print_table(out: Console, title: str, columns: _Columns) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    fit, whole = columns.fit, _whole.get()
    heading = Text(harmless(title)) if title else None
    made = Table(
        title=heading, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        padding=(0, 1 if fit.between == WIDE else 0),
    )  # fmt: skip
    for head, numeric, width in zip(columns.heads, columns.is_numeric, fit.widths, strict=True):
        made.add_column(
            Text(head), justify="right" if numeric else "left", overflow="fold",
            width=None if whole else width,
        )  # fmt: skip
    for row in columns.texts:
        if whole:
            # As text: `[batch, seq]` is no markup.
            made.add_row(*map(Text, row))
            continue
        cells = zip(row, fit.widths, strict=True)
        made.add_row(*(Text("\n".join(wrapped(cut(text, own), own))) for text, own in cells))
    out.print(made)


def line(text: str = "") -> None:
    """Print one line to stdout, also where a name in it holds line breaks."""
    sys.stdout.write(harmless(text) + "\n")


def labelled(label: str, text: str, *, at: int = _LABEL) -> None:
    """Print text after a label, wrapped below itself where the terminal is not as wide.

    Args:
        label: In front of the text.
        text: Of any length.
        at: Columns in front of the text.
    """
    room = max(console().width, 4 * _LABEL) - 1 - at
    first, *rest = wrapped(harmless(text), room, whole_words=True)
    below = "".join(f"{'':<{at}}{item}\n" for item in rest)
    sys.stdout.write(f"{label:<{at}}{first}\n{below}")


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
    """Return a table's cells with short names of generated operators, without their domain."""
    short = with_short_keys(cell for row in texts for cell in row)
    labels = (text.replace("ortkit.fused::", "") for text in short)
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
