"""Triton sources to cubins and PTX, on any machine. Equal input and toolchain give equal bytes."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortkit.errors import InternalError, KernelError
from ortkit.kernels.cuda import SHARED_BYTES, Condition, Image, LeftOut, Variant
from ortkit.kernels.triton.assembler import is_wrong, without_pairs
from ortkit.kernels.triton.source import StepSource, VariantSource
from ortkit.kernels.triton.unsigned import is_unsigned, unsigned_ptx
from ortkit.targets.cuda import PTX_ARCHITECTURE

#: PTX of CUDA 12.0, so that drivers from then on take it.
_PTX_VERSION = 80
#: Copies of boxes are written in that of CUDA 12.7; such kernels are for one architecture, whose
#: cubin any driver takes.
_PTX_VERSION_OF_MAPS = 86
#: Products of uint8 and int8 by warp groups are of CUDA 12.4; the cubin alone is of sm_90.
_HOPPER = 90
#: Numbers in eight bits are converted on sm_89 in that of CUDA 12.1: there is a cubin alone, too.
_ADA, _PTX_VERSION_OF_ADA = 89, 81
#: From there on PTX is newer in any case.
_NEWER_PTX_ARCHITECTURE = 100
#: Launches can wait for the one before from there on.
_WAITS_FROM = 90
_ANNOUNCE, _WAIT = "    gdc_launch_dependents()", "    gdc_wait()"
_WARP = 32
#: Bytes that are mixed -> as Triton and CUDA have them.
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


@dataclass(frozen=True)
class Compiled:
    """One step for one architecture.

    Args:
        cubin: The code.
        ptx: What it was assembled from.
        shared_bytes: Dynamic shared memory.
        waits: Whether the code waits for the launch before it; see `Image`.
    """

    cubin: bytes
    ptx: str
    shared_bytes: int
    waits: bool = False


@dataclass(frozen=True)
class Images:
    """All code of a kernel.

    Args:
        variants: As they are launched.
        images: The files.
        left_out: The architectures that some step did not compile for; they have no image, or
            where that step is an optional variant's no image of that.
    """

    variants: tuple[Variant, ...]
    images: tuple[Image, ...]
    left_out: tuple[LeftOut, ...]


def write_images(
    sources: Sequence[VariantSource],
    architectures: Sequence[int],
    folder: Path,
    *,
    has_ptx: bool = True,
) -> Images:
    """Compile all steps of all variants for all architectures, and the PTX, into `folder`.

    An architecture that any step fails on is left out as a whole, unless the variant is optional:
    which one a run takes is not known before, and each has to be there. A variant that is made
    for none of the architectures is none.

    Raises:
        KernelError: Triton or its assembler failed, for every architecture.
    """
    made: dict[int, dict[int, list[Compiled]]] = {}
    failed: dict[int, KernelError] = {}
    missing: list[LeftOut] = []
    for architecture in sorted({*architectures, *((PTX_ARCHITECTURE,) if has_ptx else ())}):
        try:
            made[architecture], refused = _compile_variants(sources, architecture, folder)
            if refused is not None and architecture in architectures:
                missing.append(LeftOut(architecture, refused.problem, is_variant=True))
        except KernelError as error:
            failed[architecture] = error
    # PTX alone is enough: it runs on every GPU from its architecture on.
    if not made:
        raise next(iter(failed.values()))
    images: list[Image] = []
    variants: list[Variant] = []
    for number, source in enumerate(sources):
        by_architecture = {one: found[number] for one, found in made.items() if number in found}
        own = [
            image
            for architecture, steps in by_architecture.items()
            for index, step in enumerate(steps)
            for image in _images(step, architecture, architectures, len(variants), index, folder)
        ]
        if not own:
            continue
        images += own
        shared = [
            max(steps[index].shared_bytes for steps in by_architecture.values())
            for index in range(len(source.steps))
        ]
        variants.append(source.variant(shared))
    # What is made for some architectures only may be left without any.
    if not variants and failed:
        raise next(iter(failed.values()))
    missing += [LeftOut(item, error.problem) for item, error in failed.items()]
    left_out = sorted(missing, key=lambda one: one.architecture)
    return Images(tuple(variants), tuple(images), tuple(left_out))


def _compile_variants(
    sources: Sequence[VariantSource], architecture: int, folder: Path
) -> tuple[dict[int, list[Compiled]], KernelError | None]:
    """Return the steps of the variants, by their numbers, that there are for an architecture.

    Also returns what the first optional one failed with, None if none did.

    Raises:
        KernelError: Triton or its assembler failed on one that has to be there.
    """
    made: dict[int, list[Compiled]] = {}
    refused: KernelError | None = None
    takes_aligned = takes_all = False
    for number, source in enumerate(sources):
        # What no run takes is not made.
        if takes_all or (takes_aligned and source.is_aligned):
            continue
        if source.architectures is not None and architecture not in source.architectures:
            continue
        try:
            made[number] = [compile_step(step, architecture, folder) for step in source.steps]
        except KernelError as error:
            if not source.is_optional:
                raise
            refused = refused or error
        else:
            takes_aligned = takes_aligned or _takes_any(source)
            takes_all = takes_all or (_takes_any(source) and not source.is_aligned)
    return made, refused


def _takes_any(source: VariantSource) -> bool:
    """Say whether a variant takes all sizes; the shim loads none of those after it."""
    is_bound = any(
        condition.extent.static is None or not _holds(condition) for condition in source.conditions
    )
    return not is_bound and not any(map(_may_be_empty, source.steps))


def _holds(condition: Condition) -> bool:
    size = condition.extent.static
    assert size is not None
    return size % condition.divisible_by == 0 and (
        condition.at_most is None or size <= condition.at_most
    )


def _may_be_empty(step: StepSource) -> bool:
    """Say whether a map may be of a tensor without elements, of which there is none."""
    return any(not dim.static for map_ in step.maps for dim in map_.dims)


def _images(
    step: Compiled,
    architecture: int,
    architectures: Sequence[int],
    variant: int,
    index: int,
    folder: Path,
) -> Iterator[Image]:
    """Write the code of a step: as PTX, and as what was asked for."""
    if architecture == PTX_ARCHITECTURE:
        path = _written(folder, "ptx", step.ptx.encode() + b"\0")
        yield Image(architecture, True, variant, index, path)
    if architecture in architectures:
        path = _written(folder, "cubin", step.cubin)
        yield Image(architecture, False, variant, index, path, step.waits)


def compile_step(step: StepSource, architecture: int, folder: Path) -> Compiled:
    """Compile one step for one architecture; the source and Triton's cache go into `folder`.

    Raises:
        KernelError: Triton or its assembler failed, or the kernel asks for what it is not given.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    constants: dict[str, int | bool | str] = {
        "enable_fp_fusion": step.fp_fusion,
        "num_warps": step.warps,
    }
    if step.stages is not None:
        constants["num_stages"] = step.stages
    if step.registers is not None:
        constants["maxnreg"] = step.registers
    # Without a version PTX is as new as the assembler is. Triton 3.9 leaves eviction policies out
    # of PTX up to that of CUDA 13.2; the cubin alone is of sm_90.
    is_newest = architecture == _HOPPER and step.has_eviction_policy
    if architecture < _NEWER_PTX_ARCHITECTURE and not is_newest:
        plain = _PTX_VERSION_OF_ADA if architecture == _ADA else _PTX_VERSION
        is_newer = step.maps or (architecture == _HOPPER and is_unsigned(step.text))
        constants["ptx_version"] = _PTX_VERSION_OF_MAPS if is_newer else plain
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, parameter in enumerate(step.parameters)
        if parameter.is_multiple
    }
    waits = architecture >= _WAITS_FROM
    with _failures(step, architecture), _surroundings(folder):
        source = (_gluon_source() if step.is_gluon else ASTSource)(
            fn=_function(step, folder, waits=waits),
            signature={parameter.name: parameter.type for parameter in step.parameters},
            attrs=attributes,
        )
        target = GPUTarget("cuda", architecture, _WARP)
        made: Any = triton.compile(source, target=target, options=constants)
        release = get_ptxas(architecture).version
        text = unsigned_ptx(made.asm["ptx"]) if is_unsigned(step.text) else made.asm["ptx"]
        if is_wrong(text, release):
            text = without_pairs(text)
        if text != made.asm["ptx"]:
            given = _written(folder, "ptx", text.encode())
            options = constants | {"ir_override": str(given)}
            made = triton.compile(source, target=target, options=options)
        if is_wrong(made.asm["ptx"], release):
            raise RuntimeError("it needs the ptxas of CUDA 13.1: older ones add pairs wrong")
        asked = made.metadata
        if asked.num_warps != step.warps + step.workers or asked.num_ctas != 1:
            raise RuntimeError("it is to be launched in another way than it was written for")
        if asked.global_scratch_size or asked.profile_scratch_size:
            raise RuntimeError("it asks for scratch memory")
        if (shared := int(asked.shared)) > (most := SHARED_BYTES[architecture]):
            raise RuntimeError(f"it needs {shared} bytes of shared memory, a block has {most}")
        _check_maps(step, getattr(asked, "tensordesc_meta", None) or ())
        return Compiled(made.asm["cubin"], made.asm["ptx"], shared, waits)


