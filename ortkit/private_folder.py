"""Folders whose content ortkit believes: no other user can have written what is in them.

What is read from such a folder decides which native code runs. A folder qualifies if the current
user or root owns it and every folder above it, and if neither their groups nor all users can
write there. A folder above it may also be like `/tmp`: writable by all, with the sticky bit.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: Links that are followed on the way to a folder, as Linux has it.
_MAX_LINKS = 40
_ROOT_UID = 0
#: Without it the owner of a folder cannot be asked for: Windows.
_HAS_OWNERS = hasattr(os, "geteuid")


class NotPrivateError(PermissionError):
    """A folder or file that others can write to."""

    def __init__(self, reason: str, path: Path) -> None:
        """Say why it is not believed.

        Args:
            reason: From `private_folder_refusal`; also `strerror`.
            path: What was to be read or written.
        """
        super().__init__(errno.EPERM, reason, str(path))
        self.reason = reason


@dataclass(frozen=True)
class _Step:
    """A folder or link on the way from the root to a folder."""

    path: Path
    status: os.stat_result
    """Status of the link itself, if the step is one."""
    is_last: bool
    """Whether it is the folder that was asked for."""


def private_folder_refusal(path: Path) -> str:
    """Say why the content of a folder is not to be believed, and what to do; empty if it is.

    A folder that is not there yet is judged by those above it. Of a folder that is there only
    its user and root can change the answer.

    Args:
        path: A folder; links are followed, and their owners count as those of folders do.

    Returns:
        A line such as `/srv/cache can be written by all users (mode 0777): chmod go-w
        /srv/cache`.
    """
    if not _HAS_OWNERS:
        return ""
    try:
        for step in _steps(path):
            if reason := _refusal(step.path, step.status, may_be_shared=not step.is_last):
                return reason
    except OSError as error:
        return f"{error.filename or path} cannot be examined: {error.strerror}"
    return ""


def read_private(path: Path) -> bytes:
    """Return the content of a file that only the current user or root can have written.

    Raises:
        NotPrivateError: The file or its folder can be written by others.
        OSError: The file cannot be read, or is a link.
    """
    with open(path, "rb", opener=_open) as file:
        status = os.fstat(file.fileno())
        if reason := private_folder_refusal(path.parent) or _file_refusal(path, status):
            raise NotPrivateError(reason, path)
        return file.read()


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read; a pipe or a device is refused, not waited for.

    Raises:
        OSError: There is no such file, it cannot be read, or it is no regular file.
    """
    file = open(path, "rb", opener=_open_followed)  # noqa: SIM115  the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return file


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for the current user alone (0700).

    Raises:
        NotPrivateError: The folder can be written by others.
        OSError: The folder cannot be made.
    """
    _check(path)
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    _check(path)  # another user may have been faster


def _check(path: Path) -> None:
    if reason := private_folder_refusal(path):
        raise NotPrivateError(reason, path)


def _open(path: str, flags: int) -> int:
    """Open what is no link; a pipe in the place of a file does not make this wait."""
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags | extra)


def _open_followed(path: str, flags: int) -> int:
    """Open what a link may lead to; a pipe in the place of a file does not make this wait."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _file_refusal(path: Path, status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is no regular file"
    return _refusal(path, status, may_be_shared=False) if _HAS_OWNERS else ""


def _refusal(path: Path, status: os.stat_result, *, may_be_shared: bool) -> str:
    """Return what is wrong with a folder, file or link itself.

    Args:
        path: Where it is.
        status: Status of the link itself, if the step is one.
        may_be_shared: Whether all may write if the sticky bit keeps them from renaming.
    """
    user = os.geteuid()
    if status.st_uid not in (_ROOT_UID, user):
        return f"{path} belongs to another user (uid {status.st_uid}, not {user})"
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode) or not mode & _OTHERS_WRITE:
        return ""
    if may_be_shared and mode & stat.S_ISVTX:
        return ""
    who = "all users" if mode & stat.S_IWOTH else "its group"
    return f"{path} can be written by {who} (mode {mode:04o}): chmod go-w {shlex.quote(str(path))}"


def _steps(path: Path) -> Iterator[_Step]:
    """Yield each folder and link from the root to `path`, as far as there are any.

    Raises:
        OSError: A folder cannot be searched, or links go in a circle.
    """
    whole = path.absolute()
    at, links = Path(whole.anchor), 0
    pending = list(reversed(whole.parts[1:]))
    yield _Step(at, at.lstat(), not pending)
    while pending:
        name = pending.pop()
        # No link leads to `at`, so that its parent is the folder above it.
        step = at.parent if name == os.pardir else at / name
        try:
            status = step.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        is_link = stat.S_ISLNK(status.st_mode)
        yield _Step(step, status, not pending and not is_link)
        if not is_link:
            at = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        parts = target.parts
        if target.is_absolute():
            at, parts = Path(target.anchor), parts[1:]
        pending.extend(reversed(parts))
