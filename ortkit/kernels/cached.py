"""Files of the cache: written whole, and as good as absent where they are damaged."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: What reading JSON raises where a file holds something else than was written: also lists that
#: are too deep, and numbers beyond all bounds.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def read_cached(path: Path, read: Callable[[Any], T]) -> T | None:
    """Return what `read` makes of a file of JSON; None if it is not there, or is damaged."""
    try:
        return read(json.loads(path.read_text("utf-8")))
    except (OSError, *DAMAGED):
        return None


def write_cached(path: Path, content: str | bytes) -> None:
    """Write a file under another name and rename it; its folder is made.

    Of processes that write the same file the last one wins. A draft is called like the file, with
    a dot and a number before it, and goes if it cannot be written.

    Raises:
        OSError: The folder cannot be written, or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        # Not of `tempfile`: others may read what a cache holds, as the umask has it.
        with draft.open("xb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
