"""CUDA kernels as data: images for GPU architectures, and how to launch them.

A kernel is one or more steps (launches), one after the other on one stream, with scratch memory
between them, in one or more variants: the first whose conditions hold is launched. Sizes are
`ortkit.kernels.sizes.Extent`s whose symbols are called `s0`, `s1` ...: their place in
`ortkit.kernels.sizes.symbols_of` of all tensors, inputs first.

An entry point takes the step's arguments in their order and then two pointers that Triton keeps
for scratch of its own; they are null, as no kernel with a need for such scratch is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ortkit.kernels.sizes import ONE, Extent
from ortkit.targets.cuda import PTX_ARCHITECTURE, architectures_of
from ortkit.targets.target import Target

#: Bytes of shared memory that a block may ask for.
SHARED_BYTES = {
    80: 163 << 10,
    86: 99 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    103: 227 << 10,
    120: 99 << 10,
}
#: CUDA's bounds of a grid.
MAX_GRID = (2**31 - 1, 65535, 65535)
#: The shim's bound of a step's arguments.
MAX_ARGUMENTS = 120

_BODY = "the function body"

ArgumentKind = Literal["tensor", "scratch", "size32", "size64", "null", "number", "map"]


@dataclass(frozen=True)
class CeilDiv:
    """A number of blocks: `extent` / `divisor`, rounded up."""

    extent: Extent
    divisor: int = 1


#: A dim of a grid that is not used.
ONE_BLOCK = CeilDiv(ONE)


@dataclass(frozen=True)
class Argument:
    """One parameter of an entry point.

    Args:
        kind: "tensor": the data pointer of tensor number `index`, inputs first; "scratch": of
            scratch block number `index` of the variant; "size32", "size64": `extent` as a signed
            integer of that width (a variant's conditions see to it that it fits); "null": a null
            pointer; "number": the value of tensor number `index`, an attribute, which the host
            has.
    """

    kind: ArgumentKind
    index: int = 0
    extent: Extent | None = None


@dataclass(frozen=True)
class TensorMap:
    """A tensor, or heads in one, as the device's copies of boxes see it (TMA).

    Args:
        tensor: Its place, inputs first; of the scratch block n, which has elements of the first
            tensor's type, it is -1 - n.
        dims: Outermost first, at most five.
        strides: In bytes, multiples of 16, of all dims but the innermost, which is dense.
        box: What one copy moves, as long as `dims`, each at most 256.
        first: Bytes from the tensor's beginning, a multiple of 16.
        swizzle: Bytes of a row of the box that are mixed in shared memory: 0, 32, 64 or 128.
    """

    tensor: int
    dims: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    box: tuple[int, ...]
    first: int = 0
    swizzle: int = 128


@dataclass(frozen=True)
class Product:
    """What a launch computes, as the library of matrix products on the device takes it.

    y = x w^T in half precision, sums in float32.

    Args:
        x: Number of the tensor [rows, depth], inputs first; of the scratch block n, which has
            elements of the first tensor's type, it is -1 - n.
        weight: Number of the tensor [columns, depth], inputs first; of the scratch block n, which
            has elements of x's type, it is -1 - n.
        y: The same of [rows, columns].
        rows: M.
        columns: N.
        depth: K.
    """

    x: int
    weight: int
    y: int
    rows: Extent
    columns: int
    depth: int


@dataclass(frozen=True)
class Step:
    """One launch. It is left out where a dim of its grid is 0.

    Args:
        entry: The function's name in every image of the step.
        grid: Blocks along x, y and z, within `MAX_GRID` wherever the variant's conditions hold.
        threads: Threads of a block, along x.
        shared_bytes: Dynamic shared memory, the same in every image; above 48 KiB the launch has
            to opt in (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES).
        arguments: All parameters but the two scratch pointers at the end.
        maps: What arguments of kind "map" are, by their numbers.
        product: That the shim has cuBLAS compute instead where ONNX Runtime has it; None for none.
    """

    entry: str
    grid: tuple[CeilDiv, CeilDiv, CeilDiv]
    threads: int
    shared_bytes: int
    arguments: tuple[Argument, ...]
    maps: tuple[TensorMap, ...] = ()
    product: Product | None = None


@dataclass(frozen=True)
class Condition:
    """`extent` is a multiple of `divisible_by` and not more than `at_most` (None: no bound)."""

    extent: Extent
    divisible_by: int = 1
    at_most: int | None = None

    def follows_from(self, other: Condition) -> bool:
        """Say whether this one, a bound, holds wherever another one does."""
        if self.at_most is None or other.at_most is None:
            return False
        return self.extent == other.extent and other.at_most <= self.at_most


@dataclass(frozen=True)
class Variant:
    """One way to compute the region.

    Args:
        conditions: All must hold.
        aligned: Whether the data of every tensor must also start at a multiple of 16 bytes.
            Scratch does in any case.
        steps: Launched in this order.
        scratch: Bytes of each block of scratch memory; not initialised.
    """

    conditions: tuple[Condition, ...]
    aligned: bool
    steps: tuple[Step, ...]
    scratch: tuple[Extent, ...] = ()


@dataclass(frozen=True)
class Image:
    """The code of one step: a module of its own, as cubin or PTX.

    Args:
        architecture: Of `ARCHITECTURES`. A cubin runs on GPUs of the same major and the same or a
            higher minor capability, PTX on any from it on.
        is_ptx: PTX is text, and ends with a zero byte.
        variant: The place of its variant in the kernel.
        step: The place of its step in the variant.
        path: The file.
        waits: Whether it lets the next launch begin first, and then waits for the one before, so
            that in a CUDA graph it may begin while that ends.
    """

    architecture: int
    is_ptx: bool
    variant: int
    step: int
    path: Path
    waits: bool = False


@dataclass(frozen=True)
class LeftOut:
    """An architecture that a kernel, or a variant that it can do without, did not compile for.

    Args:
        architecture: Of `ARCHITECTURES`; for `PTX_ARCHITECTURE` there is no PTX either.
        reason: What the toolchain said, one line.
        is_variant: Whether the other variants are there for the architecture.
    """

    architecture: int
    reason: str
    is_variant: bool = False


@dataclass(frozen=True)
class CudaKernel:
    """A compiled region on disk: what the linker and the shim need.

    Args:
        key: The signature's.
        backend: The backend's name.
        target: Of kind "cuda", resolved.
        variants: The first whose conditions hold is launched; the last one may have conditions
            too, and where none holds the kernel cannot run.
        images: For every step of every variant one per architecture of the target that is not
            left out, and the PTX; of a variant for some architectures only those. Images of equal
            bytes share a file.
        compile_seconds: 0 when it came from the cache.
        left_out: What it, or one of its variants, did not compile for, in numeric order.
    """

    key: str
    backend: str
    target: Target
    variants: tuple[Variant, ...]
    images: tuple[Image, ...]
    compile_seconds: float
    left_out: tuple[LeftOut, ...] = ()

    def runs_on(self, architecture: int) -> str:
        """Say what a GPU of an architecture runs, as the shim chooses it."""
        fitting = {
            number
            for number, variant in enumerate(self.variants)
            if all(step.shared_bytes <= SHARED_BYTES[architecture] for step in variant.steps)
        }
        found = [
            image
            for image in self.images
            if image.architecture <= architecture and image.variant in fitting
        ]
        cubins = [
            item.architecture
            for item in found
            if not item.is_ptx and item.architecture // 10 == architecture // 10
        ]
        if cubins:
            return f"the code for sm_{max(cubins)}"
        return "the PTX" if any(one.is_ptx for one in found) else _BODY

    def left_out_lines(self) -> tuple[str, ...]:
        """Say for each architecture that is left out why, and what a GPU of it runs instead."""
        asked = architectures_of(self.target.level)
        lines = []
        for left_out in self.left_out:
            name, what = f"sm_{left_out.architecture}", left_out.reason
            if left_out.is_variant:
                lines.append(f"{what}; a GPU of {name} runs a slower variant")
                continue
            if left_out.architecture in asked:
                what += f"; a GPU of {name} runs {self.runs_on(left_out.architecture)}"
            if left_out.architecture == PTX_ARCHITECTURE:
                what += f"; without PTX, GPUs that have no code of their own run {_BODY}"
            lines.append(what)
        return tuple(lines)


def grid_bounds(grid: Sequence[tuple[Extent, int]]) -> tuple[Condition, ...]:
    """Return what keeps y and z of a grid within CUDA's bounds, where known sizes do not.

    Args:
        grid: What is divided by what, rounded up, along x, y and z.
    """
    bounds = [
        Condition(extent, at_most=most * divisor)
        for (extent, divisor), most in zip(grid, MAX_GRID, strict=True)
        if most < MAX_GRID[0]
    ]
    return tuple(
        bound
        for bound in bounds
        if bound.extent.static is None or bound.extent.static > (bound.at_most or 0)
    )


def rename_extent(extent: Extent, symbols: Sequence[str]) -> Extent:
    """Return the same extent with `s<i>` for `symbols[i]`."""
    names = {symbol: f"s{index}" for index, symbol in enumerate(symbols)}
    return Extent(extent.factor, tuple(sorted(names[symbol] for symbol in extent.symbols)))
