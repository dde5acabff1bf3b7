"""Which objects a library was linked from: a line for each library that was built here.

A linked library does not tell its kernels apart. What is known of one kernel, such as that it was
verified, holds for each library that has the same object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ortkit import env
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.record import files_of, record_of
from ortkit.kernels.cache_files import keep_cached, read_cached, trim_folder
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.signature import RegionSignature, TensorSpec

#: Of the cache: what libraries were linked from, and what is known of their kernels.
FOLDER, VERDICTS = "libraries", "verdicts"
#: Files that are kept in each of these folders, some 300 bytes to 10 KB each; of libraries for
#: CUDA up to 100 KB.
MAX_FILES = 4096


@dataclass(frozen=True)
class Origin:
    """What a kernel for CUDA was generated from: the same again gives the same source.

    Args:
        signature: The region.
        backend: The generator's name.
        fingerprint: Of the generator; see `KernelBackend.fingerprint`.
        choices: What was chosen for the kernel, empty for the defaults.
    """

    signature: RegionSignature
    backend: str
    fingerprint: str
    choices: str


def note_objects(
    sha256: str,
    kernels: Sequence[Kernel | CudaKernel],
    signatures: Sequence[RegionSignature],
    shim: Path,
    origins: Mapping[str, Origin] | None = None,
) -> None:
    """Keep what a library was linked from, while the objects are there.

    Args:
        sha256: Of the library.
        kernels: Its kernels.
        signatures: What each computes.
        shim: The archive that is linked with them.
        origins: What kernels for CUDA were generated from, by op type.
    """
    around = hashlib.sha256(shim.read_bytes()).digest()
    found: dict[str, list[bytes]] = {}
    for signature, kernel in zip(signatures, kernels, strict=True):
        parts = [hashlib.sha256(path.read_bytes()).digest() for path in files_of(kernel)]
        launch = json.dumps(record_of(kernel), sort_keys=True).encode()
        found.setdefault(signature.op_type, [around]).extend([*parts, launch])
    hashes = {op: hashlib.sha256(b"".join(parts)).hexdigest() for op, parts in found.items()}
    noted = {op: asdict(origin) for op, origin in (origins or {}).items()}
    entry = json.dumps({"objects": hashes, "origins": noted})
    keep_cached(_path(sha256), _key(sha256), entry)
    trim_folder(env.cache_dir() / FOLDER, MAX_FILES)


def known_objects(sha256: str) -> Mapping[str, str]:
    """Return the hashes of a library's objects by op type; empty if it was not built here."""
    found = read_cached(_path(sha256), _key(sha256), lambda entry: dict(entry["objects"]))
    return found or {}


def known_origins(sha256: str) -> Mapping[str, Origin]:
    """Return what a library's kernels for CUDA were made from; empty if it was not built here."""

    def read(entry: Mapping[str, Any]) -> dict[str, Origin]:
        return {op: _origin(record) for op, record in entry["origins"].items()}

    return read_cached(_path(sha256), _key(sha256), read) or {}


def _origin(record: Mapping[str, Any]) -> Origin:
    region = record["signature"]
    inputs, outputs = (
        tuple(
            TensorSpec(str(item["name"]), str(item["dtype"]), tuple(item["shape"]))
            for item in region[side]
        )
        for side in ("inputs", "outputs")
    )
    signature = RegionSignature(str(region["name"]), str(region["body"]), inputs, outputs)
    return Origin(
        signature, str(record["backend"]), str(record["fingerprint"]), str(record["choices"])
    )


def _path(sha256: str) -> Path:
    return env.cache_dir() / FOLDER / f"{sha256[:32]}.json"


def _key(sha256: str) -> str:
    return f"objects {sha256}"
