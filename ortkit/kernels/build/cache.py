"""Compiled kernels on disk, by signature, target and toolchain, up to a number of bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ortkit import env
from ortkit.errors import UserError
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.record import files_of, kernel_from, record_of
from ortkit.kernels.cache_files import (
    DAMAGED,
    read_sealed,
    say_unused,
    trim_oldest,
    unused_line,
    write_cached,
)
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.signature import RegionSignature
from ortkit.private_folder import NotPrivateError, private_folder_refusal
from ortkit.targets.target import Target
from ortkit.temporary import sweep

DEFAULT_LIMIT = 512 << 20
_SCHEMA = 4
_SUFFIX = ".kernel"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Entry:
    """One kernel in the folder."""

    op: str
    """The fused operator that it was first compiled for."""
    backend: str
    level: str
    """Of the processor, or the GPUs' architectures."""
    size: int
    """Bytes on disk."""
    used: float
    """When it was last asked for, in seconds since 1970."""
    path: Path


@dataclass(frozen=True)
class Slot:
    """Where a kernel belongs: equal slots hold kernels with equal code."""

    signature: RegionSignature
    backend: str
    fingerprint: str
    """Of the toolchain; see `KernelBackend.fingerprint`."""
    target: Target
    """Resolved (no "native")."""
    choices: str = ""
    """What was chosen for this kernel, empty for the defaults; see `Tunable`."""

    @property
    def key(self) -> str:
        """All that the code depends on; what is kept for another key is never found."""
        parts = (
            _SCHEMA, self.signature.digest, self.backend, self.fingerprint, self.target.kind,
            self.target.level, self.choices,
        )  # fmt: skip
        return json.dumps(parts)

    @property
    def name(self) -> str:
        """The file's name, without its ending."""
        return f"{self.signature.key}-{hashlib.sha256(self.key.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class KernelCache:
    """A folder of kernels: one file each, a line of JSON and then the code.

    Files are sealed with their key (see `ortkit.kernels.cache_files`), written under other names
    and renamed, and what is loaded is copied out, so that processes may share the folder, and any
    of them may remove files at any time. A file that does not fit is treated as absent.

    Args:
        folder: Made when something is stored. One that others can write to is not used.
        limit: Bytes; `trim` removes what was not used for longest beyond that.
    """

    folder: Path
    limit: int = DEFAULT_LIMIT

    def find(self, slot: Slot, into: Path) -> Kernel | CudaKernel | None:
        """Return the kernel with its code copied into the folder `into`, None if absent."""
        path = self._path(slot)
        whole = read_sealed(path, slot.key)
        if whole is None:
            return None
        head, _, content = whole.partition(b"\n")
        try:
            record = json.loads(head)
            parts = _parts(record, content)
        except DAMAGED:
            return None
        files = {
            name: into / f"{slot.name}{f'-{number}' if number else ''}{Path(name).suffix}"
            for number, name in enumerate(parts)
        }
        kernel = kernel_from(record, slot.signature.key, slot.backend, slot.target, files)
        if kernel is None:
            return None
        for name, path_there in files.items():
            path_there.write_bytes(parts[name])
        with suppress(OSError):  # a folder that may only be read has no order of use
            os.utime(path)
        return kernel

    def store(self, slot: Slot, kernel: Kernel | CudaKernel) -> str:
        """Keep a kernel; returns why it cannot be kept, empty if it is."""
        parts = {path.name: path.read_bytes() for path in files_of(kernel)}
        content = b"".join(parts.values())
        record = {
            "schema": _SCHEMA,
            "op": slot.signature.op_type,
            "backend": slot.backend,
            "level": slot.target.level,
            "files": [[name, len(part)] for name, part in parts.items()],
            **record_of(kernel),
        }
        try:
            whole = json.dumps(record).encode() + b"\n" + content
            write_cached(self._path(slot), slot.key, whole)
        except NotPrivateError as error:
            say_unused(error.reason)
            return unused_line(error.reason)
        except OSError as error:
            return (
                f"the kernel cache {self.folder} cannot be written: {error.strerror}; "
                "set ORTKIT_CACHE to a folder that can"
            )
        return ""

    def trim(self) -> None:
        """Remove what was not used for longest until the rest fits, and what was left behind."""
        trim_oldest(((path,) for path, _ in self._files()), self.limit)
        sweep(self.folder)

    def entries(self) -> tuple[Entry, ...]:
        """Return what is there, last used first; files of other versions are left out."""
        if reason := self.refusal():
            say_unused(reason)
            return ()
        found = []
        for path, status in self._files():
            try:
                with path.open("rb") as file:
                    record = json.loads(file.readline())
                if record["schema"] != _SCHEMA:
                    continue
                op, backend, level = (str(record[key]) for key in ("op", "backend", "level"))
            except (OSError, *DAMAGED):
                continue
            found.append(Entry(op, backend, level, status.st_size, status.st_mtime, path))
        return tuple(sorted(found, key=lambda entry: (-entry.used, entry.op)))

    def clear(self) -> tuple[int, int]:
        """Remove all kernels; returns how many files and how many bytes.

        Raises:
            UserError: A file cannot be removed, or others can write to the folder.
        """
        if reason := self.refusal():
            raise UserError(unused_line(reason))
        files = list(self._files())
        for path, _ in files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"cannot be removed: {error.strerror}", where=str(path)) from error
        return len(files), sum(status.st_size for _, status in files)

    def _path(self, slot: Slot) -> Path:
        return self.folder / f"{slot.name}{_SUFFIX}"

    def refusal(self) -> str:
        """Say why the folder is not used; see `private_folder_refusal`."""
        return private_folder_refusal(self.folder)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            found = list(os.scandir(self.folder))
        except OSError:
            return
        for file in found:
            if file.name.endswith(_SUFFIX) and not file.name.startswith("."):
                try:
                    yield Path(file.path), file.stat()
                except OSError:
                    continue  # another process was faster


def _parts(record: Mapping[str, object], content: bytes) -> dict[str, bytes]:
    """Return the files of an entry by the names that they had; none if it does not say."""
    parts: dict[str, bytes] = {}
    start = 0
    try:
        for name, size in cast(list[tuple[str, int]], record["files"]):
            parts[str(name)] = content[start : start + int(size)]
            start += int(size)
    except DAMAGED:
        return {}
    return parts


def default_cache() -> KernelCache:
    """Return the user's cache of kernels.

    Raises:
        UserError: `ORTKIT_CACHE_SIZE` is no size.
    """
    return KernelCache(env.cache_dir() / "kernels", _limit(env.cache_size()))


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    match = re.fullmatch(r"\s*(\d+)\s*([KMG]?)i?B?\s*", text, re.IGNORECASE)
    if match is None:
        raise UserError(
            f"{text!r} is no size", where="ORTKIT_CACHE_SIZE", fix="give bytes, or such as 512MB"
        )
    return int(match[1]) * _UNITS[match[2].upper()]
