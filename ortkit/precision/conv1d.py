"""Convolutions over one dimension as ones over two, for which there are kernels in bfloat16."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.analysis.conv1d import line_groups
from ortkit.analysis.conv1d import widen_lines as widen
from ortkit.graph.shapes.infer import Shapes
from ortkit.precision.products import PASS
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site


def widen_lines(model: ir.Model) -> int:
    """Rewrite the convolutions that have three axes, a constant weight and no groups.

    Args:
        model: Changed in place.

    Returns:
        How many there were.
    """
    scope = Scope(model, model.graph, Shapes.infer(model), RewriteLog(), RewriteOptions())
    found = [node for group in line_groups(scope) for node in group]
    found = [node for node in found if Site(scope, node, PASS).int("group", 1) == 1]
    widen(scope, found, PASS)
    return len(found)