def _gluon_source() -> Any:
    """Return the class of sources in Gluon, which older Tritons have elsewhere or not at all."""
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def _check_maps(step: StepSource, asked: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless the maps of tensors are as the code has them."""
    boxes = [(map_.box, _SWIZZLES[map_.swizzle]) for map_ in step.maps]
    if boxes != [(tuple(item["block_size"]), item["swizzle"]) for item in asked]:
        raise RuntimeError(f"it takes other boxes of its tensors: {asked}")


def waiting_text(step: StepSource) -> str:
    """Return a step's module with an entry that waits, and lets the next launch begin.

    Blocks of the next launch come once all of this one have said so, and wait until it has ended,
    as its own wait for the launch before. Where they come early, several may share a
    multiprocessor while others are idle. A resnet50 of one image took 0.38 ms so, 0.30 where
    products and convolutions say it at their end, and 0.31 without (H200, 2026-11). T5 with its
    many small kernels took 0.57, 0.66 and 0.73.
    """
    if step.early_text is not None:
        return step.early_text
    before, after = (f"{_ANNOUNCE}\n{_WAIT}", "") if step.is_light else (_WAIT, f"\n{_ANNOUNCE}")
    head = re.compile(rf"^def {re.escape(step.entry)}\(.*\):$", re.MULTILINE)
    text, count = head.subn(lambda found: f"{found[0]}\n{before}", step.text.rstrip())
    if count != 1:
        raise InternalError(f"the text of {step.entry} has {count} entries of that name")
    imports = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
    return f"{imports}\n{text}{after}\n"


def _function(step: StepSource, folder: Path, *, waits: bool) -> Any:
    """Return the step as Triton's function, which reads its source again from the file."""
    text = waiting_text(step) if waits else step.text
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, step.entry)


def _written(folder: Path, ending: str, content: bytes) -> Path:
    path = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
    path.write_bytes(content)
    return path


@contextmanager
def _surroundings(folder: Path) -> Iterator[None]:
    """Keep Triton's own cache in the folder, and paths out of what it writes."""
    ours = {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_INTERPRET": "0",
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _failures(step: StepSource, architecture: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Triton's own classes, and whatever LLVM throws
        last = str(error).strip().splitlines()[-1:]
        raise KernelError(
            f"Triton failed on a kernel for sm_{architecture}: {' '.join(last)}", where=step.entry
        ) from error
