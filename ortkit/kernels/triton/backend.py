"""The backend `triton`: importable without triton, which is loaded by the first compilation."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ortkit.errors import InternalError, KernelError
from ortkit.kernels.build.sources import ending
from ortkit.kernels.cuda import MAX_ARGUMENTS, CudaKernel
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.template_files import template_files
from ortkit.kernels.triton.choices import read_choices
from ortkit.kernels.triton.configs import kind_of, parameters_of
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.hand import PACKAGE
from ortkit.kernels.triton.source import VariantSource
from ortkit.kernels.triton.space import space_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused
from ortkit.targets.catalog import traits_of
from ortkit.targets.cuda import architectures_of
from ortkit.targets.target import Target


@dataclass(frozen=True)
class TritonBackend:
    """Regions of one iteration space, with reductions local to its rows, and templates'."""

    name: str = "triton"

    def available(self) -> Refused | None:
        """Say whether triton is installed; does not load it."""
        if find_spec("triton") is None:
            return Refused("triton is not installed (pip install triton)")
        return None

    def fingerprint(self) -> str:
        """Name triton's version and the content of the code generator."""
        here = Path(__file__).parent
        digest = hashlib.sha256()
        operators = sorted((here.parent / "region").rglob("*.py"))  # and how bodies are read
        layouts = sorted((here.parent / "layouts").rglob("*.py"))
        sources = (*sorted(here.rglob("*.py")), *operators, *layouts, *template_files(PACKAGE))
        for source in (*sources, here.parent / "sizes.py", here.parent / "cuda.py"):
            digest.update(source.read_bytes())
        digest.update(" ".join(traits_of("cuda").templates).encode())
        return f"{self.name} {_version('triton')} {digest.hexdigest()[:16]}"

    def accepts(self, signature: RegionSignature, target: Target) -> Refused | None:
        """Accept what has a hand-written kernel, or is one space of points."""
        if self.name not in target.traits.backends:
            return Refused(f"triton kernels for {target.kind} are not made")
        found = template_for(signature) or space_of(signature)
        if isinstance(found, Refused):
            return found
        only: tuple[int, ...] = getattr(found, "architectures", ())
        if only and not set(only) & set(architectures_of(target.level)):
            return Refused(f"a kernel for sm_{', sm_'.join(map(str, only))}")
        return None

    def load(self) -> None:
        """Import triton and what compiles with it."""
        import_module("ortkit.kernels.triton.build")
        import_module("triton")
        import_module("triton.compiler")
        import_module("triton.backends.nvidia.compiler")

    def source(self, signature: RegionSignature, target: Target) -> dict[str, str]:  # noqa: ARG002
        """Return a Python module for each launch of each variant; loads no toolchain.

        Raises:
            InternalError: `accepts` would refuse.
        """
        return {
            ending(number, index, "py"): step.text
            for number, variant in enumerate(_sources(signature))
            for index, step in enumerate(variant.steps)
        }

    def parameters(
        self, signature: RegionSignature, target: Target
    ) -> Mapping[str, tuple[int, ...]]:
        """Return what the generator can choose; nothing for a hand-written kernel."""
        if self.name not in target.traits.backends or template_for(signature) is not None:
            return {}
        space = space_of(signature)
        return {} if isinstance(space, Refused) else parameters_of(space)

    def kind(self, signature: RegionSignature, target: Target) -> str:
        """Return what tiles the kernel has, empty if nothing can be chosen."""
        space = space_of(signature)
        is_free = bool(self.parameters(signature, target))
        return kind_of(space) if is_free and not isinstance(space, Refused) else ""

    def is_choice(self, choices: str) -> bool:
        """Say whether a text names choices of this generator."""
        return read_choices(choices) is not None

    def compile(self, signature: RegionSignature, target: Target, folder: Path) -> CudaKernel:
        """Compile all variants for all architectures of the target into `folder`.

        Raises:
            InternalError: `accepts` would refuse.
            KernelError: Triton failed for every architecture, or there are too many parameters.
        """
        return self.compile_as(signature, target, folder, "")

    def compile_as(
        self,
        signature: RegionSignature,
        target: Target,
        folder: Path,
        choices: str,
        *,
        is_trial: bool = False,
    ) -> CudaKernel:
        """Compile all variants with some of the generator's parameters given.

        For a trial: those for aligned tensors, without PTX.

        Raises:
            InternalError: `accepts` would refuse, or `is_choice` would not hold.
            KernelError: Triton failed for every architecture, or there are too many parameters.
        """
        from ortkit.kernels.triton.build import write_images

        started = time.perf_counter()
        target = target.resolved()
        sources = _sources(signature, choices)
        most = max(len(step.parameters) for source in sources for step in source.steps)
        if most > MAX_ARGUMENTS:
            raise KernelError(f"a kernel of {most} parameters, at most {MAX_ARGUMENTS} are passed")
        if is_trial:
            sources = (
                tuple(variant_source for variant_source in sources if variant_source.is_aligned)
                or sources
            )
        made = write_images(sources, architectures_of(target.level), folder, has_ptx=not is_trial)
        seconds = time.perf_counter() - started
        return CudaKernel(
            signature.key, self.name, target, made.variants, made.images, seconds, made.left_out
        )


def _sources(signature: RegionSignature, choices: str = "") -> tuple[VariantSource, ...]:
    chosen = read_choices(choices)
    if chosen is None:
        raise InternalError(f"the choices {choices!r} are none of the backend triton")
    found = sources_of(signature, chosen)
    if isinstance(found, Refused):
        raise InternalError(f"region {signature.op_type} was not accepted and yet compiled")
    return found


def _version(distribution: str) -> str:
    try:
        return f"{distribution}-{version(distribution)}"
    except PackageNotFoundError:
        return f"{distribution}-unknown"
