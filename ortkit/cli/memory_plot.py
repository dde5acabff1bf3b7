"""The plot of `ortkit memory --plot`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortkit.errors import MissingDependencyError, UserError
from ortkit.graph.io.atomic import write_whole

if TYPE_CHECKING:
    from ortkit.cli.memory_shown import Shown, ShownPoint

_MEGA = 1e6


def require_plotly(path: Path) -> None:
    """Check that a plot of this kind can be made.

    Raises:
        MissingDependencyError: A package for it is not installed.
    """
    if find_spec("plotly") is None:
        raise MissingDependencyError(
            "plotly is not installed", where=f"--plot {path}", fix='pip install "ortkit[report]"'
        )
    if path.suffix.lower() != ".html" and find_spec("kaleido") is None:
        raise MissingDependencyError(
            "kaleido, which turns plots into pictures, is not installed",
            where=f"--plot {path}",
            fix="pip install kaleido, or write .html",
        )


def write_plot(found: Shown, path: Path) -> None:
    """Plot memory over the sweep, or over the nodes of a run if there is one point.

    Raises:
        UserError: It cannot be written.
    """
    figure = _over_nodes(found.points[0]) if len(found.points) == 1 else _over_sweep(found)
    figure.update_layout(title=f"Memory of {found.model.name}", template="plotly_white")
    try:
        if path.suffix.lower() == ".html":
            # With the script in it, so that the page opens without a network.
            write_whole(path, figure.to_html(include_plotlyjs=True))
        else:
            figure.write_image(str(path), width=1000, height=600)
    except (OSError, RuntimeError, ValueError) as error:
        problem = f"the plot cannot be written: {' '.join(str(error).split())[:200]}"
        raise UserError(problem, where=f"--plot {path}") from error


def _over_sweep(found: Shown) -> Any:
    import plotly.graph_objects as go

    names = [
        ", ".join(f"{name}={one.sizes[name]}" for name in found.swept) for one in found.points
    ]
    peaks = [one.peak for one in found.points]
    parts = {
        "before the run": [None if one is None else one.before_run for one in peaks],
        "activations": [None if one is None else one.tensor_bytes for one in peaks],
        "workspace": [None if one is None else one.workspace for one in peaks],
        "not explained": [None if one is None else one.unexplained for one in peaks],
    }
    lines = {
        "held by the arena": [one.point.held for one in found.points],
        "peak of the process": [one.point.peak_resident for one in found.points],
    }
    figure = go.Figure()
    for name, values in parts.items():
        if any(values):
            figure.add_bar(x=names, y=_mega(values), name=f"peak: {name}")
    for name, values in lines.items():
        figure.add_scatter(x=names, y=_mega(values), name=name, mode="lines+markers")
    figure.update_layout(
        barmode="stack", xaxis_title="sizes", yaxis_title="MB", xaxis_type="category"
    )
    return figure


def _over_nodes(one: ShownPoint) -> Any:
    import plotly.graph_objects as go

    from ortkit.runtime.memory.node_table import NodeMemory

    nodes = one.point.nodes
    figure = go.Figure()
    if isinstance(nodes, NodeMemory):
        for peak in nodes.peaks:
            own = [node for node in nodes.nodes if node.provider == peak.provider]
            places = list(range(len(own)))
            labels = [f"{node.name} ({node.op})" for node in own]
            after = _mega([node.before + node.kept for node in own])
            during = _mega([node.during for node in own])
            name = peak.provider.removesuffix("ExecutionProvider")
            figure.add_scatter(x=places, y=during, text=labels, name=f"{name}: with workspace",
                               mode="lines", line_shape="hv")  # fmt: skip
            figure.add_scatter(x=places, y=after, text=labels, name=f"{name}: in use",
                               mode="lines", line_shape="hv", fill="tozeroy")  # fmt: skip
    figure.update_layout(xaxis_title="node, in order", yaxis_title="MB in use in the arena")
    return figure


def _mega(values: list[int | None] | list[int]) -> list[float | None]:
    return [None if value is None else value / _MEGA for value in values]
