"""CUDA kernels made by hand, and what the launches of any kernel should be.

The images are texts that the made-up driver of fake_cuda.cc reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ortkit.kernels.cuda import ONE_BLOCK, Argument, CeilDiv, CudaKernel, Image, Step, Variant
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.targets.target import Target
from tests.kernels.fused_model import tensor

ADD = '<opset_import: ["" : 20]> f (X, W) => (Y) { Y = Add (X, W) }'
S0, S1 = Extent(1, ("s0",)), Extent(1, ("s1",))


def add_rows(name: str = "add_rows") -> RegionSignature:
    """Y [a, b] = X [a, b] + W [b]."""
    inputs = (tensor("X", "a", "b"), tensor("W", "b"))
    return RegionSignature(name, ADD, inputs, (tensor("Y", "a", "b"),))


def add_step(entry: str = "add") -> Step:
    arguments = [Argument("tensor", index) for index in range(3)]
    arguments += [Argument("size64", extent=S0), Argument("size32", extent=S1)]
    grid = (CeilDiv(S1, 4), CeilDiv(S0), ONE_BLOCK)
    return Step(entry, grid, 128, 0, tuple(arguments))


def cuda_kernel(
    folder: Path,
    signature: RegionSignature,
    variants: Sequence[Variant] = (),
    architectures: Sequence[int] = (80, 90),
    padding: int = 0,
) -> CudaKernel:
    """A kernel with a cubin for each architecture and PTX from the first one.

    Args:
        folder: For the images.
        signature: What it stands for.
        variants: By default one that is launched as `add_step` says.
        architectures: The first gets PTX too.
        padding: Bytes that are added to each cubin.
    """
    folder.mkdir(exist_ok=True)
    variants = variants or (Variant((), False, (add_step(),)),)
    kinds = [*((one, False) for one in architectures), (architectures[0], True)]
    images = tuple(
        Image(item, is_ptx, number, place, _write(folder, step.entry, item, is_ptx, padding))
        for number, variant in enumerate(variants)
        for place, step in enumerate(variant.steps)
        for item, is_ptx in kinds
    )
    level = ",".join(f"sm_{architecture}" for architecture in architectures)
    target = Target("cuda", level).resolved()
    return CudaKernel(signature.key, "tests", target, tuple(variants), images, 0.0)


def _write(folder: Path, entry: str, architecture: int, is_ptx: bool, padding: int) -> Path:
    kind = "ptx" if is_ptx else "cubin"
    path = folder / f"{entry}_{architecture}.{kind}"
    content = f"{kind} {architecture} {entry}\0".encode()
    path.write_bytes(content + b"\1" * (0 if is_ptx else padding))
    return path


@dataclass(frozen=True)
class Case:
    """One run: the named sizes in their order, and the tensors that begin elsewhere."""

    sizes: tuple[int, ...]
    is_aligned: bool = True


def size_of(extent: Extent, case: Case) -> int:
    return extent.factor * prod(case.sizes[int(symbol[1:])] for symbol in extent.symbols)


def expected_launches(
    kernel: CudaKernel, case: Case, tensors: int, runnable: Mapping[int, bool]
) -> list[str] | None:
    """Say what the driver should be asked for, a line each; None if nothing holds."""
    for number, variant in enumerate(kernel.variants):
        sizes = [(size_of(condition.extent, case), condition) for condition in variant.conditions]
        holds = all(
            size % item.divisible_by == 0 and (item.at_most is None or size <= item.at_most)
            for size, item in sizes
        )
        if not holds or not runnable[number] or (variant.aligned and not case.is_aligned):
            continue
        lines = []
        for step in variant.steps:
            blocks = [-(-size_of(one.extent, case) // one.divisor) for one in step.grid]
            if 0 in blocks:
                continue
            values = [_value(argument, variant, case, tensors) for argument in step.arguments]
            shape = "x".join(map(str, blocks))
            numbers = " ".join([*values, "0", "0"])
            lines.append(f"{step.entry} {shape} {step.threads} {step.shared_bytes} {numbers}")
        return lines
    return None


def _value(argument: Argument, variant: Variant, case: Case, tensors: int) -> str:
    if argument.kind == "tensor":
        assert argument.index < tensors
        return f"t{argument.index}"
    if argument.kind == "scratch":
        return "scratch" if size_of(variant.scratch[argument.index], case) else "0"
    if argument.kind == "null":
        return "0"
    assert argument.extent is not None
    return str(size_of(argument.extent, case))
