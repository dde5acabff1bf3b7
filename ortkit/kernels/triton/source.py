"""The source of a kernel's variants, generated or written by hand, before it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortkit.kernels.cuda import (
    CeilDiv,
    Condition,
    Product,
    Step,
    TensorMap,
    Variant,
    grid_bounds,
    rename_extent,
)
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.configs import Config
from ortkit.kernels.triton.parameters import Parameter

_WARP = 32


@dataclass(frozen=True)
class StepSource:
    """One launch.

    Args:
        entry: The function's name.
        text: A whole module, in Python.
        parameters: Of the function, in order.
        grid: What is divided by what, rounded up, along x, y and z.
        warps: Of 32 threads.
        stages: How many turns of a loop are loaded ahead, as Triton counts them; None: its own.
        fp_fusion: Whether a product and a sum may be rounded once.
        registers: That a thread may have, at most; None for what Triton finds.
        maps: Of tensors, that parameters are.
        is_gluon: Whether the module is Gluon's Triton, which says itself where each value lies.
        workers: Additional warps that a kernel in Gluon gives roles of their own.
        is_light: Whether blocks of the next launch may share a multiprocessor with this one's
            from the beginning on.
        early_text: The module where a launch may begin before the one before it has ended, if it
            waits for that by itself.
        product: What a library may compute in its place; None for nothing such.
        has_eviction_policy: Whether a load says what the L2 cache gives up first.
    """

    entry: str
    text: str
    parameters: tuple[Parameter, ...]
    grid: tuple[tuple[Extent, int], ...]
    warps: int
    stages: int | None = None
    fp_fusion: bool = False
    registers: int | None = None
    maps: tuple[TensorMap, ...] = ()
    is_gluon: bool = False
    workers: int = 0
    is_light: bool = False
    early_text: str | None = None
    product: Product | None = None
    has_eviction_policy: bool = False

    def step(self, shared_bytes: int, symbols: tuple[str, ...]) -> Step:
        """Return how it is launched."""
        x, y, z = (CeilDiv(rename_extent(size, symbols), by) for size, by in self.grid)
        arguments = (argument for parameter in self.parameters for argument in parameter.arguments)
        return Step(
            self.entry,
            (x, y, z),
            (self.warps + self.workers) * _WARP,
            shared_bytes,
            tuple(arguments),
            self.maps,
            self.product and replace(self.product, rows=rename_extent(self.product.rows, symbols)),
        )


@dataclass(frozen=True)
class VariantSource:
    """One variant of a kernel before it is compiled.

    Args:
        conditions: When it may be used, but for `is_aligned`.
        is_aligned: Whether all data starts at multiples of 16 bytes.
        symbols: The named sizes of the signature.
        steps: Its launches.
        scratch: Bytes of each block of scratch memory.
        architectures: Those that it is made for; None for all.
        is_optional: True if a later variant accepts the same inputs, so that this variant may be
            left out.
        config: What it was generated from; None if it is hand-written.
    """

    conditions: tuple[Condition, ...]
    is_aligned: bool
    symbols: tuple[str, ...]
    steps: tuple[StepSource, ...]
    scratch: tuple[Extent, ...] = ()
    architectures: tuple[int, ...] | None = None
    is_optional: bool = False
    config: Config | None = None

    def variant(self, shared_bytes: Sequence[int]) -> Variant:
        """Return it as data; each step gets its shared memory."""
        conditions = tuple(
            replace(condition, extent=rename_extent(condition.extent, self.symbols))
            for condition in (*self.conditions, *self._grid_bounds())
        )
        steps = (
            step.step(size, self.symbols)
            for step, size in zip(self.steps, shared_bytes, strict=True)
        )
        scratch = tuple(rename_extent(extent, self.symbols) for extent in self.scratch)
        return Variant(conditions, self.is_aligned, tuple(steps), scratch)

    def _grid_bounds(self) -> tuple[Condition, ...]:
        """Return what keeps all grids within CUDA's bounds, but for what conditions say already.

        No variant takes more, so that these do not say which variants there are.
        """
        bounds = dict.fromkeys(bound for step in self.steps for bound in grid_bounds(step.grid))
        return tuple(
            bound for bound in bounds if not any(map(bound.follows_from, self.conditions))
        )
