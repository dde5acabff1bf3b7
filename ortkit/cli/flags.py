"""What flags of several subcommands have in common: reading them."""

from __future__ import annotations

from collections.abc import Sequence

from ortkit.errors import UserError


def sizes(given: Sequence[str]) -> dict[str, int]:
    """Read `--shape NAME=SIZE` flags; a later one wins.

    Raises:
        UserError: One of them has another form.
    """
    found = {}
    for text in given:
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal():
            raise UserError(f"cannot read {text!r}", where="--shape", fix="write NAME=SIZE")
        found[name] = int(size)
    return found
