"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import UserError
from ortkit.graph.data_file import write_at

_NAME_CHARS = 180  # leaves room for what is added, within the 255 of common file systems
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Draft:
    """A file to be written."""

    path: Path
    size_bytes: int
    """How large it becomes; a shorter content is filled up with a hole."""
    write: Callable[[int], None]
    """Writes the content to a descriptor."""


def write_files(drafts: Sequence[Draft]) -> None:
    """Write all files beside their targets, then give them their names, in order.

    A file that exists keeps its permissions. If anything fails, or the user interrupts, the
    targets are as before and nothing else is left. (A kill between two renames can leave the
    first file new and the second old.)

    Raises:
        UserError: A folder or file cannot be written, or the disk is full.
    """
    for draft in drafts:
        check_target(draft.path)
    temporary: list[Path] = []
    current = drafts[0]
    try:
        for current in drafts:
            temporary.append(_beside(current.path))
            _write(current, temporary[-1])
        _rename(temporary, [draft.path for draft in drafts])
    except OSError as error:
        raise _explain(error, current) from error
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
    for folder in {draft.path.parent for draft in drafts}:
        _sync_folder(folder)


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write one file; text in UTF-8.

    Raises:
        UserError: See `write_files`.
    """
    data = memoryview(content.encode("utf-8") if isinstance(content, str) else content)
    write_files([Draft(path, data.nbytes, lambda to: write_at(to, data, 0))])


def check_target(path: Path) -> None:
    """Check that a file can be written, as far as that can be told before.

    Raises:
        UserError: Its folder is missing, or it is a folder or no regular file.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UserError(
                f"there is no folder {str(path.parent)!r}", where=str(path), fix="create it first"
            ) from None
        return
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot be written: {getattr(error, 'strerror', None) or error}",
            where=str(path),
            fix="choose another output",
        ) from error
    if stat.S_ISDIR(found.st_mode):
        raise UserError("is a folder", where=str(path), fix="name a file")
    if not stat.S_ISREG(found.st_mode):  # renaming a file over /dev/null would replace it
        raise UserError("is no regular file", where=str(path), fix="name a file")


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:_NAME_CHARS]}.{secrets.token_hex(4)}.tmp")


def _write(draft: Draft, temporary: Path) -> None:
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(draft.path.stat().st_mode))
        draft.write(descriptor)
        os.ftruncate(descriptor, draft.size_bytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename(sources: Sequence[Path], targets: Sequence[Path]) -> None:
    """Rename all, or put back what was there."""
    kept: list[tuple[Path, Path | None]] = []
    try:
        for source, target in zip(sources, targets, strict=True):
            kept.append((target, _keep(target) if len(targets) > 1 else None))
            source.replace(target)
    except BaseException:
        for target, copy in kept:
            if copy is not None:
                copy.replace(target)
                copy.unlink(missing_ok=True)  # two names of one file: replacing does nothing
        raise
    for _, copy in kept:
        if copy is not None:
            copy.unlink()


def _keep(target: Path) -> Path | None:
    """Give the file at `target` a second name; None if there is no file."""
    copy = _beside(target)
    try:
        os.link(target, copy, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError:  # a file system without hard links
        shutil.copy2(target, copy, follow_symlinks=False)
    return copy


def _sync_folder(folder: Path) -> None:
    # The rename is done; a file system that cannot sync a folder is no reason to fail.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _explain(error: OSError, draft: Draft) -> UserError:
    if error.errno in _NO_SPACE:
        free = shutil.disk_usage(draft.path.parent).free
        return UserError(
            f"no space left: {draft.size_bytes} bytes are needed and {free} are free",
            where=str(draft.path),
            fix="free some space or choose another output",
        )
    if error.errno == errno.EFBIG:
        return UserError(
            f"{draft.size_bytes} bytes are more than a file may have here",
            where=str(draft.path),
            fix="raise the limit (ulimit -f) or choose another output",
        )
    return UserError(
        f"cannot be written: {error.strerror or error}",
        where=str(draft.path),
        fix="check the permissions or choose another output",
    )
