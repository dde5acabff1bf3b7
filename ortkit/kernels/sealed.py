"""Load exactly the bytes that were hashed: a sealed copy that nobody can change any more."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
from pathlib import Path

from ortkit.temporary import TemporaryFolder

_SEALS = ("F_SEAL_WRITE", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")
#: By hash. A copy lives as long as the process: the dynamic loader identifies a library by its
#: path, so the number of a descriptor must never come to mean another library.
_COPIES: dict[str, Path] = {}


def sealed_copy(data: bytes) -> Path:
    """Return the path of a file that holds `data` and cannot be written.

    Child processes may use the path while this process lives. Where the system has no sealed
    memory files, the copy is a file in a folder that only this user may open.

    Raises:
        OSError: No copy can be made.
    """
    key = hashlib.sha256(data).hexdigest()
    known = _COPIES.get(key)
    if known is not None and known.exists():  # a fork's parent may have ended, and its files
        return known
    made = _COPIES[key] = _in_memory(data) or _in_private_folder(data, key)
    return made


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
