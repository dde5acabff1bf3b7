"""From a signature and a variant to the source of a Triton module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortkit.kernels.build.sources import one_line
from ortkit.kernels.cuda import CeilDiv, Condition, Step, TensorMap, Variant, rename_extent
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, symbols_of
from ortkit.kernels.triton.body import Body
from ortkit.kernels.triton.choices import DEFAULTS, Choices
from ortkit.kernels.triton.configs import Config, configs_of
from ortkit.kernels.triton.parameters import Parameter, Parameters
from ortkit.kernels.triton.space import Space, space_of
from ortkit.kernels.triton.stages import scratch_of, stages_of, write_stage
from ortkit.refusal import Refused

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

    def step(self, shared_bytes: int, symbols: tuple[str, ...]) -> Step:
        """Return how it is launched."""
        x, y, z = (CeilDiv(rename_extent(size, symbols), by) for size, by in self.grid)
        arguments = (one for parameter in self.parameters for one in parameter.arguments)
        return Step(
            self.entry,
            (x, y, z),
            (self.warps + self.workers) * _WARP,
            shared_bytes,
            tuple(arguments),
            self.maps,
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
        """Return it as data; each step is told its shared memory."""
        conditions = tuple(
            replace(one, extent=rename_extent(one.extent, self.symbols)) for one in self.conditions
        )
        steps = (
            step.step(size, self.symbols)
            for step, size in zip(self.steps, shared_bytes, strict=True)
        )
        scratch = tuple(rename_extent(one, self.symbols) for one in self.scratch)
        return Variant(conditions, self.is_aligned, tuple(steps), scratch)


def sources_of(
    signature: RegionSignature, choices: Choices = DEFAULTS
) -> tuple[VariantSource, ...] | Refused:
    """Return the source of every variant of the region's kernel, or why there is none.

    Args:
        signature: The region.
        choices: Of a kernel that is generated; a hand-written one has none.
    """
    from ortkit.kernels.triton.templates import template_for  # which are made of these

    template = template_for(signature)
    if isinstance(template, Refused):
        return template
    if template is not None:
        return template.variants()
    space = space_of(signature)
    if isinstance(space, Refused):
        return space
    return tuple(_variant(signature, space, config) for config in configs_of(space, choices))


def _variant(signature: RegionSignature, space: Space, config: Config) -> VariantSource:
    tensors = (*signature.inputs, *signature.outputs)
    symbols = symbols_of(tensors)
    entry = f"ortkit_{signature.key}"
    steps = []
    stages = stages_of(space, config)
    for stage in stages:
        parameters = Parameters(config, symbols, [t.dtype for t in tensors], len(signature.inputs))
        body = Body(space, config, parameters)
        write_stage(body, stage)
        name = entry if len(stages) == 1 else f"{entry}_{stage.number}"
        text = _module(body, name)
        steps.append(
            StepSource(
                entry=name,
                text=text,
                parameters=parameters.all(),
                grid=stage.grid(space, config),
                warps=config.warps,
                stages=config.stages,
            )
        )
    return VariantSource(
        config.conditions, config.is_aligned, symbols, tuple(steps), scratch_of(space, config),
        config=config,
    )  # fmt: skip


def _module(body: Body, entry: str) -> str:
    """Return the whole module."""
    sizes = [
        f"#   {name}: {one_line(str(extent))}" for extent, name in body.parameters.sizes.items()
    ]
    names = ", ".join(parameter.name for parameter in body.parameters.all())
    head = ["import triton", "import triton.language as tl", "", ""]
    helpers = [part for text in body.helpers.functions.values() for part in (text, "")]
    lines = [f"    {line}" for line in body.e.lines]
    return "\n".join(
        [*head, *helpers, *sizes, "@triton.jit", f"def {entry}({names}):", *lines, ""]
    )
