"""Variants of hand-written kernels: a kernel's text, and a function around it with what is known.

The text is a module of Triton; the function around one of its own has the parameters that a
generated kernel has, and passes everything else on as it stands in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ortkit.errors import InternalError
from ortkit.kernels.cuda import Argument, Condition, Product, TensorMap, rename_extent
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, symbols_of
from ortkit.kernels.triton.maps import map_parameter, tensor_map
from ortkit.kernels.triton.parameters import POINTERS, Parameter
from ortkit.kernels.triton.source import StepSource, VariantSource

PACKAGE = "ortkit.custom_ops.triton"
_MULTIPLE = 16
#: How launches begin: where they do nothing before their wait, and where they do.
_STARTS = "launch_plain_kernel", "launch_early_kernel"


@dataclass(frozen=True)
class Tensor:
    """A tensor of the signature by its number, inputs first."""

    index: int


@dataclass(frozen=True)
class Scratch:
    """A block of scratch memory by its number; `dtype` is numpy's name."""

    index: int
    dtype: str


@dataclass(frozen=True)
class Size:
    """A size: a number in the source where it is known, else of 32 bits, or 64 (`is_wide`)."""

    extent: Extent
    is_wide: bool = False


@dataclass(frozen=True)
class Map:
    """A tensor, or heads in one, that the device copies boxes of (TMA): sm_90 and later.

    Its parameter is a tensor descriptor. Addresses have to be multiples of 16 bytes.

    Args:
        tensor: Index of the tensor; of the scratch block n, which has elements of the first
            tensor's type, it is -1 - n.
        dims: Outermost first, at most five.
        strides: Elements between neighbours along all of them but the innermost, which is dense.
        box: What is copied at once, powers of two.
        first: The element where it begins.
    """

    tensor: int
    dims: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    box: tuple[int, ...]
    first: int = 0


Literal = int | float | bool | str | tuple[tuple[int, int], ...] | None
Passed = Tensor | Scratch | Size | Map | Literal


@dataclass(frozen=True)
class Call:
    """One launch of a function of the text.

    Args:
        function: Its name.
        arguments: In the order of its parameters.
        grid: What is divided by what, rounded up, along x, y and z.
        warps: Of 32 threads.
        stages: How many turns of a loop are loaded ahead, as Triton counts them.
        fp_fusion: Whether a product and a sum may be rounded once.
        registers: That a thread may have, at most; None for what Triton finds.
        is_gluon: Whether the text is in Gluon.
        workers: Additional warps that a kernel in Gluon gives roles of their own.
        text: The module with the function; None for that of all launches.
        has_early_start: Whether the function calls `begin` where it waits for the launch before;
            see `launch_early_kernel`.
        product: What it computes, for a library to compute instead; None for nothing such.
        is_light: Whether the next launch may begin at once; see `StepSource`.
        has_eviction_policy: Whether an argument says what the L2 cache gives up first.
    """

    function: str
    arguments: tuple[Passed, ...]
    grid: tuple[tuple[Extent, int], ...]
    warps: int
    stages: int = 3
    fp_fusion: bool = True
    registers: int | None = None
    is_gluon: bool = False
    workers: int = 0
    text: str | None = None
    has_early_start: bool = False
    product: Product | None = None
    is_light: bool = False
    has_eviction_policy: bool = False


def kernel_text(name: str) -> str:
    """Return the module `name` of the hand-written kernels, as text."""
    folders = import_module(PACKAGE).__path__
    paths = [path for folder in folders for path in Path(folder).rglob(f"{name}.py")]
    if len(paths) != 1:
        raise InternalError(f"{len(paths)} files hold the hand-written kernel {name!r}")
    return paths[0].read_text("utf-8")


