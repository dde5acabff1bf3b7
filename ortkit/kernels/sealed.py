"""Load exactly the bytes that were hashed: a sealed copy that nobody can change any more."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
from pathlib import Path

from ortkit.temporary import TemporaryFolder

_SEALS = ("F_SEAL_WRITE", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")
#: By hash, with device and inode. A copy lives as long as the process: the dynamic loader tells
#: libraries apart by path, so a descriptor's number must not come to mean another library. It does
#: in a process that closes all descriptors, so a copy is used only while it is the same file.
_COPIES: dict[str, tuple[Path, tuple[int, int]]] = {}


def sealed_copy(data: bytes) -> Path:
    """Return the path of a file that holds `data` and cannot be written.

    Child processes may use the path while this process lives. Where the system has no sealed
    memory files, the copy is a file in a folder that only this user may open.

    Raises:
        OSError: No copy can be made.
    """
    key = hashlib.sha256(data).hexdigest()
    known = _COPIES.get(key)
    if known is not None and _identity(known[0]) == known[1]:
        return known[0]
    made = _in_memory(data) or _in_private_folder(data, key)
    if (identity := _identity(made)) is not None:
        _COPIES[key] = made, identity
    return made


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode; None if there is no such file, as after a fork's parent ended."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _in_memory(data: bytes) -> Path | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        file = os.memfd_create("ortkit-kernels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:  # a sandbox that lacks the system call
        return None
    try:
        with os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(data)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, sum(getattr(fcntl, name) for name in _SEALS))
    except BaseException:
        os.close(file)
        raise
    return Path(f"/proc/{os.getpid()}/fd/{file}")


def _in_private_folder(data: bytes, key: str) -> Path:
    path = _private_folder().path / f"{key[:16]}.so"
    path.write_bytes(data)
    path.chmod(0o400)
    return path


@functools.cache
def _private_folder() -> TemporaryFolder:
    """Return a folder that goes when the process ends."""
    return TemporaryFolder("kernels")
