"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from ortkit.errors import UserError
from ortkit.graph.io.data_file import write_at
from ortkit.temporary import TemporaryFile, is_named, open_entry, try_lock, unused_name

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Draft:
    """A file to be written."""

    path: Path
    size_bytes: int
    """How large it becomes; a shorter content is filled up with a hole."""
    write: Callable[[int], None]
    """Writes the content to a descriptor."""

    @staticmethod
    def of(path: Path, content: str | bytes | memoryview) -> Draft:
        """Return a file whose content is in memory; text becomes UTF-8."""
        data = memoryview(content.encode("utf-8") if isinstance(content, str) else content)
        return Draft(path, data.nbytes, lambda to: write_at(to, data, 0))


@dataclass
class Written:
    """A file that is on disk under a temporary name."""

    target: Path
    """The name that it gets; may be set until then."""
    path: Path
    descriptor: int
    """Open and locked, also once it has its name, until the file set is closed."""
    size_bytes: int


class FileSet:
    """Files that are written beside their targets and then get their names, in order.

    As a context manager it removes what has not got its name. A file that exists keeps its
    permissions. If anything fails, or the user interrupts, the targets are as before. A kill
    leaves the first files new and the later ones old; their temporaries are removed later
    (see temporary.py).
    """

    def __init__(self, *, is_durable: bool = True) -> None:
        """Begin with no files.

        Args:
            is_durable: Whether they must outlast a power failure; False for those of a process.
        """
        self._is_durable = is_durable
        self._stack = ExitStack()
        self._written: list[Written] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the temporaries and release the locks."""
        self._stack.close()

    def write(self, draft: Draft, *, mode_of: Path | None = None) -> Written:
        """Write a file beside its target, to disk.

        Args:
            draft: The file.
            mode_of: A file that has the permissions; None: what is at the target now.

        Raises:
            UserError: The folder or file cannot be written, or the disk is full.
        """
        try:
            file = self._stack.enter_context(TemporaryFile(draft.path.parent))
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.descriptor, stat.S_IMODE((mode_of or draft.path).stat().st_mode))
            draft.write(file.descriptor)
            os.ftruncate(file.descriptor, draft.size_bytes)
            if self._is_durable:
                os.fsync(file.descriptor)
        except OSError as error:
            raise _explain(error, draft.path, draft.size_bytes) from error
        return self._added(Written(draft.path, file.path, file.descriptor, draft.size_bytes))

    def take(self, path: Path, target: Path) -> Written:
        """Add a file that somebody else wrote, on the file system of its target.

        Raises:
            UserError: It cannot be opened.
        """
        try:
            descriptor = open_entry(path)
            self._stack.callback(os.close, descriptor)
            try_lock(descriptor)
            os.fsync(descriptor)
        except OSError as error:
            raise _explain(error, path, 0) from error
        return self._added(Written(target, path, descriptor, path.stat().st_size))

    def keep(self, descriptor: int) -> None:
        """Close `descriptor` when the set is closed, which releases its lock."""
        self._stack.callback(os.close, descriptor)

    def discard(self, file: Written) -> None:
        """Leave a file out: its target has its content already."""
        self._written.remove(file)

    def put_in_place(self) -> None:
        """Give the files their names, or put back what was there.

        Raises:
            UserError: One of them cannot be renamed.
        """
        undo: list[Callable[[], object]] = []
        current = self._written[0]
        try:
            for current in self._written:
                if len(self._written) > 1:  # nothing can fail after a single one
                    undo.append(self._undo(current))
                current.path.replace(current.target)
        except BaseException as error:
            for put_back in reversed(undo):
                put_back()
            if isinstance(error, OSError):
                raise _explain(error, current.target, current.size_bytes) from error
            raise
        folders = {written.target.parent for written in self._written} if self._is_durable else ()
        for folder in folders:
            _sync_folder(folder)

    def _added(self, file: Written) -> Written:
        self._written.append(file)
        return file

    def _undo(self, file: Written) -> Callable[[], object]:
        """Return what puts back what is at the target of `file` now."""
        target = file.target
        if target.is_symlink():
            return partial(_relink, target, target.readlink())
        if not target.exists():
            return partial(_withdraw, file)
        former = self._second_name(target)
        return lambda: former.replace(target)

    def _second_name(self, target: Path) -> Path:
        """Give the file at `target` the name of a temporary too, until the set is closed."""
        with contextlib.suppress(OSError):  # a file that cannot be opened stays unlocked
            descriptor = open_entry(target)
            self._stack.callback(os.close, descriptor)
            try_lock(descriptor, shared=True)  # the second name is locked from its beginning
        former = unused_name(target.parent)
        self._stack.callback(former.unlink, missing_ok=True)
        try:
            os.link(target, former, follow_symlinks=False)
        except OSError:  # a file system without hard links
            shutil.copy2(target, former, follow_symlinks=False)
        return former


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write one file; text in UTF-8.

    Raises:
        UserError: See `FileSet`.
    """
    check_target(path)
    with FileSet() as files:
        files.write(Draft.of(path, content))
        files.put_in_place()


def check_target(path: Path) -> None:
    """Check that a file can be written, as far as that is known before.

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


def _withdraw(file: Written) -> None:
    if is_named(file.descriptor, file.target):
        file.target.unlink()


def _relink(link: Path, to: Path) -> None:
    link.unlink()
    link.symlink_to(to)


def _sync_folder(folder: Path) -> None:
    # The rename is done; a file system that cannot sync a folder is no reason to fail.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _explain(error: OSError, path: Path, size_bytes: int) -> UserError:
    if error.errno in _NO_SPACE:
        free = shutil.disk_usage(path.parent).free
        return UserError(
            f"no space left: {size_bytes} bytes are needed and {free} are free",
            where=str(path),
            fix="free some space or choose another output; for temporary files: set TMPDIR",
        )
    if error.errno == errno.EFBIG:
        return UserError(
            f"{size_bytes} bytes are more than a file may have here",
            where=str(path),
            fix="raise the limit (ulimit -f) or choose another output",
        )
    return UserError(
        f"cannot be written: {error.strerror or error}",
        where=str(path),
        fix="check the permissions or choose another output",
    )
