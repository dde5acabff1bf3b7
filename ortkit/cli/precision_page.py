"""The page of `ortkit optimize --precision ... --report FILE.html`: the trade-off as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.errors import UserError

if TYPE_CHECKING:
    from ortkit.page.chart import Chart
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
    """
    if not lowers:
        raise UserError(
            "a page shows what --precision costs on a CPU",
            where=f"--report {path}",
            fix="name a .json file, or a precision",
        )


def write_page(report: PrecisionReport, source: str, path: Path) -> None:
    """Write one page that needs no network.

    Raises:
        UserError: It cannot be written.
    """
    from ortkit.graph.io.atomic import write_whole
    from ortkit.page.chart_page import chart_page

    title = f"{source} in {report.precision}"
    write_whole(path, chart_page(title, _headline(report), [_curve(report), _harms(report)]))


def _headline(report: PrecisionReport) -> str:
    text = f"{report.lowered} of {len(report.nodes)} products"
    if report.error is not None:
        text += f", error {report.error:.2e} on {report.data}"
    return text


def _curve(report: PrecisionReport) -> Chart:
    from ortkit.page.chart import Chart, Series

    points = report.curve
    chosen = [point.error if point.lowered == report.taken else None for point in points]
    series = [Series("error", [point.error for point in points], "line")]
    saved = [None if point.saved_us is None else point.saved_us / 1e3 for point in points]
    return Chart(
        "Products lowered, least harmful first",
        "error of the outputs",
        [str(point.lowered) for point in points],
        [*series, Series("taken", chosen, "points")],
        across="products lowered",
        level=("allowed", report.max_error),
        tooltip={"ms saved": saved},
    )


def _harms(report: PrecisionReport) -> Chart:
    from ortkit.page.chart import Chart, Series

    nodes = sorted(report.nodes, key=lambda node: -node.harm)[:_SHOWN]
    series = [
        Series(name, [node.harm if node.lowered is is_lowered else None for node in nodes])
        for name, is_lowered in (("lowered", True), ("float32", False))
    ]
    labels = [f"{node.name} ({node.form})" if node.form else node.name for node in nodes]
    title = "Error that each product makes alone"
    return Chart(title, "error of the outputs", labels, series, stacked=True, size=(900, 440))
