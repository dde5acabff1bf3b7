"""The parameters of a kernel: tensors, and the sizes that its positions are computed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ortkit.kernels.cuda import Argument, rename_extent
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.configs import MULTIPLE, Config

#: numpy's names -> Triton's names of pointers; a bool is a byte.
POINTERS = {
    "bool": "*u8",
    "int8": "*i8",
    "int16": "*i16",
    "int32": "*i32",
    "int64": "*i64",
    "uint8": "*u8",
    "uint16": "*u16",
    "uint32": "*u32",
    "uint64": "*u64",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
    "float8_e4m3fn": "*fp8e4nv",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Args:
        name: In the source.
        type: As Triton's signatures have it.
        is_multiple: Whether it is known as a multiple of 16.
        argument: What it is called with.
        more: What else it is called with: a map of a tensor also has its sizes and strides.
        box: Of a map, what is copied at once.
    """

    name: str
    type: str
    is_multiple: bool
    argument: Argument
    more: tuple[Argument, ...] = ()
    box: tuple[int, ...] = ()

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """All that a launch gets for it."""
        return (self.argument, *self.more)


@dataclass
class Parameters:
    """Parameters in the order in which they are asked for, tensors first."""

    config: Config
    symbols: Sequence[str]
    dtypes: Sequence[str]
    """Of all tensors, inputs first."""
    inputs: int
    sizes: dict[Extent, str] = field(default_factory=dict)
    blocks: dict[int, str] = field(default_factory=dict)
    """Of scratch memory: their places -> what they hold."""

    def tensor(self, index: int) -> str:
        """Return the name of a tensor: x0, x1 ... for inputs, y0, y1 ... for outputs."""
        return f"x{index}" if index < self.inputs else f"y{index - self.inputs}"

    def scratch(self, index: int, dtype: str) -> str:
        """Return the name of a block of scratch memory."""
        self.blocks[index] = dtype
        return f"s{index}"

    def size(self, extent: Extent) -> str:
        """Return a size as a number or a parameter."""
        if extent.static is not None:
            return str(extent.static)
        return self.sizes.setdefault(extent, f"n{len(self.sizes)}")

    def all(self) -> tuple[Parameter, ...]:
        """Return all parameters there are by now."""
        tensors = [
            Parameter(
                self.tensor(index),
                POINTERS[dtype],
                self.config.is_aligned,
                Argument("tensor", index),
            )
            for index, dtype in enumerate(self.dtypes)
        ]
        blocks = [
            Parameter(f"s{index}", POINTERS[dtype], True, Argument("scratch", index))
            for index, dtype in sorted(self.blocks.items())
        ]
        kind, width = ("size64", "i64") if self.config.is_wide else ("size32", "i32")
        sizes = [
            Parameter(
                name,
                width,
                self._is_multiple(extent),
                Argument(kind, extent=rename_extent(extent, self.symbols)),  # type: ignore[arg-type]
            )
            for extent, name in self.sizes.items()
        ]
        return (*tensors, *blocks, *sizes)

    def _is_multiple(self, extent: Extent) -> bool:
        return extent.factor % MULTIPLE == 0 or any(
            extent.divided_by(known) is not None for known in self.config.multiples
        )
