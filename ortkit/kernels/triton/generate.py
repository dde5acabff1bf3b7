"""From a signature to the source of every variant of its kernel."""

from __future__ import annotations

from ortkit.kernels.build.sources import one_line
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.triton.body import Body
from ortkit.kernels.triton.choices import DEFAULTS, Choices
from ortkit.kernels.triton.configs import Config, configs_of
from ortkit.kernels.triton.parameters import Parameters
from ortkit.kernels.triton.source import StepSource, VariantSource
from ortkit.kernels.triton.space import Space, space_of
from ortkit.kernels.triton.stages import scratch_of, stages_of, write_stage
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused


def sources_of(
    signature: RegionSignature, choices: Choices = DEFAULTS
) -> tuple[VariantSource, ...] | Refused:
    """Return the source of every variant of the region's kernel, or why there is none.

    Args:
        signature: The region.
        choices: Of a kernel that is generated; a hand-written one has none.
    """
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
                is_light=True,
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
