"""The parser as a tree: for near-name suggestions, shell completion and the documentation test."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

_BAD_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)'")


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors suggest the near name.

    Attributes:
        beside: Parsers of subcommands that stand beside an argument of any name: the first word
            decides.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what `argparse.ArgumentParser` takes."""
        super().__init__(*arguments, **options)
        self.beside: dict[str, Parser] = {}

    def add_beside(self, name: str, description: str) -> Parser:
        """Add a subcommand beside the arguments, and return its parser."""
        made = Parser(prog=f"{self.prog} {name}", description=description, allow_abbrev=False)
        made.set_defaults(parser=made)
        self.beside[name] = made
        return made

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; the first word may be a subcommand that stands beside the arguments."""
        words = sys.argv[1:] if args is None else list(args)
        if words and words[0] in self.beside:
            return self.beside[words[0]].parse_known_args(words[1:], namespace)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Print usage and the message with a suggestion, and exit with 2."""
        if (bad := _BAD_CHOICE.search(message)) is not None:
            message += suggestion(bad["given"], _all_choices(self))
        super().error(message)

    def refuse(self, unknown: Iterable[str]) -> NoReturn:
        """Exit with 2 because of arguments that nothing here understands."""
        texts = list(unknown)
        flags = [flag for action in actions(self) for flag in action.option_strings]
        hints = (suggestion(text.partition("=")[0], flags) for text in texts if text[:1] == "-")
        self.error(f"unrecognized arguments: {' '.join(texts)}{next(filter(None, hints), '')}")


def actions(parser: argparse.ArgumentParser) -> tuple[argparse.Action, ...]:
    """Return what a parser takes, in order, without its subcommands."""
    # argparse has no public way to list them.
    return tuple(
        action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)
    )


def subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the subcommands of a parser by name, those beside its arguments too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return dict(parser.beside) if isinstance(parser, Parser) else {}


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, empty if nothing known is near."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _all_choices(parser: argparse.ArgumentParser) -> list[str]:
    own = [str(choice) for action in actions(parser) for choice in action.choices or ()]
    return [*own, *subcommands(parser)]
