"""A page of charts."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from html import escape

from ortkit.page.chart import Chart, draw_chart
from ortkit.page.shell import Shell, render

_ASSETS = importlib.resources.files("ortkit.page") / "chart_assets"


def chart_page(title: str, subtitle: str, charts: Sequence[Chart]) -> str:
    """Return a page of charts as HTML; one without a label is its title alone."""
    drawn = "\n".join(
        f"<section>{draw_chart(chart) if chart.labels else escape(chart.title)}</section>"
        for chart in charts
    )
    return render(Shell(title, subtitle, (), (), {}), _ASSETS, {"CHARTS": drawn})
