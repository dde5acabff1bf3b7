"""The library of what is claimed: kernels from their cache, linked with the programs, kept too."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortkit.errors import UserError
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, toolchain
from ortkit.kernels.cache_files import (
    keep_cached,
    read_cached,
    say_unused,
    trim_oldest,
    write_private,
)
from ortkit.kernels.link.linker import Programs
from ortkit.private_folder import NotPrivateError, read_private
from ortkit.provider.own import failures
from ortkit.provider.own.options import FOLDER
from ortkit.provider.own.planning import Plan
from ortkit.provider.own.program import Program
from ortkit.provider.own.source import fingerprint, programs_source
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder

#: Libraries beyond this, used longest ago, are removed.
LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class Built:
    """A plan with its library.

    Args:
        plan: Without the claims that there are no kernels for.
        library: Where the library lies; None if nothing is claimed.
        compiled: How many kernels were not in the cache.
    """

    plan: Plan
    library: Path | None
    compiled: int = 0


def build(plan: Plan, target: Target, kernels: str, cache: Path) -> Built:
    """Return the library of a plan, made if it is not there yet.

    Args:
        plan: What is wanted.
        target: What the kernels are for.
        kernels: A backend's name, or "auto".
        cache: The folder for kernels and libraries.

    Raises:
        MissingDependencyError: No toolchain is installed.
        KernelError: The C compiler failed.
        UserError: No folder can be written.
    """
    plan = plan.with_own_keys()
    if not plan.claims:
        return Built(plan, None)
    target = target.resolved()
    folder = cache / FOLDER
    name = _name(plan, target, kernels)
    path = folder / f"{name}.so"
    if (refused := _known(path)) is not None:
        kept = plan.without(refused)
        return Built(kept, path if kept.claims else None)

    def programs(ready: Mapping[str, Kernel]) -> Programs | None:
        every = {claim.program.symbol: claim.program for claim in plan.claims}
        return _programs(
            [program for program in every.values() if _has_all(program, ready)], ready
        )

    with TemporaryFolder("provider") as made_in:
        made = build_library(
            list(plan.signatures.values()), target, made_in / path.name, kernels,
            cache=KernelCache(cache / "kernels"), programs=programs,
        )  # fmt: skip
        refused = {signature.key: reason for signature, reason in made.refused}
        kept = plan.without(refused)
        if made.library is None or not kept.claims:
            return Built(kept, None, made.compiled)
        path = _written(path, made.library.path.read_bytes())
    content = json.dumps({"sha256": made.library.sha256, "refused": refused})
    # Where it is not kept the library is made again the next time.
    keep_cached(path.with_suffix(".json"), _key(path), content)
    libraries = path.parent.glob("*.so")
    # Loaded libraries stay loaded.
    trim_oldest(
        ((library, library.with_suffix(".json")) for library in libraries), LIMIT_BYTES, kept=path
    )
    return Built(kept, path, made.compiled)


def _written(path: Path, content: bytes) -> Path:
    """Write a library; into a folder of this process if the cache cannot be used.

    Returns:
        Where it lies.

    Raises:
        UserError: No folder can be written.
    """
    try:
        write_private(path, content)
    except NotPrivateError as error:
        say_unused(error.reason)
    except OSError as error:
        say_unused(f"{path.parent} cannot be written: {error.strerror}")
    else:
        return path
    path = _process_folder().path / path.name
    with _writing_to(path.parent):
        write_private(path, content)
    return path


@functools.cache
def _process_folder() -> TemporaryFolder:
    """Return a folder for libraries that goes when the process ends."""
    return TemporaryFolder("provider")


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the folder for kernels cannot be written: {error.strerror}",
            where=str(folder),
            fix="free some space, or set TMPDIR",
        ) from error


def kept_files(cache: Path) -> Iterator[Path]:
    """Yield the files of all libraries and plans in a cache."""
    folder = cache / FOLDER
    for pattern in ("*.so", "*.json", "plans/*"):
        yield from (path for path in folder.glob(pattern) if path.name != failures.FILE)


def _has_all(program: Program, ready: Mapping[str, Kernel]) -> bool:
    return all(step.signature.key in ready for step in program.steps)


def _programs(programs: list[Program], ready: Mapping[str, Kernel]) -> Programs | None:
    if not programs:
        return None
    source, files = programs_source(programs, ready)
    return Programs(source, files, tuple(sorted(program.symbol for program in programs)))


def _name(plan: Plan, target: Target, kernels: str) -> str:
    """Return what the library is called: equal names, equal libraries."""
    symbols = sorted({claim.program.symbol for claim in plan.claims})
    content = [toolchain(kernels), fingerprint(), target.level, *symbols]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def _known(path: Path) -> dict[str, str] | None:
    """Return the kernels that a library that is there lacks; None if it is not, or is damaged."""

    def refused(record: Any) -> dict[str, str] | None:
        if hashlib.sha256(read_private(path)).hexdigest() != record["sha256"]:
            return None
        os.utime(path)
        return {str(key): str(reason) for key, reason in record["refused"].items()}

    return read_cached(path.with_suffix(".json"), _key(path), refused)


def _key(path: Path) -> str:
    return f"library {path.stem}"
