"""Kernels that tuning found to be better than the rules: by kind of region, shipped with ortkit.

Regions are put into kinds by what their loops look like (`Tunable.kind`). A table for each
processor level or GPU architecture says which choices suit a kind; `scripts/tune-defaults` makes
it with the means of `ortkit tune`. What was tuned here, for the region itself, goes before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ortkit.errors import InternalError
from ortkit.kernels.backend import KernelBackend
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tunable import Tunable
from ortkit.targets.target import Target

SCHEMA = "ortkit.tuned-defaults/1"
FOLDER = Path(__file__).parent / "tables"
#: Tables of levels that begin with these names, after the level's own.
_SHARED = ("x86-64-v4", "x86-64-v3")


def default_choices(signature: RegionSignature, backend: KernelBackend, target: Target) -> str:
    """Return the choices that are shipped for a region, empty for the rules of its backend.

    Args:
        signature: A region that the backend accepts.
        backend: It; one that is not `Tunable` has no choices.
        target: Resolved. Of several GPU architectures the newest that has a table counts: all
            images of a kernel are made alike.
    """
    if not isinstance(backend, Tunable):
        return ""
    for name in _tables(target):
        if found := table(name).get(backend.name):
            choices = found.get(backend.kind(signature, target), "")
            return choices if backend.is_choice(choices) else ""
    return ""


@cache
def table(name: str) -> Mapping[str, Mapping[str, str]]:
    """Return a table: backend -> kind of region -> choices; empty if there is none.

    Raises:
        InternalError: The file is damaged.
    """
    path = FOLDER / f"{name}.json"
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return MappingProxyType({})
    except (OSError, ValueError) as error:
        raise InternalError(f"the table {path.name} cannot be read: {error}") from error
    if content.get("schema") != SCHEMA:
        raise InternalError(f"the table {path.name} is of another version")
    kinds = {str(kind): str(item["choices"]) for kind, item in content["kinds"].items()}
    return MappingProxyType({str(content["backend"]): MappingProxyType(kinds)})


def digest() -> str:
    """Name what is in all tables, such as `defaults-0a1b2c3d4e5f`; empty if there are none."""
    paths = sorted(FOLDER.glob("*.json"))
    found = hashlib.sha256(b"".join(path.read_bytes() for path in paths))
    return f"defaults-{found.hexdigest()[:12]}" if paths else ""


def _tables(target: Target) -> tuple[str, ...]:
    return tuple(
        name for level in target.levels for name in (level, *_SHARED) if level.startswith(name)
    )
