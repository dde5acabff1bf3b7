"""`--option KEY=VALUE`, as the commands about execution providers take it."""

from __future__ import annotations

from collections.abc import Sequence

from ortkit.errors import UserError


def provider_options(given: Sequence[str]) -> dict[str, str]:
    """Read `--option KEY=VALUE` flags; a later one wins.

    Raises:
        UserError: One of them has another form.
    """
    found = {}
    for text in given:
        key, is_present, value = text.partition("=")
        if not key or not is_present:
            raise UserError(f"cannot read {text!r}", where="--option", fix="write KEY=VALUE")
        found[key] = value
    return found
