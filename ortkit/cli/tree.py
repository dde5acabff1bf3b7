"""The parser as a tree: for near-name suggestions, shell completion and the documentation test."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

_BAD_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)'")


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors suggest the near name."""

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
    """Return the subcommands of a parser by name, none for a leaf."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, empty if nothing known is near."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _all_choices(parser: argparse.ArgumentParser) -> list[str]:
    own = [str(choice) for action in actions(parser) for choice in action.choices or ()]
    return [*own, *subcommands(parser)]
