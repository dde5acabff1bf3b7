"""Text that several packages write."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 node`, `2,000 nodes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
