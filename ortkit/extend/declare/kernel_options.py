"""What a user said of a kernel for an op, and of an input that is packed for kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

from ortkit.errors import UserError
from ortkit.extend.declare.op_schema import OpInput, OpSchema, Types
from ortkit.extend.declare.size_rules import Words
from ortkit.kernels.sizes import Extent
from ortkit.targets.catalog import Kind, kind_of_backend, traits_of

Constant = bool | int | float | str | None
#: What each backend makes kernels for.
TARGETS: Mapping[str, Kind] = {item: kind_of_backend(item) for item in ("tvm", "triton")}
#: Of a variadic input, where a kernel does not say for how many tensors it is.
_COUNTS = (1, 2, 3, 4)


@dataclass(frozen=True)
class KernelOptions:
    """What a kernel is for, and how it is called.

    Args:
        dtypes: For words such as Float, the element types that it is for; none: all.
        without: Optional inputs that its nodes are without.
        counts: For how many tensors of a variadic input.
        when: What must hold of the sizes: "n % 16 == 0 and m*n <= 4096".
        constants: Passed by name; they may stand in `when` and `grid`.
        split: For tvm: the first axis of all that is computed in parts.
        units: Or what is counted between `begin` and `end`, which the function then has.
        least: How many of them a part has at least; 0: as many as `work` says.
        schedule: Called with a `tvm.s_tir.Schedule` of a function of TE.
        work: How many points there are; empty: the elements of the largest output.
        picoseconds: For one of them.
        inplace: Pairs of an input and an output that may share memory.
        packed: Inputs that it takes as `CustomOp.prepack` lays them out.
        grid: For triton: such as ("m", "ceil(n / BLOCK)").
        sizes: What parameters stand for that are called neither as a tensor nor as a size.
        warps: Of 32 threads.
        stages: How many turns of a loop are loaded ahead.
        boxes: Tensors whose parameters are maps of them, for copies of boxes that the device does
            by itself (TMA): how much of each of its axes is copied at once, numbers or constants.
        architectures: The GPUs that it is for, such as 90; none: all. On others a kernel behind
            it runs.
        workers: Of a kernel in Gluon: additional warps, which `warp_specialize` gives roles.
        registers: That a thread may have at first; 0: what Triton finds.
    """

    dtypes: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    counts: tuple[int, ...] = _COUNTS
    when: str = ""
    constants: Mapping[str, Constant] = field(default_factory=dict)
    split: str = ""
    units: str = ""
    least: int = 0
    schedule: Any = None
    work: str = ""
    picoseconds: int = 300
    inplace: tuple[tuple[str, str], ...] = ()
    packed: tuple[str, ...] = ()
    grid: tuple[str | int, ...] = ()
    sizes: Mapping[str, str | int] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3
    boxes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    architectures: tuple[int, ...] = ()
    workers: int = 0
    registers: int = 0

    def box(self, name: str) -> tuple[int, ...]:
        """Return how much of each axis of a tensor is copied at once."""
        found = (self.constants.get(box, 0) if isinstance(box, str) else box
                 for box in self.boxes[name])  # fmt: skip
        return tuple(item if isinstance(item, int) else 0 for item in found)


@dataclass(frozen=True)
class DeclaredKernel:
    """One kernel of an op.

    Args:
        backend: "tvm" or "triton".
        source: What the user wrote, or "module:function" of it.
        number: Its place among the op's.
        options: How it is called.
    """

    backend: Literal["tvm", "triton"]
    source: Any
    number: int
    options: KernelOptions

    @cached_property
    def function(self) -> Any:
        """What the user wrote.

        Raises:
            UserError: It is in a module that there is not, or that lacks it.
        """
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UserError(f"the kernel {self.source} is not there: {error}") from error

    @property
    def target(self) -> Kind:
        """What it runs on."""
        return TARGETS[self.backend]

    @property
    def is_on_host(self) -> bool:
        """Whether it is a function that Python calls."""
        return traits_of(self.target).is_host

    @property
    def name(self) -> str:
        """What the user calls it."""
        if isinstance(self.source, str):
            return self.source.partition(":")[2]
        inner = getattr(self.function, "fn", self.function)
        found = getattr(inner, "__name__", "") or getattr(self.function, "__name__", "")
        return str(found or f"{self.backend} kernel {self.number}")

    def fits(self, schema: OpSchema, types: Types, is_present: Sequence[bool]) -> bool:
        """Say whether it is for these element types and these inputs of its op."""
        kinds = schema.kinds
        chosen = [dtype for kind, dtype in types.items() if len(kinds[kind]) > 1]
        if self.options.dtypes and any(item not in self.options.dtypes for item in chosen):
            return False
        inputs = schema.inputs
        if inputs[-1].is_variadic:
            return len(is_present) - len(inputs) + 1 in self.options.counts
        absent = {
            op_input.name for op_input, flag in zip(inputs, is_present, strict=True) if not flag
        }
        return absent == self.options.without


@dataclass(frozen=True)
class Packing:
    """How one input is prepacked.

    Args:
        input: Its name.
        dtype: The element type that it becomes; empty: it keeps its own.
        shape: What of the input's sizes is divided by what, rounded up.
        words: What its texts may name: the input's sizes.
        kernel: The function, from the input to the packed tensor.
    """

    input: str
    dtype: str
    shape: tuple[tuple[Extent, int], ...]
    words: Words
    kernel: DeclaredKernel


def expanded(inputs: Sequence[OpInput], is_present: Sequence[bool]) -> list[OpInput]:
    """Return the formal input of each of a node's, those that are absent included."""
    last = inputs[-1]
    if not last.is_variadic:
        return list(inputs)
    count = len(is_present) - len(inputs) + 1
    return [*inputs[:-1], *(OpInput(f"{last.name}{i}", last.type) for i in range(count))]
