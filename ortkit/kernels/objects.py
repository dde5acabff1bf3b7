"""Which objects a library was linked from: a line for each library that was built here.

A linked library does not tell its kernels apart. What is known of one kernel, such as that it was
verified, holds for each library that has the same object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ortkit import env
from ortkit.kernels.backend import Kernel
from ortkit.kernels.cached import keep_cached, read_cached, trim_folder
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.record import files_of, record_of
from ortkit.kernels.signature import RegionSignature

#: Of the cache: what libraries were linked from, and what is known of their kernels.
FOLDER, VERDICTS = "libraries", "verdicts"
#: Files that are kept in each of these folders, some 300 bytes to 10 KB each.
MAX_FILES = 4096


def note_objects(
    sha256: str,
    kernels: Sequence[Kernel | CudaKernel],
    signatures: Sequence[RegionSignature],
    shim: Path,
) -> None:
    """Keep what a library was linked from, while the objects are there.

    Args:
        sha256: Of the library.
        kernels: Its kernels.
        signatures: What each computes.
        shim: The archive that is linked with them.
    """
    around = hashlib.sha256(shim.read_bytes()).digest()
    found: dict[str, list[bytes]] = {}
    for signature, kernel in zip(signatures, kernels, strict=True):
        parts = [hashlib.sha256(path.read_bytes()).digest() for path in files_of(kernel)]
        launch = json.dumps(record_of(kernel), sort_keys=True).encode()
        found.setdefault(signature.op_type, [around]).extend([*parts, launch])
    hashes = {op: hashlib.sha256(b"".join(parts)).hexdigest() for op, parts in found.items()}
    keep_cached(_path(sha256), _key(sha256), json.dumps({"objects": hashes}))
    trim_folder(env.cache_dir() / FOLDER, MAX_FILES)


def known_objects(sha256: str) -> Mapping[str, str]:
    """Return the hashes of a library's objects by op type; empty if it was not built here."""
    found = read_cached(_path(sha256), _key(sha256), lambda entry: dict(entry["objects"]))
    return found or {}


def _path(sha256: str) -> Path:
    return env.cache_dir() / FOLDER / f"{sha256[:32]}.json"


def _key(sha256: str) -> str:
    return f"objects {sha256}"
