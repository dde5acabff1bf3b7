"""`ortkit cache list|clear`: what is kept on disk, of compiled kernels and of what was fetched."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.kernels.build.cache import Entry, KernelCache

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
    from ortkit.kernels.build.cache import default_cache

    cache = default_cache()
    removed = freed = 0
    if arguments.action == "clear":
        removed, freed = _clear(cache)
    entries = cache.entries()
    others = _others(cache, entries)
    if arguments.json:
        show.document(_document(cache, entries, others, removed))
    elif arguments.action == "clear":
        gone = f"{plural(removed, 'file')}, {show.bytes_text(freed)}"
        show.line(f"removed   {gone}, from {cache.folder.parent}")
    else:
        _show(cache, entries, others)
    return 0


def _clear(cache: KernelCache) -> tuple[int, int]:
    """Remove kernels, verdicts, libraries, plans and what was fetched.

    Returns:
        How many files, and how many bytes.
    """
    from ortkit.errors import UserError
    from ortkit.kernels.cache_files import FOLDERS
    from ortkit.temporary import sweep

    removed, freed = cache.clear()
    for name in FOLDERS:
        sweep(cache.folder.parent / name)
    others = _others(cache, ())
    fetched = _fetched(cache)
    files = [*others, *(path for folder in fetched for path in _files(folder))]
    sizes = [_size(path) for path in files]
    for path in (*others, *fetched):
        try:
            if path in fetched:
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot be removed: {error.strerror}", where=str(path)) from error
    return removed + len(files), freed + sum(sizes)


def _fetched(cache: KernelCache) -> tuple[Path, ...]:
    """Return the folders of ONNX Runtimes that were fetched on request."""
    from ortkit.upgrades.find import kept

    return () if cache.refusal() else kept()


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _others(cache: KernelCache, entries: Sequence[Entry]) -> list[Path]:
    """Return what else `clear` removes than kernels that can be used.

    These are kernels of other versions, what is known of kernels, and the provider's libraries
    and plans.
    """
    from ortkit.kernels import objects
    from ortkit.provider.own.building import kept_files

    if cache.refusal():
        return []
    usable, root = {entry.path for entry in entries}, cache.folder.parent
    found = [path for path in cache.folder.glob("*.kernel") if path not in usable]
    for name in (objects.FOLDER, objects.VERDICTS):
        found += (root / name).glob("*.json")
    found += kept_files(root)
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # another process has removed it
        return 0


def _document(
    cache: KernelCache, entries: Sequence[Entry], others: Sequence[Path], removed: int
) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "folder": str(cache.folder),
        "limit_bytes": cache.limit,
        "bytes": sum(entry.size for entry in entries),
        "kernels": [
            {
                "op": entry.op,
                "backend": entry.backend,
                "level": entry.level,
                "bytes": entry.size,
                "used": _when(entry.used),
            }
            for entry in entries
        ],
        "others": {"files": len(others), "bytes": sum(map(_size, others))},
        "onnxruntimes": [
            {"folder": str(folder), "bytes": sum(map(_size, _files(folder)))}
            for folder in _fetched(cache)
        ],
        "refused": cache.refusal(),
        "removed": removed,
    }


def _show(cache: KernelCache, entries: Sequence[Entry], others: Sequence[Path]) -> None:
    rows = [
        (entry.op, entry.backend, entry.level, entry.size, _when(entry.used)) for entry in entries
    ]
    if rows:
        show.table("", ("kernel", "backend", "CPU", "bytes", "last used"), rows)
    size, limit = (
        show.bytes_text(sum(entry.size for entry in entries)),
        show.bytes_text(cache.limit),
    )
    show.line(f"{plural(len(entries), 'kernel')}, {size} of at most {limit}, in {cache.folder}")
    if others:
        size = show.bytes_text(sum(map(_size, others)))
        show.line(
            f"{plural(len(others), 'other file')}, {size}: libraries and plans of the provider, "
            "kernels of other versions of ortkit; `ortkit cache clear` removes them too"
        )
    for folder in _fetched(cache):
        size = show.bytes_text(sum(map(_size, _files(folder))))
        show.line(f"ONNX Runtime, fetched on request, {size}, in {folder}")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))
