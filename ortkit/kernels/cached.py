"""Files of the cache: exactly what was written for a key, or as good as absent.

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
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ortkit.private_folder import (
    NotPrivateError,
    make_private_folder,
    private_folder_refusal,
    read_private,
)

T = TypeVar("T")

#: What reading JSON raises where a file holds something else than was written: also lists that
#: are too deep, and numbers beyond all bounds.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
#: The folders of the cache that files are written to, below `env.cache_dir()`.
FOLDERS = ("", "kernels", "timings", "provider", "provider/plans")
#: Drafts of processes that were killed are removed after this.
LEFT_OVER_SECONDS = 3600.0
_HEAD, _REST = b'{"sha256": "', b'", '
_HEAD_BYTES = len(_HEAD) + 2 * hashlib.sha256().digest_size + len(_REST)
_DRAFT = re.compile(r"\.[0-9a-f]{8}-.+")
_log = logging.getLogger("ortkit.cache")
_said: set[str] = set()
_swept: set[Path] = set()


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


def write_private(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Write a file as it is, for the current user alone; otherwise like `write_cached`.

    A draft is called like the file, with a dot and a number before it. It goes if it cannot be
    written; what a killed process left is removed when another one writes to the folder.
    """
    make_private_folder(path.parent)
    if path.parent not in _swept:
        _swept.add(path.parent)
        remove_drafts(path.parent)
    draft = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def drafts_in(folder: Path, older_than: float = LEFT_OVER_SECONDS) -> Iterator[Path]:
    """Yield the drafts in a folder that nobody has written to for a number of seconds."""
    before = time.time() - older_than
    with suppress(OSError):
        for file in os.scandir(folder):
            if _DRAFT.fullmatch(file.name):
                with suppress(OSError):  # another process was faster
                    if file.stat(follow_symlinks=False).st_mtime <= before:
                        yield Path(file.path)


def remove_drafts(folder: Path, older_than: float = LEFT_OVER_SECONDS) -> int:
    """Remove what `drafts_in` yields, as far as that is possible; returns how many."""
    count = 0
    for draft in list(drafts_in(folder, older_than)):
        with suppress(OSError):
            draft.unlink()
            count += 1
    return count


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
