"""The plot of `ortkit memory --plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.graph.io.atomic import write_whole
from ortkit.page.chart import Chart, Series, draw_chart
from ortkit.page.chart_page import chart_page

if TYPE_CHECKING:
    from ortkit.cli.memory_shown import Shown, ShownPoint

_MEGA = 1e6


def write_plot(found: Shown, path: Path) -> None:
    """Plot memory over the sweep, or over the nodes of a run if there is one point.

    Raises:
        UserError: It cannot be written.
    """
    title = f"Memory of {found.model.name}"
    one_point = len(found.points) == 1
    chart = _over_nodes(title, found.points[0]) if one_point else _over_sweep(title, found)
    is_page = path.suffix.lower() == ".html"
    write_whole(path, chart_page(title, "", [chart]) if is_page else draw_chart(chart))


def _over_sweep(title: str, found: Shown) -> Chart:
    peaks = [point.peak for point in found.points]
    parts = {
        "before the run": [None if peak is None else peak.before_run for peak in peaks],
        "activations": [None if peak is None else peak.tensor_bytes for peak in peaks],
        "workspace": [None if peak is None else peak.workspace for peak in peaks],
        "not explained": [None if peak is None else peak.unexplained for peak in peaks],
    }
    lines = {
        "held by the arena": [point.point.held for point in found.points],
        "peak of the process": [point.point.peak_resident for point in found.points],
    }
    bars = [Series(f"peak: {name}", _mega(of)) for name, of in parts.items() if any(of)]
    series = [*bars, *(Series(name, _mega(of), "line") for name, of in lines.items())]
    labels = [
        ", ".join(f"{name}={point.sizes[name]}" for name in found.swept) for point in found.points
    ]
    return Chart(title, "MB", labels, series, across="sizes", stacked=True)


def _over_nodes(title: str, shown_point: ShownPoint) -> Chart:
    from ortkit.runtime.memory.node_table import NodeMemory

    nodes = shown_point.point.nodes
    if not isinstance(nodes, NodeMemory) or not nodes.nodes:
        return Chart(
            title, "MB", ["process"], [Series("peak", _mega([shown_point.point.peak_resident]))]
        )
    series = []
    for provider in dict.fromkeys(peak.provider for peak in nodes.peaks):
        name = provider.removesuffix("ExecutionProvider")
        of = [node if node.provider == provider else None for node in nodes.nodes]
        during = _mega([None if node is None else node.during for node in of])
        after = _mega([None if node is None else node.before + node.kept for node in of])
        series += [
            Series(f"{name}: with workspace", during, "steps"),
            Series(f"{name}: in use", after, "steps"),
        ]
    labels = [f"{node.name} ({node.op})" for node in nodes.nodes]
    return Chart(title, "MB in use in the arena", labels, series, across="node, in order")


def _mega(values: Sequence[int | None]) -> list[float | None]:
    return [None if value is None else value / _MEGA for value in values]
