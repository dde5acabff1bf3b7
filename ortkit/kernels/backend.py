"""What a kernel compiler looks like to the rest of ortkit, and what it hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.refusal import Refused
from ortkit.targets.target import Target

if TYPE_CHECKING:
    from ortkit.kernels.cuda import CudaKernel


@dataclass(frozen=True)
class Launch:
    """How a kernel is called: its work in units that do not depend on each other.

    Equal signatures share a kernel whatever their sizes are called, so these stand here as `s0`,
    `s1` ...: their place in `ortkit.kernels.sizes.symbols_of`.

    Args:
        units: Units are numbered over the product of these sizes.
        points: The points of one unit, for its cost.
        picoseconds_per_point: On one core of a machine of 2024.
        inplace: Pairs of an input and an output, by position, that may share memory.
        shared_nanoseconds: Fixed cost of all units, however many there are: weights are read from
            memory once.
        slice_picoseconds: Per point of a unit, what each slice of units takes in addition, such
            as to round rows that all its units read.
        streams_constants: Whether a run of one point is bound by reading constants from memory.
            Sessions then copy them to huge pages.
    """

    units: tuple[Extent, ...]
    points: Extent
    picoseconds_per_point: int
    inplace: tuple[tuple[int, int], ...] = ()
    shared_nanoseconds: int = 0
    slice_picoseconds: int = 0
    streams_constants: bool = False

    def numbered(self, symbols: Sequence[str]) -> Launch:
        """Return the same with `s<i>` for `symbols[i]`."""
        units = tuple(unit.numbered(symbols) for unit in self.units)
        return replace(self, units=units, points=self.points.numbered(symbols))


@dataclass(frozen=True)
class Kernel:
    """A compiled region on disk: what the linker and the shim need.

    Args:
        key: The signature's.
        backend: The backend's name.
        target: With its level resolved, never "native".
        artifact: An object file.
        symbol: The C function in it, `int32_t (void* tensor..., int64_t size..., int64_t begin,
            int64_t end)`: whole tensors, inputs first; the sizes of
            `ortkit.kernels.sizes.symbols_of`; the units begin .. end - 1. It is serial, and
            writes the same however the units are cut.
        launch: How it is called.
        compile_seconds: 0 when it came from the cache.
    """

    key: str
    backend: str
    target: Target
    artifact: Path
    symbol: str
    launch: Launch
    compile_seconds: float
    packs: tuple[PackedInput, ...] = ()
    """Inputs that it takes in another layout."""

    def left_out_lines(self) -> tuple[str, ...]:
        """Say what it is not compiled for: nothing, as it has one level."""
        return ()

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """Itself and what packs its inputs: all that is linked."""
        return (self, *(pack.kernel for pack in self.packs))


@dataclass(frozen=True)
class PackedInput:
    """An input that a kernel takes as a function of its own lays it out.

    Args:
        input: Its place among the kernel's inputs.
        signature: Of the function: the input alone.
        kernel: The function; its tensors are the input and the packed one.
        dtype: Of the packed tensor.
        shape: Of it: what is divided by what, rounded up. Sizes are called `s<i>`, their place in
            `ortkit.kernels.sizes.symbols_of` of the signature.
    """

    input: int
    signature: RegionSignature
    kernel: Kernel
    dtype: str
    shape: tuple[tuple[Extent, int], ...]


class KernelBackend(Protocol):
    """A compiler from signatures to kernels. Importing it must not import its toolchain."""

    @property
    def name(self) -> str:
        """The name in the catalog."""
        ...

    def available(self) -> Refused | None:
        """Say why the toolchain cannot be used here; None means that it can."""
        ...

    def fingerprint(self) -> str:
        """Name everything but signature and target that decides what `compile` writes."""
        ...

    def accepts(self, signature: RegionSignature, target: Target) -> Refused | None:
        """Say why `compile` may not be tried; None means that it may. Compiles nothing."""
        ...

    def load(self) -> None:
        """Import the toolchain, so that processes forked after this have it."""
        ...

    def source(self, signature: RegionSignature, target: Target) -> dict[str, str]:
        """Return the generated code of an accepted region to read, by the endings of its files.

        It is what `compile` compiles; comments begin with #. May load the toolchain.
        """
        ...

    def compile(
        self, signature: RegionSignature, target: Target, folder: Path
    ) -> Kernel | CudaKernel:
        """Compile and write the code into `folder`.

        Raises:
            KernelError: The toolchain failed; the message holds its last lines of output.
        """
        ...
