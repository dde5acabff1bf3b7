"""Compiled kernels on disk, by signature, target and toolchain."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ortkit import env
from ortkit.errors import UserError
from ortkit.kernels.backend import Kernel, KernelBackend, Launch, Target
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent

_RECORD_SCHEMA = 2


@dataclass(frozen=True)
class KernelCache:
    """A folder of kernels: `<slot>.o`, and `<slot>.json` that vouches for its bytes.

    Both are written under other names and renamed, so processes may share the folder. An entry
    whose record does not fit, or whose object has other bytes than recorded, is compiled again.
    """

    folder: Path

    def compile(
        self, backend: KernelBackend, signature: RegionSignature, target: Target
    ) -> Kernel:
        """Return the kernel from the folder, compiled now if it is not there.

        Args:
            target: Resolved (no "native").

        Raises:
            KernelError: The toolchain failed.
            UserError: The folder cannot be written.
        """
        slot = _slot(backend, signature, target)
        found = self._load(slot, backend.name, signature.key, target)
        if found is not None:
            return found
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".compile-", dir=self.folder) as name:
                return self._store(slot, backend.compile(signature, target, Path(name)))
        except OSError as error:
            raise UserError(
                f"cannot write the kernel cache: {error.strerror}",
                where=str(self.folder),
                fix="set ORTKIT_CACHE to a folder that can be written",
            ) from error

    def _load(self, slot: str, backend: str, key: str, target: Target) -> Kernel | None:
        artifact = self.folder / f"{slot}.o"
        try:
            record = json.loads((self.folder / f"{slot}.json").read_text("utf-8"))
            digest = hashlib.sha256(artifact.read_bytes()).hexdigest()
        except (OSError, ValueError):
            return None
        expected = {"schema": _RECORD_SCHEMA, "key": key, "sha256": digest}
        if not isinstance(record, dict) or not expected.items() <= record.items():
            return None
        try:
            symbol, launch = str(record["symbol"]), _launch(record["launch"])
        except (KeyError, TypeError, ValueError):
            return None
        return Kernel(key, backend, target, artifact, symbol, launch, compile_seconds=0.0)

    def _store(self, slot: str, kernel: Kernel) -> Kernel:
        record = {
            "schema": _RECORD_SCHEMA,
            "key": kernel.key,
            "sha256": hashlib.sha256(kernel.artifact.read_bytes()).hexdigest(),
            "symbol": kernel.symbol,
            "launch": asdict(kernel.launch),
        }
        text = kernel.artifact.with_suffix(".json")
        text.write_text(json.dumps(record, indent=1), "utf-8")
        artifact = self.folder / f"{slot}.o"
        kernel.artifact.replace(artifact)
        text.replace(self.folder / f"{slot}.json")  # last: it makes the entry valid
        return Kernel(
            kernel.key, kernel.backend, kernel.target, artifact, kernel.symbol,
            kernel.launch, kernel.compile_seconds,
        )  # fmt: skip


def _launch(record: dict[str, Any]) -> Launch:
    """Read a `Launch` back from what `asdict` made of it."""
    return Launch(
        units=tuple(_extent(one) for one in record["units"]),
        points=_extent(record["points"]),
        picoseconds_per_point=int(record["picoseconds_per_point"]),
        inplace=tuple((int(i), int(o)) for i, o in record["inplace"]),
    )


def _extent(record: dict[str, Any]) -> Extent:
    return Extent(int(record["factor"]), tuple(map(str, record["symbols"])))


def default_cache() -> KernelCache:
    """Return the user's cache of kernels."""
    return KernelCache(env.cache_dir() / "kernels")


def _slot(backend: KernelBackend, signature: RegionSignature, target: Target) -> str:
    content = os.linesep.join([backend.fingerprint(), target.kind, target.level])
    return f"{signature.key}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
