"""The page of `ortkit optimize --precision ... --report FILE.html`: the trade-off as pictures."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortkit.errors import MissingDependencyError, UserError

if TYPE_CHECKING:
    from ortkit.precision.result import PrecisionReport

#: Products that the second picture shows, the most harmful first.
_SHOWN = 40


def is_page(path: Path | None) -> bool:
    """Say whether a report is to be a page."""
    return path is not None and path.suffix.lower() in (".html", ".htm")


def check_page(path: Path, *, lowers: bool) -> None:
    """Check that a page can be made, before anything is done for it.

    Raises:
        UserError: There is nothing to show on it.
        MissingDependencyError: What draws it is not installed.
    """
    if not lowers:
        raise UserError(
            "a page shows what --precision costs on a CPU",
            where=f"--report {path}",
            fix="name a .json file, or a precision",
        )
    if find_spec("plotly") is None:
        raise MissingDependencyError(
            "plotly is not installed", where=f"--report {path}", fix='pip install "ortkit[report]"'
        )


def write_page(report: PrecisionReport, source: str, path: Path) -> None:
    """Write one page that needs no network.

    Raises:
        UserError: It cannot be written.
    """
    from plotly.subplots import make_subplots

    from ortkit.graph.io.atomic import write_whole

    figure = make_subplots(
        rows=2,
        cols=1,
        subplot_titles=("products lowered, least harmful first", "error that each makes alone"),
    )
    _curve(figure, report)
    _harms(figure, report)
    figure.update_layout(
        title=f"{source} in {report.precision}: {_headline(report)}",
        template="plotly_white",
        height=900,
    )
    write_whole(path, figure.to_html(include_plotlyjs=True))


def _headline(report: PrecisionReport) -> str:
    text = f"{report.lowered} of {len(report.nodes)} products"
    if report.error is not None:
        text += f", error {report.error:.2e} on {report.data}"
    return text


def _curve(figure: Any, report: PrecisionReport) -> None:
    lowered = [point.lowered for point in report.curve]
    saved = [
        "not timed" if point.saved_us is None else f"{point.saved_us / 1e3:.3f} ms saved"
        for point in report.curve
    ]
    figure.add_scatter(
        x=lowered, y=[point.error for point in report.curve], text=saved, name="error",
        mode="lines+markers", row=1, col=1,
    )  # fmt: skip
    figure.add_hline(y=report.max_error, line_dash="dash", annotation_text="allowed", row=1, col=1)
    taken = [point for point in report.curve if point.lowered == report.lowered]
    figure.add_scatter(
        x=[point.lowered for point in taken], y=[point.error for point in taken], name="taken",
        mode="markers", marker_size=14, row=1, col=1,
    )  # fmt: skip
    figure.update_xaxes(title_text="products lowered", row=1, col=1)
    figure.update_yaxes(title_text="error of the outputs", row=1, col=1)


def _harms(figure: Any, report: PrecisionReport) -> None:
    nodes = sorted(report.nodes, key=lambda node: -node.harm)[:_SHOWN]
    for name, is_lowered in (("lowered", True), ("float32", False)):
        chosen = [node for node in nodes if node.lowered is is_lowered]
        figure.add_bar(
            x=[node.name for node in chosen], y=[node.harm for node in chosen], name=name,
            text=[node.form for node in chosen], row=2, col=1,
        )  # fmt: skip
    figure.update_yaxes(title_text="error of the outputs", row=2, col=1)
