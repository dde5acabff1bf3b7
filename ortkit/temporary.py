"""Temporary files and folders that no killed process leaves behind for ever.

Each has a name that only this module gives, and is locked (flock) by the process that made it.
The lock ends with the process, however that ends. What has such a name and no lock is left over,
and the next process that makes a temporary in the same folder removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ortkit.errors import UserError

_NAME = re.compile(r"\.?ortkit-[a-z]+-[0-9a-f]{16}\.tmp")
#: A sweep of another process can take a new entry before it is locked, which is rare.
_TRIES = 100
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_swept: set[str] = set()


class TemporaryFolder:
    """A folder that is removed by `cleanup`, with the last reference, or by a later process.

    As a context manager it gives its path and is removed at the end of the block.
    """

    def __init__(self, purpose: str, inside: Path | None = None) -> None:
        """Make it.

        Args:
            purpose: Part of its name, lower-case letters.
            inside: The folder to make it in, under a hidden name. None: that of `TMPDIR`.

        Raises:
            UserError: It cannot be made.
        """
        parent = Path(tempfile.gettempdir()) if inside is None else inside
        try:
            self.path, descriptor = _claimed(parent, purpose, inside is not None, _new_folder)
        except OSError as error:
            raise UserError(
                f"no temporary folder can be made: {error.strerror}",
                where=str(parent),
                fix="free some space, or set TMPDIR"
                if inside is None
                else "choose another output",
            ) from error
        self._finalizer = weakref.finalize(
            self, _remove_folder, self.path, descriptor, os.getpid()
        )

    def cleanup(self) -> None:
        """Remove the folder and what is in it; what cannot be removed is left."""
        self._finalizer()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cleanup()


class TemporaryFile:
    """A file beside the one that it becomes, or holds the former content of.

    As a context manager it is removed, unless it was renamed, and closed at the end of the block.

    Attributes:
        path: Path of the file.
        descriptor: Open for reading and writing; the lock lasts as long as it is open.
    """

    def __init__(self, folder: Path) -> None:
        """Make an empty file in `folder`; others may read it as the umask has it.

        Raises:
            OSError: It cannot be made.
        """
        self.path, self.descriptor = _claimed(folder, "draft", True, _new_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                self.path.unlink()
        finally:
            os.close(self.descriptor)


def write_whole(path: Path, content: bytes, *, mode: int, is_durable: bool = False) -> None:
    """Write a file that appears whole or not at all, in the place of one that is there.

    Args:
        path: In a folder that exists.
        content: What it holds.
        mode: Its permissions, also before it has its name.
        is_durable: Whether it is on the disk before it has its name.

    Raises:
        OSError: It cannot be written.
    """
    with TemporaryFile(path.parent) as draft:
        os.fchmod(draft.descriptor, mode)
        with os.fdopen(os.dup(draft.descriptor), "wb") as file:
            file.write(content)
        if is_durable:
            os.fsync(draft.descriptor)
        draft.path.replace(path)


def tools_in(folder: Path) -> dict[str, str]:
    """Return environment variables for a tool whose temporary files are to lie in `folder`.

    A tool that is killed leaves them, and nobody else knows whose they are.
    """
    return {**os.environ, "TMPDIR": str(folder)}


def unused_name(folder: Path) -> Path:
    """Return the name of a temporary file that does not exist."""
    return _new_name(folder, "draft", is_hidden=True)


def sweep_once(folder: Path) -> None:
    """Do what `sweep` does, once in a process."""
    known = os.path.abspath(folder)  # noqa: PTH100  (a link to it may lead elsewhere later)
    if known not in _swept:
        _swept.add(known)
        sweep(folder)


def sweep(folder: Path) -> None:
    """Remove the temporaries of ended processes of this user in `folder`; never raises.

    Links are not followed, and what another process holds is left.
    """
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if _NAME.fullmatch(entry.name)]
    except OSError:
        return
    for path in found:
        with contextlib.suppress(OSError):
            _remove_if_left_over(Path(path))


def open_entry(path: Path) -> int:
    """Open what `path` names, for locking; a link is an error.

    Raises:
        OSError: It cannot be opened.
    """
    try:  # some network file systems lock only what is open for writing
        return os.open(path, os.O_RDWR | _OPEN_FLAGS)
    except OSError:
        return os.open(path, os.O_RDONLY | _OPEN_FLAGS)


def try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Lock an open file without waiting.

    Returns:
        Whether it is locked now; None if the file system has no locks.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_named(descriptor: int, path: Path) -> bool:
    """Say whether `path` itself, not what it links to, is the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _claimed(
    folder: Path, purpose: str, is_hidden: bool, make: Callable[[Path], int]
) -> tuple[Path, int]:
    """Make an entry under a new name and lock it; return its path and descriptor."""
    sweep_once(folder)
    for _ in range(_TRIES):
        path = _new_name(folder, purpose, is_hidden=is_hidden)
        try:
            descriptor = make(path)
        except FileNotFoundError:
            if not folder.is_dir():
                raise
            continue
        if try_lock(descriptor) is not False and is_named(descriptor, path):
            return path, descriptor
        os.close(descriptor)  # the sweep that has it removes it
    raise OSError(0, "other processes remove it at once")


def _new_name(folder: Path, purpose: str, *, is_hidden: bool) -> Path:
    dot = "." if is_hidden else ""
    return folder / f"{dot}ortkit-{purpose}-{secrets.token_hex(8)}.tmp"


def _new_folder(path: Path) -> int:
    path.mkdir(0o700)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _new_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _remove_folder(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # a copy of the process has a copy of the object
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _remove_if_left_over(path: Path) -> None:
    found = path.lstat()
    is_folder = stat.S_ISDIR(found.st_mode)
    if found.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(found.st_mode)):
        return
    descriptor = open_entry(path)
    try:
        if not try_lock(descriptor) or not is_named(descriptor, path):
            return
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    finally:
        os.close(descriptor)
