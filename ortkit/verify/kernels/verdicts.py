"""Verdicts on kernels that passed, kept in the cache with all that they depend on."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ortkit import env
from ortkit.kernels.accuracy import roundings_of
from ortkit.kernels.cache_files import keep_cached, read_cached, trim_folder
from ortkit.kernels.objects import MAX_FILES, VERDICTS, known_objects
from ortkit.targets.cpu import native_level
from ortkit.verify.kernels.models import KernelNode

#: Of what is checked and how: a verdict of another version is none.
CHECK_VERSION = 2


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on the kernels of one library.

    A verdict belongs to a kernel's body and the types and sizes of its tensors, to the bytes of
    its object file (of the whole library if it was not built here), and to the processor, the GPU
    and the ONNX Runtime that it was found with. An interpreted kernel's belongs to its source.
    """

    folder: Path
    library: str
    """SHA-256 of the library."""
    objects: Mapping[str, str]
    """SHA-256 of the kernels' objects by op type, for a library that was built here."""

    @classmethod
    def of(cls, library: Path | None) -> Verdicts:
        """Return the verdicts in the user's cache; without a library those of sources alone."""
        content = b"" if library is None else library.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        return cls(env.cache_dir() / VERDICTS, sha256, known_objects(sha256))

    def find(self, kernel: KernelNode, way: str) -> dict[str, Any] | None:
        """Return the fields of the row of a kernel that passed, None if none is known.

        Args:
            kernel: The kernel.
            way: What it was run by, and all that is not known from the library.
        """
        key = self._key(kernel, way)
        return read_cached(self._path(kernel, key), key, lambda found: dict(found["row"]))

    def keep(self, kernel: KernelNode, way: str, row: Mapping[str, object]) -> None:
        """Keep the row of a kernel that passed."""
        key = self._key(kernel, way)
        keep_cached(self._path(kernel, key), key, json.dumps({"row": dict(row)}))

    def trim(self) -> None:
        """Remove the oldest files beyond a limit."""
        trim_folder(self.folder, MAX_FILES)

    def _key(self, kernel: KernelNode, way: str) -> str:
        body = kernel.function.SerializeToString(deterministic=True)
        sizes = [
            (each.dtype.name, [str(size) for size in each.shape], each.constant is not None)
            for each in kernel.inputs
        ]
        return json.dumps(
            [
                CHECK_VERSION,
                kernel.op_type,
                hashlib.sha256(body).hexdigest(),
                sizes,
                self.objects.get(kernel.op_type, self.library),
                roundings_of(kernel.op_type),
                way,
                native_level(),
                _runtime_version(),
            ]
        )

    def _path(self, kernel: KernelNode, key: str) -> Path:
        name = f"{kernel.op_type[-12:]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        return self.folder / f"{name}.json"


@cache
def _runtime_version() -> str:
    """Return what tells one ONNX Runtime from another, without importing it."""
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    spec = importlib.util.find_spec("onnxruntime")
    origin = None if spec is None else spec.origin
    return "" if origin is None else str(Path(origin).stat().st_mtime_ns)
