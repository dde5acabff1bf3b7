"""The parser as a tree: for near-name suggestions, shell completion and the documentation test."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

_CHOICES = re.compile(r" \(choose from .*\)$")
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

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Refuse an empty name: as a path it would be the current folder."""
        if not arg_string and (action.type is Path or not action.option_strings):
            raise argparse.ArgumentError(action, "is empty; name a file")
        return super()._get_value(action, arg_string)

    def add_renamed(self, old: str, new: str) -> None:
        """Let a flag be given by its old name too, which no help shows, with a note on stderr."""
        action = self._option_string_actions[new]
        self.add_argument(old, action=_Renamed, new=action, dest=action.dest,
            default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # fmt: skip

    def format_help(self) -> str:
        """Return the page of a command."""
        from ortkit.cli.help_page import command_page

        return command_page(self)

    def error(self, message: str) -> NoReturn:
        """Print the message with a suggestion and where help is on one line, and exit with 2."""
        if (bad := _BAD_CHOICE.search(message)) is not None:
            near = suggestion(bad["given"], _all_choices(self))
            message = f"{_CHOICES.sub('', message)}{near}" if near else message
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")

    def refuse(self, unknown: Iterable[str]) -> NoReturn:
        """Exit with 2 because of arguments that nothing here understands."""
        texts = list(unknown)
        flags = [flag for action in actions(self) for flag in action.option_strings]
        hints = (suggestion(text.partition("=")[0], flags) for text in texts if text[:1] == "-")
        self.error(f"unrecognized arguments: {' '.join(texts)}{next(filter(None, hints), '')}")


class _Renamed(argparse.Action):
    """A flag by its old name: says the new one on stderr, and does what that does."""

    def __init__(self, option_strings: list[str], dest: str, *, new: Any, **options: Any) -> None:
        super().__init__(option_strings, dest, type=new.type, metavar=new.metavar, **options)
        self.new = new

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: Any = None
    ) -> None:
        name = self.new.option_strings[-1]
        sys.stderr.write(f"ortkit: {option_string} is called {name} now\n")
        self.new(parser, namespace, values, option_string)


def actions(parser: argparse.ArgumentParser) -> tuple[argparse.Action, ...]:
    """Return what a parser takes, in order, without its subcommands and what help leaves out."""
    # argparse has no public way to list them.
    return tuple(
        action
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction) and action.help != argparse.SUPPRESS
    )


def subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the subcommands of a parser by name, those beside its arguments too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return dict(parser.beside) if isinstance(parser, Parser) else {}


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of a command that run something: itself, or its subcommands."""
    below = subcommands(parser)
    if not below or getattr(parser, "beside", {}):
        yield parser
    for sub in below.values():
        yield from leaves(sub)


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, empty if nothing known is near."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _all_choices(parser: argparse.ArgumentParser) -> list[str]:
    own = [str(choice) for action in actions(parser) for choice in action.choices or ()]
    return [*own, *subcommands(parser)]
