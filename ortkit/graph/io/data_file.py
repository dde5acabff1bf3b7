"""Files that hold tensor bytes: mapped, read or copied on demand, never whole."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ortkit.errors import ModelError, UserError

Bytes = npt.NDArray[np.uint8]

# A file with this many bytes or less is read when no further file can be mapped.
_READ_INSTEAD_BYTES = 64 << 20
_CHUNK_BYTES = 256 << 10
_NO_KERNEL_COPY = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EBADF}
)


class DataFile:
    """A file whose bytes tensors refer to; it must stay as it was when it was first seen.

    The file is opened when bytes are asked for. A file that was replaced or rewritten in between
    is an error, not other bytes under the same name.
    """

    def __init__(self, path: Path) -> None:
        """Remember what `path` is now.

        Raises:
            OSError: The file is missing or cannot be examined.
            ModelError: It is not a regular file.
        """
        self.path = path
        found = os.stat(path)  # noqa: PTH116  (one call gives identity and kind)
        if not stat.S_ISREG(found.st_mode):
            raise ModelError("not a regular file", where=str(path), fix="name the data file")
        self.size_bytes = found.st_size
        self._has_holes = found.st_blocks * 512 < found.st_size
        self._identity = _identity(found)
        self._held: int | None = None
        self._map: Bytes | None = None

    def hold(self) -> None:
        """Keep the file open, so that its bytes stay reachable when its name is taken over."""
        if self._held is not None:
            return
        with self.opened() as descriptor:
            self._held = os.dup(descriptor)
        weakref.finalize(self, os.close, self._held)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Give a descriptor to read from.

        Raises:
            ModelError: The file is gone, or is no longer the one that was first seen.
        """
        descriptor = self._held if self._held is not None else self._open()
        try:
            if _identity(os.fstat(descriptor)) != self._identity:
                raise self._changed()
            yield descriptor
        finally:
            if descriptor != self._held:
                os.close(descriptor)

    def mapped(self) -> Bytes:
        """Return all bytes of the file as a read-only map; no page is read before it is used."""
        if self._map is None:
            with self.opened() as descriptor:
                self._map = self._map_file(descriptor)
        return self._map

    def read(self, offset: int, length: int) -> Bytes:
        """Return `length` bytes from `offset` on as a copy in memory.

        Raises:
            ModelError: The file changed or ends too early.
        """
        buffer = np.empty(length, dtype=np.uint8)
        with self.opened() as descriptor:
            done = 0
            while done < length:
                got = os.preadv(descriptor, [buffer[done:].data], offset + done)
                if got == 0:
                    raise self._changed()
                done += got
        buffer.flags.writeable = False
        return buffer

    def copy_to(self, target: int, at: int, offset: int, length: int) -> None:
        """Copy `length` bytes from `offset` on to position `at` of descriptor `target`.

        Holes stay holes and the bytes do not pass through this process where the kernel can.

        Raises:
            ModelError: The file changed since it was first seen and is not mapped.
            OSError: Writing failed.
        """
        try:
            with self.opened() as descriptor:
                end_at = offset + length
                parts = [(offset, end_at)]
                if self._has_holes:  # asking costs time in proportion to the file on a tmpfs
                    parts = list(_filled(descriptor, offset, end_at))
                for start, end in parts:
                    to = at + start - offset
                    if not _copy_range(descriptor, target, start, to, end - start):
                        raise self._changed()
                return
        except ModelError:
            if self._map is None:
                raise
        write_at(target, self._map[offset : offset + length].data, at)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._changed() from error

    def _changed(self) -> ModelError:
        return ModelError(
            "the file changed or went away after the model was opened",
            where=str(self.path),
            fix="open the model again",
        )

    def _map_file(self, descriptor: int) -> Bytes:
        if self.size_bytes == 0:
            return np.empty(0, dtype=np.uint8)
        try:
            return np.frombuffer(
                mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ), np.uint8
            )
        except OSError as error:
            # Each map holds a descriptor; models with a file per tensor can run out of them.
            if error.errno != errno.EMFILE or self.size_bytes > _READ_INSTEAD_BYTES:
                raise UserError(
                    f"cannot map: {error.strerror}",
                    where=str(self.path),
                    fix="raise the limit on open files (ulimit -n)",
                ) from error
            return self.read(0, self.size_bytes)


@dataclass(frozen=True, eq=False)
class Span:
    """A run of bytes in a file."""

    file: DataFile
    offset: int
    length: int

    def map(self) -> Bytes:
        """Return the bytes without reading them."""
        return self.file.mapped()[self.offset : self.offset + self.length]

    def read(self) -> Bytes:
        """Return a copy of the bytes."""
        return self.file.read(self.offset, self.length)

    def copy_to(self, target: int, at: int) -> None:
        """Copy the bytes to position `at` of descriptor `target`; see `DataFile.copy_to`."""
        self.file.copy_to(target, at, self.offset, self.length)


def write_at(target: int, data: memoryview, at: int) -> None:
    """Write all of `data` to position `at` of descriptor `target`.

    Raises:
        OSError: Writing failed.
    """
    data = data.cast("B")
    while data:
        written = os.pwrite(target, data[: 1 << 30], at)
        data, at = data[written:], at + written


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _filled(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) that are not holes."""
    while start < end:
        try:
            data = os.lseek(descriptor, start, os.SEEK_DATA)
            hole = os.lseek(descriptor, data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return
            data, hole = start, end  # the file system does not tell
        if data >= end:
            return
        yield data, min(hole, end)
        start = hole


def _copy_range(source: int, target: int, offset: int, at: int, length: int) -> bool:
    """Copy bytes between descriptors; False if the source ends too early."""
    while length:
        try:
            copied = os.copy_file_range(source, target, min(length, 1 << 30), offset, at)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            return _copy_in_chunks(source, target, offset, at, length)
        if copied == 0:
            # Some file systems answer 0 where they mean "not here".
            return _copy_in_chunks(source, target, offset, at, length)
        offset, at, length = offset + copied, at + copied, length - copied
    return True


def _copy_in_chunks(source: int, target: int, offset: int, at: int, length: int) -> bool:
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    while length:
        got = os.preadv(source, [view[: min(length, len(view))]], offset)
        if got == 0:
            return False
        write_at(target, view[:got], at)
        offset, at, length = offset + got, at + got, length - got
    return True
