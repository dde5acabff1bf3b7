"""The one call: from region signatures to a kernel library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import MissingDependencyError
from ortkit.kernels.backend import Kernel, KernelBackend, Refused, Target
from ortkit.kernels.cache import KernelCache, default_cache
from ortkit.kernels.catalog import BACKENDS, load_backend
from ortkit.kernels.cpu import resolve
from ortkit.kernels.link import KernelLibrary, link_library
from ortkit.kernels.signature import RegionSignature


@dataclass(frozen=True)
class LibraryBuild:
    """What became of the regions.

    Args:
        library: None when every region was refused.
        kernels: One per accepted signature, in their order.
        refused: Per refused signature the reason.
        seconds: Wall time of the whole build.
    """

    library: KernelLibrary | None
    kernels: tuple[Kernel, ...]
    refused: tuple[tuple[RegionSignature, str], ...]
    seconds: float


def build_library(
    signatures: Sequence[RegionSignature],
    target: Target,
    path: Path,
    backend: str = "auto",
    cache: KernelCache | None = None,
) -> LibraryBuild:
    """Compile what some backend accepts and link it into one library at `path`.

    Args:
        signatures: Equal ones are compiled once.
        target: "native" means this machine.
        path: Conventionally MODEL.opt.ops.so; not touched when everything is refused.
        backend: A name of the catalog, or "auto" for the first that accepts a region.
        cache: Where compiled kernels are kept; None means the user's cache.

    Raises:
        UserError: Unknown backend or processor level, or a file that cannot be written.
        MissingDependencyError: The named backend's toolchain, a C compiler, or the native part of
            ortkit is not installed.
        KernelError: A toolchain failed on a region that its backend had accepted.
    """
    started = time.perf_counter()
    target = resolve(target)
    backends = _usable_backends(backend)
    cache = cache or default_cache()
    accepted: list[tuple[RegionSignature, Kernel]] = []
    refused: list[tuple[RegionSignature, str]] = []
    compiled: dict[str, Kernel] = {}
    for signature in signatures:
        chosen = _choose(backends, signature, target)
        if isinstance(chosen, Refused):
            refused.append((signature, chosen.reason))
            continue
        if signature.key not in compiled:
            compiled[signature.key] = cache.compile(chosen, signature, target)
        accepted.append((signature, compiled[signature.key]))
    kernels = tuple(kernel for _, kernel in accepted)
    library = None
    if accepted:
        library = link_library(kernels, [signature for signature, _ in accepted], path, target)
    return LibraryBuild(library, kernels, tuple(refused), time.perf_counter() - started)


def refusal(signature: RegionSignature, target: Target, backend: str = "auto") -> Refused | None:
    """Say why no kernel would be built for a region; None means that one would.

    Cheap: no toolchain is loaded.
    """
    chosen = _choose(_usable_backends(backend), signature, resolve(target))
    return chosen if isinstance(chosen, Refused) else None


def _usable_backends(name: str) -> list[KernelBackend]:
    """Return the backends to try; a backend that was asked for by name must be there."""
    if name == "auto":
        return [load_backend(each) for each in BACKENDS]
    backend = load_backend(name)
    if missing := backend.available():
        problem = f"the kernel backend {name!r} cannot be used: {missing.reason}"
        raise MissingDependencyError(problem)
    return [backend]


def _choose(
    backends: Sequence[KernelBackend], signature: RegionSignature, target: Target
) -> KernelBackend | Refused:
    reasons: list[str] = []
    for backend in backends:
        verdict = backend.available() or backend.accepts(signature, target)
        if verdict is None:
            return backend
        reasons.append(f"{backend.name}: {verdict.reason}")
    return Refused("; ".join(reasons))
