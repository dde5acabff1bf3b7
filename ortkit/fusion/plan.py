"""From the rewritten graphs to fused nodes and the one library of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from ortkit.fusion.describe import describe_region
from ortkit.fusion.lower import lower_region
from ortkit.fusion.regions import find_regions
from ortkit.kernels.backend import Target
from ortkit.kernels.build import build_library
from ortkit.report import RegionReport
from ortkit.rewrite.scope import Scope


def compile_regions(
    scopes: Sequence[Scope], path: Path, kernels: Literal["auto", "tvm", "off"], cpu: str
) -> tuple[tuple[RegionReport, ...], Path | None, str]:
    """Find regions, compile them into one library at `path`, and put fused nodes in their place.

    Returns:
        A report for each region; the library, None if no region has a kernel; and why there is
        none although there are regions.

    Raises:
        MissingDependencyError: No toolchain for the kernels is installed.
        KernelError: A toolchain failed.
    """
    found = [
        (scope, region, describe_region(scope, region))
        for scope in scopes
        if isinstance(scope.root, ir.Graph)
        for region in find_regions(scope)
    ]
    if not found:
        return (), None, ""
    distinct = {signature.key: signature for _, _, signature in found}
    built = build_library(list(distinct.values()), Target("cpu", cpu), path, kernels)
    refused = {signature.key: reason for signature, reason in built.refused}
    reports = []
    for scope, region, signature in found:
        at = region.outputs[0].name or ""
        reason = refused.get(signature.key, "")
        if not reason and not lower_region(scope, region, signature):
            reason = "rolled back or out of fuel"
        emitted = None if reason else signature.op_type
        reports.append(RegionReport(region.kind, at, len(region.nodes), emitted, reason))
    library = None if built.library is None else built.library.path
    return tuple(reports), library, ""
