"""Folders for what is made on the way to a library."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ortkit.errors import UserError


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Make a folder that is gone after the `with` block.

    Args:
        purpose: Part of its name, such as "build".

    Raises:
        UserError: None can be made.
    """
    try:
        folder = tempfile.TemporaryDirectory(
            prefix=f"ortkit-{purpose}-", ignore_cleanup_errors=True
        )
    except OSError as error:
        raise UserError(
            f"no temporary folder can be made: {error.strerror}",
            where=tempfile.gettempdir(),
            fix="free some space, or set TMPDIR",
        ) from error
    with folder as name:
        yield Path(name)
