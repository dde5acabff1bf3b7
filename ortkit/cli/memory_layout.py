"""What `ortkit memory --layout` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortkit.cli import show

if TYPE_CHECKING:
    from ortkit.measure.layout_result import Layouts, LayoutTime, NodeLayouts


def show_layouts(found: Layouts) -> None:
    """Print a table for each node that was measured."""
    if not found.nodes:
        show.line("layouts   the model runs no Conv, MatMul or Gemm of floating point numbers")
    for node in found.nodes:
        _show_node(node)
    _show_missing(found)
    if found.left_out:
        show.line(f"note      {found.left_out} more nodes take less time and were not measured")


def _show_node(node_layouts: NodeLayouts) -> None:
    count = (
        f", {len(node_layouts.nodes)} nodes"
        if len(node_layouts.nodes) != 1
        else f" ({node_layouts.nodes[0]})"
    )
    share = f"{node_layouts.share:.0%} of a run without optimizations"
    title = f"{node_layouts.op} {node_layouts.described}{count}, {share}"
    measured = [time for time in node_layouts.times if not time.problem]
    rows = [_row(time) for time in measured]
    show.line("")
    show.line(title)
    show.table("", ("layout", "type", "by", "kernel us", "conversion us", "sum us"), rows)
    if node_layouts.wanted is not None:
        show.line(f"wants     {node_layouts.wanted.name}")
    show.line(f"advice    {node_layouts.advice}")
    for time in node_layouts.narrower:
        show.line(
            f"          {time.name} is faster yet, with other numbers (`ortkit verify` says which)"
        )


def _show_missing(found: Layouts) -> None:
    """Say once what there is not, with the number of nodes."""
    counts: dict[tuple[str, str, str], int] = {}
    for node in found.nodes:
        for time in node.times:
            if time.problem:
                key = (node.op, f"{time.layout} {time.dtype} by {time.by}", time.problem)
                counts[key] = counts.get(key, 0) + 1
    if not counts:
        return
    rows = [(op, what, count, problem) for (op, what, problem), count in counts.items()]
    show.line("")
    show.table("what there is not", ("op", "layout", "of the nodes", "why"), rows)


def _row(time: LayoutTime) -> tuple[object, ...]:
    return time.layout, time.dtype, time.by, time.kernel_us, time.conversion_us, time.total_us
