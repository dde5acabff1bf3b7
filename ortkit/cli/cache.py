"""`ortkit cache list|clear`: the kernels that are kept on disk."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from ortkit.cli import show

if TYPE_CHECKING:
    from ortkit.kernels.cache import Entry, KernelCache

SCHEMA = "ortkit.cache/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list` and `clear`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (("list", "list the kernels, last used first"), ("clear", "remove all")):
        sub = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(parser=sub)
        sub.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """List the cache, or empty it."""
    from ortkit.kernels.cache import default_cache

    cache = default_cache()
    entries = cache.entries()
    removed, freed = cache.clear() if arguments.action == "clear" else (0, 0)
    if arguments.json:
        show.document(_document(cache, () if arguments.action == "clear" else entries, removed))
    elif arguments.action == "clear":
        show.line(f"removed   {removed} files, {show.bytes_text(freed)}, from {cache.folder}")
    else:
        _show(cache, entries)
    return 0


def _document(cache: KernelCache, entries: tuple[Entry, ...], removed: int) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "folder": str(cache.folder),
        "limit_bytes": cache.limit,
        "bytes": sum(one.size for one in entries),
        "kernels": [
            {
                "op": one.op,
                "backend": one.backend,
                "level": one.level,
                "bytes": one.size,
                "used": _when(one.used),
            }
            for one in entries
        ],
        "removed": removed,
    }


def _show(cache: KernelCache, entries: tuple[Entry, ...]) -> None:
    rows = [(one.op, one.backend, one.level, one.size, _when(one.used)) for one in entries]
    if rows:
        show.table("", ("kernel", "backend", "CPU", "bytes", "last used"), rows)
    size, limit = show.bytes_text(sum(one.size for one in entries)), show.bytes_text(cache.limit)
    show.line(f"{len(entries)} kernels, {size} of at most {limit}, in {cache.folder}")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))
