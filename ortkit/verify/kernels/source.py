"""The source of Triton kernels, for kernels that this machine has no GPU to run on."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ortkit.kernels.catalog import load_backend
from ortkit.kernels.objects import Origin, known_origins
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton import generate
from ortkit.kernels.triton.choices import read_choices
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused
from ortkit.verify.inputs.covering import Level


@dataclass(frozen=True)
class KernelSource:
    """A kernel before it is compiled."""

    signature: RegionSignature
    variants: tuple[VariantSource, ...]


SourceOf = Callable[[str], KernelSource | Refused]
"""Returns the source of a fused operator, or why it is not known."""


def sources_of_library(sha256: str) -> SourceOf:
    """Return the sources of a library's kernels, if it was built here with today's generator.

    A library holds no source. What its kernels were generated from is kept in the cache, and the
    same generator gives the same source again.
    """
    origins = known_origins(sha256)

    @cache
    def fingerprint_of(backend: str) -> str:
        return load_backend(backend).fingerprint()

    def source_of(op_type: str) -> KernelSource | Refused:
        origin = origins.get(op_type)
        if origin is None:
            return Refused("its source is not known here")
        if fingerprint_of(origin.backend) != origin.fingerprint:
            return Refused("another version of its generator made it")
        return _generated(origin)

    return source_of


def _generated(origin: Origin) -> KernelSource | Refused:
    choices = read_choices(origin.choices)
    if choices is None:
        return Refused(f"its choices {origin.choices!r} are not known")
    variants = generate.sources_of(origin.signature, choices)
    return variants if isinstance(variants, Refused) else KernelSource(origin.signature, variants)


def not_interpreted(kernel: KernelSource) -> str:
    """Say why Triton's interpreter runs no variant of a kernel; empty if it may run one."""
    if find_spec("triton") is None:
        return "triton is not installed, whose interpreter would run it"
    if all(map(is_gluon, kernel.variants)):
        return "it is in Gluon, which has no interpreter"
    return ""


def interpreted_way(kernel: KernelSource, level: Level) -> str:
    """Name all that the verdict on an interpreted kernel depends on but its body."""
    digest = hashlib.sha256(repr(kernel).encode()).hexdigest()
    versions = (f"{name} {version(name)}" for name in ("triton", "numpy"))
    return f"interpreted, {level}: {digest}, {', '.join(versions)}"


def is_gluon(variant: VariantSource) -> bool:
    """Return whether a launch of a variant is in Gluon."""
    return any(step.is_gluon for step in variant.steps)


def write_source(kernel: KernelSource, path: Path) -> None:
    """Write a source for `kernels/interpreted.py`, which a process of ours reads."""
    path.write_bytes(pickle.dumps(kernel))
