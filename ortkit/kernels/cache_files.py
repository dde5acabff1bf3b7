"""Files of the cache: exactly what was written for a key, or treated as absent.

Each file begins with the SHA-256 of its key and of everything after it, so that neither a changed,
cut or extended file is read, nor one that was renamed or copied to the place of another. The
digest is the first field of the JSON object that a file is or begins with. It guards against
accidents and mix-ups; against other users guards that they cannot write to the folder
(`ortkit.private_folder`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ortkit.private_folder import (
    NotPrivateError,
    make_private_folder,
    private_folder_refusal,
    read_private,
)
from ortkit.temporary import write_whole

T = TypeVar("T")

#: What reading JSON raises where a file holds something else than was written: also lists that
#: are too deep, and numbers beyond all bounds.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
#: The folders of the cache that files are written to, below `env.cache_dir()`.
FOLDERS = ("", "kernels", "libraries", "timings", "provider", "provider/plans", "verdicts")
_HEAD, _REST = b'{"sha256": "', b'", '
_HEAD_BYTES = len(_HEAD) + 2 * hashlib.sha256().digest_size + len(_REST)
_log = logging.getLogger("ortkit.cache")
_said: set[str] = set()


def read_cached(path: Path, key: str, read: Callable[[Any], T]) -> T | None:
    """Return what `read` makes of a file of JSON; None if it is absent, or is not as written.

    Args:
        path: The file.
        key: What it was written for; see `write_cached`.
        read: Called with the JSON object; may raise what `DAMAGED` has, or OSError.
    """
    content = read_sealed(path, key)
    if content is None:
        return None
    try:
        return read(json.loads(content))
    except (OSError, *DAMAGED):
        return None


def read_sealed(path: Path, key: str) -> bytes | None:
    """Return what was written for a key; None if it is absent, or is not as written.

    A file or folder that others can write to is not read, which is said once.
    """
    try:
        whole = read_private(path)
    except NotPrivateError as error:
        say_unused(error.reason, private_folder_refusal(path.parent) or str(path.parent))
        return None
    except OSError:
        return None
    content = b"{" + whole[_HEAD_BYTES:]
    return content if whole == _sealed(key, content) else None


def write_cached(path: Path, key: str, content: str | bytes, *, is_durable: bool = False) -> None:
    """Write a file with its digest under another name and rename it; its folder is made.

    Of processes that write the same file the last one wins.

    Args:
        path: The file.
        key: All that the content depends on; the file is only read for an equal one.
        content: Begins as a JSON object of one or more fields does.
        is_durable: Whether the file is on the disk when the call returns.

    Raises:
        NotPrivateError: Others can write to the folder.
        OSError: The folder cannot be written, or the disk is full.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    write_private(path, _sealed(key, data), is_durable=is_durable)


def keep_cached(path: Path, key: str, content: str | bytes) -> None:
    """Do what `write_cached` does, if that is possible: what is not kept is made again.

    That others can write to the folder is said once.
    """
    with suppress(OSError):
        try:
            write_cached(path, key, content)
        except NotPrivateError as error:
            say_unused(error.reason)


def trim_folder(folder: Path, most: int) -> None:
    """Remove the oldest files of a folder of the cache until `most` are left, where possible."""
    with suppress(OSError):
        files = [path for path in folder.iterdir() if not path.name.startswith(".")]
        if len(files) > most:
            for path in sorted(files, key=lambda one: one.stat().st_mtime)[: len(files) - most]:
                path.unlink(missing_ok=True)


def trim_oldest(
    entries: Iterable[Sequence[Path]],
    most_bytes: int,
    most: int | None = None,
    kept: Path | None = None,
) -> None:
    """Remove what was used longest ago beyond some bytes or a number of entries, where possible.

    Args:
        entries: Of each its files, some of which may not be there. The first one's time of change
            says when it was used.
        most_bytes: Of all that stay.
        most: How many stay; None for any number.
        kept: A file that stays in any case, with those of its entry.
    """
    found: list[tuple[float, int, Sequence[Path]]] = []
    for files in entries:
        with suppress(OSError):  # another process has removed it
            sizes = [file.stat().st_size for file in files if file.exists()]
            found.append((files[0].stat().st_mtime, sum(sizes), files))
    for number, (_, size, files) in enumerate(sorted(found, key=lambda one: -one[0])):
        most_bytes -= size
        is_beyond = most_bytes < 0 or (most is not None and number >= most)
        for file in files if is_beyond and kept not in files else ():
            with suppress(OSError):  # another user's, perhaps
                file.unlink(missing_ok=True)


def write_private(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Write a file as it is, for the current user alone; otherwise like `write_cached`.

    What a killed process left half written is removed by the next one; see temporary.py.
    """
    make_private_folder(path.parent)
    write_whole(path, content, mode=0o600, is_durable=is_durable)


def unused_line(reason: str) -> str:
    """Return the line that says why a cache is not used, and what to do.

    Args:
        reason: From `private_folder_refusal`.
    """
    return f"the cache is not used: {reason}; ORTKIT_CACHE names another folder"


def say_unused(reason: str, once: str = "") -> None:
    """Log `unused_line` of a reason, once in a process.

    Without handlers of the application's, Python's logging writes the line to stderr.

    Args:
        reason: From `private_folder_refusal`.
        once: What is said once; by default the reason.
    """
    if not {reason, once or reason} & _said:
        _said.update((reason, once or reason))
        _log.warning("ortkit: %s", unused_line(reason))


def is_said(line: str) -> bool:
    """Return whether a line was logged by `say_unused`."""
    return any(unused_line(reason) == line for reason in _said)


def _sealed(key: str, content: bytes) -> bytes:
    """Return a JSON object, and what comes after it, with the digest as its first field."""
    digest = hashlib.sha256(f"{len(key.encode())} {key}\n".encode())
    digest.update(content)
    return _HEAD + digest.hexdigest().encode() + _REST + content[1:]
