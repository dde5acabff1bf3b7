"""Convolutions that have no kernel as long as the height and width of their images are unknown."""

from __future__ import annotations

from collections.abc import Sequence

from ortkit.graph.symbolic.dims import names
from ortkit.rewrite.scope import Scope


def unknown_sizes_note(scopes: Sequence[Scope]) -> str:
    """Return which sizes should be given so that more convolutions can have kernels.

    Args:
        scopes: The graphs, with fused nodes in place.

    Returns:
        A line for the report; empty if there is nothing to give.
    """
    count, unknown = 0, set[str]()
    for scope in scopes:
        for node in scope.nodes():
            if (node.domain, node.op_type) != ("", "Conv") or node.inputs[0] is None:
                continue
            shape = scope.shapes.shape(node.inputs[0]) or ()
            found = set[str]().union(*(names(size) for size in shape[2:]))
            count += bool(found)
            unknown |= found
    if not count:
        return ""
    flags = " ".join(f"--fix-shape {name}=N" for name in sorted(unknown))
    what = "1 convolution reads" if count == 1 else f"{count} convolutions read"
    return f"{what} images of unknown sizes and may have no kernel for that; give {flags}"
