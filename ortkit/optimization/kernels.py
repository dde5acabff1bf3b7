"""The stage of kernels: regions of a rewritten model to one library, as the options allow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from ortkit.errors import KernelError, MissingDependencyError, StaleInstallationError
from ortkit.fusion.regions.report import RegionReport
from ortkit.optimization.options import OptimizeOptions
from ortkit.rewrite.pipeline import PipelineResult


def compile_kernels(
    result: PipelineResult,
    options: OptimizeOptions,
    library: Path,
    sources: Path,
    bodies: Mapping[str, onnx.FunctionProto],
) -> tuple[tuple[RegionReport, ...], Path | None, str]:
    """Put fused nodes into the graph, and their kernels into a library.

    Args:
        result: The rewritten model, changed in place.
        options: Of the call.
        library: Where the library is written.
        sources: The folder for the kernels' code, if it is to be kept.
        bodies: Of the fused nodes that are kept as the source has them, by op type.

    Returns:
        What became of each region, the library (None if there are no kernels), and why there are
        none or what of them is not as usual.

    Raises:
        MissingDependencyError, KernelError: Kernels that were asked for cannot be made.
        StaleInstallationError: The native part has another version: that is a fault to mend.
    """
    from ortkit.fusion.plan import compile_regions
    from ortkit.kernels.build.library import missing_toolchain

    backend, machine = options.kernels, options.machine
    try:
        if (missing := missing_toolchain(backend, machine)) is not None:
            raise missing
        regions, made, note = compile_regions(
            result.scopes, library, backend, machine, options.count,
            sources if options.keep_source else None, options.chooser, bodies,
        )  # fmt: skip
    except (MissingDependencyError, KernelError) as error:
        # Nothing has been replaced yet: the graph is as the passes left it.
        if options.kernels != "auto" or isinstance(error, StaleInstallationError):
            raise
        return (), None, str(error)
    # Of kernels for devices the verification says whether they ran.
    return regions, made, note or (foreign_note(made, options) if machine.traits.is_host else "")


def foreign_note(library: Path | None, options: OptimizeOptions) -> str:
    """Say that this machine cannot run the kernels; empty if it can, or if there are none."""
    from ortkit.targets.catalog import traits_of
    from ortkit.targets.cpu import native_level, runs_here

    if library is None:
        return ""
    traits = traits_of(options.target)
    if not traits.is_timed:
        return f"kernels for {traits.title} are not timed here"
    if runs_here(options.cpu):
        return ""
    return f"kernels for {options.cpu} do not run on this machine, an {native_level()}"