def hand_variant(
    signature: RegionSignature,
    calls: Sequence[Call],
    text: str,
    conditions: Sequence[Condition] = (),
    *,
    is_aligned: bool = True,
    multiples: Sequence[Extent] = (),
    scratch: Sequence[Extent] = (),
    architectures: tuple[int, ...] | None = None,
    is_optional: bool = False,
) -> VariantSource:
    """Return a variant of a hand-written kernel.

    Args:
        signature: The signature of what it computes.
        calls: Its launches, one after the other.
        text: The module with their functions, see `kernel_text`, but for calls that have one.
        conditions: When it may be used. Sizes are those of the signature.
        is_aligned: Whether tensors must start at multiples of 16 bytes, as Triton then assumes.
        multiples: Sizes that Triton may assume are multiples of 16; the conditions say so too.
        scratch: Bytes of each block of scratch memory.
        architectures: Those that it is made for; None for all.
        is_optional: Whether a later variant takes whatever this one takes, so that it is left out
            for an architecture that it does not compile for, and not the kernel.
    """
    tensors = (*signature.inputs, *signature.outputs)
    symbols = symbols_of(tensors)
    steps = []
    for number, call in enumerate(calls):
        entry = f"ortkit_{signature.key}" + (f"_{number}" if len(calls) > 1 else "")
        wrapper = _Wrapper(
            signature, symbols, is_aligned, frozenset(multiples), is_gluon=call.is_gluon
        )
        passed = ", ".join(map(wrapper.passed, call.arguments))
        parameters = wrapper.all()
        names = ", ".join(parameter.name for parameter in parameters)
        jit = "gluon" if call.is_gluon else "triton"
        module = text if call.text is None else call.text
        lines = ["", "", f"@{jit}.jit", f"def {entry}({names}):", f"    {call.function}({passed})"]
        module += "\n".join((*lines, ""))
        early = None
        if call.has_early_start:
            module, early = (kernel_text(name) + module for name in _STARTS)
        steps.append(
            StepSource(
                entry, module, parameters, call.grid, call.warps, call.stages, call.fp_fusion,
                call.registers, wrapper.maps(), call.is_gluon, call.workers, early_text=early,
                product=call.product, is_light=call.is_light,
                has_eviction_policy=call.has_eviction_policy,
            )
        )  # fmt: skip
    return VariantSource(
        tuple(conditions), is_aligned, symbols, tuple(steps), tuple(scratch), architectures,
        is_optional,
    )  # fmt: skip


class _Wrapper:
    """The parameters of one function around another."""

    def __init__(
        self,
        signature: RegionSignature,
        symbols: tuple[str, ...],
        is_aligned: bool,
        multiples: frozenset[Extent],
        *,
        is_gluon: bool,
    ) -> None:
        self._inputs = len(signature.inputs)
        self._dtypes = [output.dtype for output in (*signature.inputs, *signature.outputs)]
        self._symbols = symbols
        self._is_aligned = is_aligned
        self._multiples = multiples
        self._is_gluon = is_gluon
        self._found: dict[str, Parameter] = {}
        self._maps: dict[str, TensorMap] = {}

    def all(self) -> tuple[Parameter, ...]:
        """Return the parameters in the order in which they were first passed."""
        return tuple(self._found.values())

    def maps(self) -> tuple[TensorMap, ...]:
        """Return the maps of tensors in the order of their parameters."""
        return tuple(self._maps.values())

    def passed(self, value: Passed) -> str:
        """Return an argument as the source has it."""
        if isinstance(value, Tensor):
            is_input = value.index < self._inputs
            name = f"x{value.index}" if is_input else f"y{value.index - self._inputs}"
            type_ = POINTERS[self._dtypes[value.index]]
            return self._add(name, type_, self._is_aligned, Argument("tensor", value.index))
        if isinstance(value, Scratch):
            argument = Argument("scratch", value.index)
            return self._add(f"s{value.index}", POINTERS[value.dtype], True, argument)
        if isinstance(value, Map):
            return self._map(value)
        if isinstance(value, Size):
            return self._size(value)
        return repr(value)

    def _size(self, value: Size) -> str:
        if value.extent.static is not None:
            return str(value.extent.static)
        number = sum(item.type in ("i32", "i64") for item in self._found.values())
        named = {parameter.argument.extent: parameter for parameter in self._found.values()}
        extent = rename_extent(value.extent, self._symbols)
        kind, width = ("size64", "i64") if value.is_wide else ("size32", "i32")
        if extent in named and named[extent].type == width:
            return named[extent].name
        is_multiple = value.extent.factor % _MULTIPLE == 0 or value.extent in self._multiples
        argument = Argument(kind, extent=extent)  # type: ignore[arg-type]
        return self._add(f"n{number}", width, is_multiple, argument)

    def _map(self, value: Map) -> str:
        dtype = POINTERS[self._dtypes[max(value.tensor, 0)]].removeprefix("*")
        dims, strides = (
            [rename_extent(extent, self._symbols) for extent in extents]
            for extents in (value.dims, value.strides)
        )
        made = tensor_map(value.tensor, dtype, dims, strides, value.box, value.first)
        number = len(self._maps)
        name = f"m{number}"
        self._maps[name] = made
        self._found[name] = map_parameter(name, number, dtype, value.box, is_gluon=self._is_gluon)
        return name

    def _add(self, name: str, type_: str, is_multiple: bool, argument: Argument) -> str:
        self._found.setdefault(name, Parameter(name, type_, is_multiple, argument))
        return name
