"""The one call: from region signatures to a kernel library."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ortkit.errors import MissingDependencyError
from ortkit.kernels.backend import Kernel, KernelBackend
from ortkit.kernels.build.cache import KernelCache, Slot, default_cache
from ortkit.kernels.build.compiler import Job, compile_all
from ortkit.kernels.build.sources import write_sources
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.link.linker import (
    KernelLibrary,
    Programs,
    find_linker,
    find_shim,
    link_library,
)
from ortkit.kernels.objects import Origin, note_objects
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tunable import Tunable
from ortkit.kernels.tuning import defaults
from ortkit.kernels.tuning.database import Chooser, known_database
from ortkit.refusal import Refused
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder, sweep_once


def _silent(done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class LibraryBuild:
    """What became of the regions.

    Args:
        library: None when every region was refused.
        kernels: One per accepted signature, in their order; their objects are in the library only.
        refused: Per refused signature the reason.
        compiled: How many kernels were not in the cache.
        note: Why kernels could not be put into the cache, empty if they could.
        seconds: Wall time of the whole build.
        sources: The files with the kernels' code by their keys, if it was to be kept.
    """

    library: KernelLibrary | None
    kernels: tuple[Kernel | CudaKernel, ...]
    refused: tuple[tuple[RegionSignature, str], ...]
    compiled: int
    note: str
    seconds: float
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def build_library(
    signatures: Sequence[RegionSignature],
    target: Target,
    path: Path,
    backend: str = "auto",
    cache: KernelCache | None = None,
    count: Callable[[int, int], None] = _silent,
    sources: Path | None = None,
    programs: Callable[[Mapping[str, Kernel]], Programs | None] | None = None,
    chooser: Chooser | None = None,
) -> LibraryBuild:
    """Compile what some backend accepts and link it into one library at `path`.

    A region whose kernel the toolchain fails on, or does not compile in time, is refused with the
    last lines of what the toolchain said.

    Args:
        signatures: Equal ones are compiled once.
        target: "native" means this machine, or any GPU.
        path: Conventionally MODEL.opt.ops.so; not touched when everything is refused.
        backend: A name of the catalog, or "auto" for the first that accepts a region.
        cache: Where compiled kernels are kept; None means the user's cache.
        count: Called with how many kernels are compiled, and of how many.
        sources: The folder that the generated code is written into for reading, if it is to be.
        programs: Returns code to be linked too, given the kernels for CPUs by the keys of their
            signatures.
        chooser: Says which of several kernels for a region to make; None: what was found by
            tuning on this machine and is in the cache.

    Raises:
        UserError: Unknown backend, processor level or architecture, or a file that cannot be
            written.
        MissingDependencyError: The named backend's toolchain, a C compiler, or the native part of
            ortkit is not installed.
        KernelError: The C compiler failed to link.
    """
    started = time.perf_counter()
    target = target.resolved()
    cache = cache or default_cache()
    with TemporaryFolder("build") as folder:
        chooser = chooser or known_database().chooser()
        build = _Build(_usable_backends(backend, target), target, cache, folder, chooser)
        found = build.kernels(signatures, count)
        accepted = [(s, item) for s, item in found if isinstance(item, Kernel | CudaKernel)]
        refused = tuple((s, one.reason) for s, one in found if isinstance(one, Refused))
        library = None
        kept: Mapping[str, tuple[str, ...]] = {}
        if accepted:
            kernels, named = [one for _, one in accepted], [s for s, _ in accepted]
            by_key = {each.key: each for each in kernels if isinstance(each, Kernel)}
            more = None if programs is None else programs(by_key)
            library = link_library(kernels, named, path, target, more)
            note_objects(library.sha256, kernels, named, find_shim()[0], build.origins)
            if sources is not None:
                kept = write_sources(kernels, named, sources)
    return LibraryBuild(
        library,
        tuple(kernel for _, kernel in accepted),
        refused,
        build.compiled,
        build.note,
        time.perf_counter() - started,
        kept,
    )


@dataclass(frozen=True)
class KernelsBuild:
    """Kernels before they are linked.

    Args:
        found: For each signature its kernel, or why it has none.
        compiled: How many kernels were not in the cache.
        note: Why kernels could not be put into the cache, empty if they could.
    """

    found: tuple[Kernel | CudaKernel | Refused, ...]
    compiled: int
    note: str


@contextmanager
def build_kernels(
    signatures: Sequence[RegionSignature],
    target: Target,
    cache: KernelCache | None = None,
    count: Callable[[int, int], None] = _silent,
    backend: str = "auto",
) -> Iterator[KernelsBuild]:
    """Compile what some backend accepts; the kernels' files are there inside the `with` block.

    The arguments and errors are those of `build_library`.
    """
    target = target.resolved()
    with TemporaryFolder("build") as folder:
        chooser = known_database().chooser()
        build = _Build(
            _usable_backends(backend, target), target, cache or default_cache(), folder, chooser
        )
        found = tuple(item for _, item in build.kernels(signatures, count))
        yield KernelsBuild(found, build.compiled, build.note)


def refusal(signature: RegionSignature, target: Target, backend: str = "auto") -> Refused | None:
    """Say why no kernel would be built for a region; None means that one would.

    Cheap: no toolchain is loaded.
    """
    chosen = _choose(_usable_backends(backend, target), signature, target.resolved())
    return chosen if isinstance(chosen, Refused) else None


def missing_toolchain(
    backend: str = "auto", target: Target | None = None
) -> MissingDependencyError | None:
    """Return what is not installed and how to get it; None means that kernels can be built."""
    try:
        backends = _usable_backends(backend, target or Target())
        if not _available(backends):
            reasons = "; ".join(one.reason for each in backends if (one := each.available()))
            return MissingDependencyError(f"no kernel backend can be used: {reasons}")
        find_shim()
        find_linker()
    except MissingDependencyError as error:
        return error
    return None


def toolchain(backend: str = "auto", target: Target | None = None) -> str:
    """Name everything but a region and a target that decides how fast its kernel is."""
    digest = hashlib.sha256(find_shim()[0].read_bytes()).hexdigest()[:16]
    usable = _available(_usable_backends(backend, target or Target()))
    tuned = [item for item in (defaults.digest(), known_database().digest()) if item]
    return " ".join(
        [*(kernel_backend.fingerprint() for kernel_backend in usable), f"shim-{digest}", *tuned]
    )


class _Build:
    """One call of `build_library`, up to the linking."""

    def __init__(
        self,
        backends: Sequence[KernelBackend],
        target: Target,
        cache: KernelCache,
        folder: Path,
        chooser: Chooser,
    ) -> None:
        self.target = target
        self._chooser = chooser
        self.cache = cache
        self.folder = folder
        self.compiled = 0
        self.note = ""
        self.origins: dict[str, Origin] = {}
        """What kernels that Python cannot call are generated from, by op type."""
        self._fingerprints = {
            kernel_backend.name: kernel_backend.fingerprint()
            for kernel_backend in _available(backends)
        }
        self._backends = backends
        sweep_once(cache.folder)  # also where all kernels are there already

    def kernels(
        self, signatures: Sequence[RegionSignature], count: Callable[[int, int], None]
    ) -> list[tuple[RegionSignature, Kernel | CudaKernel | Refused]]:
        """Return for each signature its kernel or the reason why it has none."""
        looked_up: dict[str, Slot | Kernel | CudaKernel | Refused] = {}
        for signature in signatures:
            if signature.key not in looked_up:
                looked_up[signature.key] = self._look_up(signature)
        absent = [item for item in looked_up.values() if isinstance(item, Slot)]
        compiled = dict(
            zip((slot.signature.key for slot in absent), self._compile(absent, count), strict=True)
        )
        known: dict[str, Kernel | CudaKernel | Refused] = {
            key: compiled[key] if isinstance(one, Slot) else one for key, one in looked_up.items()
        }
        return [(signature, known[signature.key]) for signature in signatures]

    def _look_up(self, signature: RegionSignature) -> Kernel | CudaKernel | Slot | Refused:
        """Return the kernel from the cache, or where it will go once it is compiled."""
        reasons: list[str] = []
        for backend in self._backends:
            verdict = backend.available()
            if verdict is None:
                fingerprint = self._fingerprints[backend.name]
                choices = self._choices(signature, backend)
                slot = Slot(signature, backend.name, fingerprint, self.target, choices)
                if not self.target.traits.is_host:
                    origin = Origin(signature, backend.name, fingerprint, choices)
                    self.origins[signature.op_type] = origin
                if (kernel := self.cache.find(slot, self.folder)) is not None:
                    return kernel
                verdict = backend.accepts(signature, self.target)
            if verdict is None:
                return slot
            reasons.append(f"{backend.name}: {verdict.reason}")
        return Refused("; ".join(reasons))

    def _choices(self, signature: RegionSignature, backend: KernelBackend) -> str:
        """Return what was found for a region, or what ships for its kind.

        Empty where that means nothing to the backend.
        """
        if not isinstance(backend, Tunable):
            return ""
        found = self._chooser(signature, backend.name, self.target)
        if found is None:
            return defaults.default_choices(signature, backend, self.target)
        return found if found and backend.is_choice(found) else ""

    def _compile(
        self, slots: Sequence[Slot], count: Callable[[int, int], None]
    ) -> list[Kernel | CudaKernel | Refused]:
        jobs = []
        for slot in slots:
            folder = self.folder / slot.name
            folder.mkdir()
            jobs.append(Job(slot.backend, slot.signature, slot.target, folder, slot.choices))
        found: list[Kernel | CudaKernel | Refused] = []
        for slot, made in zip(slots, compile_all(jobs, count), strict=True):
            if isinstance(made, Refused):
                found.append(Refused(f"{slot.backend}: {made.reason}"))
                continue
            kernel = made
            if isinstance(made, Kernel):
                # Under the name that it has when it comes from the cache: equal input, equal
                # library. (Images for CUDA are called by their content.)
                artifact = self.folder / f"{slot.name}.o"
                made.artifact.replace(artifact)
                kernel = replace(made, artifact=artifact)
            self.note = self.cache.store(slot, kernel) or self.note
            self.compiled += 1
            found.append(kernel)
        if self.compiled and not self.note:
            self.cache.trim()
        return found


def _usable_backends(name: str, target: Target) -> list[KernelBackend]:
    """Return the backends to try; a backend that was asked for by name must be there."""
    if name == "auto":
        return [load_backend(each) for each in target.traits.backends]
    backend = load_backend(name)
    if missing := backend.available():
        problem = f"the kernel backend {name!r} cannot be used: {missing.reason}"
        raise MissingDependencyError(problem)
    return [backend]


def _available(backends: Sequence[KernelBackend]) -> list[KernelBackend]:
    return [backend for backend in backends if backend.available() is None]


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
