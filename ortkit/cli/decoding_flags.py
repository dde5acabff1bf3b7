"""Flags of `profile`, `memory` and `compare` for decoders."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.errors import UserError

if TYPE_CHECKING:
    from ortkit.cli.tree import Parser


def add_decoding(parser: argparse.ArgumentParser | Parser, *, has_sweep: bool = False) -> None:
    """Add `--decode` and `--prompt`, and `--sweep` where the command has none of its own."""
    add = parser.add_argument
    caches = "run a prompt, then one token, through a decoder's caches; implied by folders"
    add("--decode", action="store_true", help=caches)
    add("--prompt", type=int, metavar="N",
        help="tokens of a decoder's prompt (default: 128)")  # fmt: skip
    if not has_sweep:
        add("--sweep", action="append", default=[], metavar="past=A,B,...",
            help="run a decoder's token with this many in its caches")  # fmt: skip


def is_decoding(arguments: argparse.Namespace, models: Iterable[Path]) -> bool:
    """Say whether decoders are run."""
    return arguments.decode or any(path.is_dir() for path in models)


def refuse_without(arguments: argparse.Namespace, *flags: str) -> None:
    """Refuse flags that only decoders have.

    Raises:
        UserError: One of them is given.
    """
    for flag in flags:
        if getattr(arguments, flag) not in (None, []):
            raise UserError("is for decoders", where=f"--{flag}", fix="add --decode")


def refuse_with(arguments: argparse.Namespace, flags: Mapping[str, object]) -> None:
    """Refuse flags that decoders do not take.

    Args:
        arguments: What was given.
        flags: Each with its default.

    Raises:
        UserError: One of them is given.
    """
    for flag, default in flags.items():
        if getattr(arguments, flag.replace("-", "_")) != default:
            raise UserError("does not go with a decoder", where=f"--{flag}", fix="leave it out")
