"""Files of the cache: written whole, and as good as absent where they are damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ortkit.temporary import TemporaryFile

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

    Of processes that write the same file the last one wins. What is half written when a process
    is killed is removed by the next one that writes into the folder; see temporary.py.

    Raises:
        OSError: The folder cannot be written, or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(path.parent) as draft:
        with os.fdopen(os.dup(draft.descriptor), "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        draft.path.replace(path)
