"""Which passes one call runs, and on what the result is to be fast."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from ortkit.extend.body.recognize import RecogniseOps
from ortkit.optimization.options import OptimizeOptions
from ortkit.passes.presets import FUSIONS
from ortkit.passes.select import load_pass, select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline, PipelineResult


def rewrite_options(options: OptimizeOptions) -> RewriteOptions:
    """Return the options of passes."""
    return RewriteOptions(options.machine, options.level, options.max_opset)


def pipeline_of(options: OptimizeOptions) -> Pipeline:
    """Return the passes that recognise and rewrite, the caller's own last.

    The caller's ops are also looked for before operators are fused: what they are written out as
    may have parts that other passes recognise.
    """
    chosen = select_passes(options.passes, options.level, options.target)
    limited = (
        replace(item, limit=options.fold_limit)  # type: ignore[call-arg]
        if item.name == "fold-constants" and "limit" not in item.text
        else item
        for item in chosen
    )
    passes = list(limited)
    own = [pass_ for pass_ in options.extra_passes if isinstance(pass_, RecogniseOps)]
    at = next((i for i, one in enumerate(passes) if one.name in FUSIONS), len(passes))
    return Pipeline((*passes[:at], *own, *passes[at:], *options.extra_passes))


def lowering_of(options: OptimizeOptions) -> Pipeline:
    """Return the passes that lower the precision and clean up after it."""
    from ortkit.precision.interface import LowerInterface
    from ortkit.precision.lower import LowerPrecision

    # Fp8 matmuls are chosen among those in half precision.
    to = "fp16" if options.precision == "fp8" else options.precision
    ends = (LowerInterface(to),) if options.precision_io == "convert" else ()
    tidy = ("merge-casts", "drop-noop-cast", "fold-constants", "merge-equal-nodes", "drop-unused")
    return Pipeline((LowerPrecision(to), *ends, *map(load_pass, tidy)))


def padding_pipeline() -> Pipeline:
    """Return the passes that skip padding, once everything is recognised and lowered.

    Equal nodes are not merged: a lowered operator has casts of its own, which its kernel takes in.
    """
    return Pipeline(tuple(map(load_pass, ("skip-padding", "drop-unused"))))


def tidied(
    result: PipelineResult, options: RewriteOptions, but: Container[str] = ()
) -> PipelineResult:
    """Look again at a model whose nodes were replaced; values without consumers go.

    Args:
        result: Of the passes before.
        options: Options of the passes.
        but: Names of passes to leave out.
    """
    result.scopes = []
    tidy = Pipeline((load_pass("drop-unused"),)).without(but)
    return tidy.run(result.model, options, after=result)
