"""docs/reference/cli.md says what the parsers say, and has every key of every JSON document."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ortkit.cli.main import parser
from ortkit.cli.tree import actions, subcommands

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def leaves(
    top: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = subcommands(top)
    if not below or getattr(top, "beside", {}):
        yield " ".join(path), top
    for name, sub in below.items():
        yield from leaves(sub, (*path, name))


def rows_of_parsers() -> list[str]:
    rows = []
    for command, leaf in leaves(parser()):
        rows.append(f"| **{command}** | | {leaf.description} |")
        for action in actions(leaf):
            if not isinstance(action, argparse._HelpAction):
                what = (action.help or "").replace("|", "\\|")
                rows.append(f"| {command} | `{spelling(action)}` | {what} |")
    return rows


def spelling(action: argparse.Action) -> str:
    metavar = str(action.metavar or "\\|".join(map(str, action.choices or ())))
    if not action.option_strings:
        return metavar
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {metavar}".strip()


def test_the_table_is_what_the_parsers_say() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| command | argument | meaning |")
    table = lines[start + 2 : lines.index("", start)]
    assert table == rows_of_parsers(), "write this:\n" + "\n".join(rows_of_parsers())


def test_every_command_says_what_it_does() -> None:
    for command, leaf in leaves(parser()):
        assert leaf.description, command
        for action in actions(leaf):
            assert action.help, f"{command} {action.dest} has no help"
