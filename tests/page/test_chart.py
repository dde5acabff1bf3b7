"""Charts as SVG: what is drawn where, and what tooltips say."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ortkit.cli.precision_page import write_page
from ortkit.page.chart import Chart, Series, draw_chart, round_ticks
from ortkit.precision.result import NodeOutcome, Point, PrecisionReport

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert(1)</script>"


def bars(picture: str) -> list[tuple[float, float]]:
    """Return where each bar ends above, and how high it is."""
    return [
        (float(item.attrib["y"]), float(item.attrib["height"]))
        for item in ElementTree.fromstring(picture).iter(f"{SVG}rect")
        if "fill" in item.attrib and item.attrib["height"] != "10.0"
    ]


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(1.41, [0, 0.5, 1, 1.5]), (9, [0, 2, 4, 6, 8, 10]), (0, [0]), (43, [0, 10, 20, 30, 40, 50])],
)
def test_ticks_are_round(most: float, ticks: list[float]) -> None:
    assert round_ticks(most) == pytest.approx(ticks)


@pytest.mark.parametrize("stacked", [False, True])
def test_bars_are_as_high_as_their_values(stacked: bool) -> None:
    series = [Series("first", [1.0, 2.0]), Series("second", [3.0, None])]
    found = bars(draw_chart(Chart("t", "MB", ["a", "b"], series, stacked=stacked)))
    (top, one), *_ = found
    heights = [height / one for _, height in found if height]
    assert sorted(heights) == pytest.approx([1, 2, 3], rel=0.01)
    lowest = [round(y + height, 1) for y, height in found]
    assert (len(set(lowest)) == 1) is not stacked
    assert not stacked or top in lowest  # the second stands on the first


def test_values_that_cannot_be_drawn_are_in_the_tooltips() -> None:
    series = [Series("error", [math.inf, -1.0, 2.0], "line")]
    picture = draw_chart(Chart("t", "e", ["a", "b", HOSTILE], series, level=("most", 4.0)))
    tooltips = [item.text for item in ElementTree.fromstring(picture).iter(f"{SVG}title")]
    assert tooltips == ["a\nerror: inf", "b\nerror: -1", f"{HOSTILE}\nerror: 2"]
    assert picture.count("<circle") == 2 and "nan" not in picture
    assert not re.search(r"<script|href|url\(", picture)


def test_a_value_for_each_label() -> None:
    for labels, values in ((["a"], [1.0, 2.0]), ([], [])):
        with pytest.raises(ValueError, match="one value for each label"):
            draw_chart(Chart("t", "MB", labels, [Series("x", values)]))


def test_the_page_of_a_precision(tmp_path: Path) -> None:
    nodes = [
        NodeOutcome(f"dense_{at}", "MatMul", "int8", 0.1, harm, None, None, at == 1, "")
        for at, harm in enumerate((0.3, 0.2))
    ]
    points = (Point(0, 0.0, None), Point(1, 0.2, 1500.0))
    report = PrecisionReport(
        "int8", 0.25, tuple(nodes), points, (), "x.npz", False, 8, 0, (), taken=1
    )
    write_page(report, "m.onnx", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "m.onnx in int8" in text and "1 of 2 products" in text
    assert text.count("<svg") == 2 and "1\nerror: 0.2\ntaken: 0.2\nms saved: 1.5" in text
    assert "dense_0 (int8)\nfloat32: 0.3" in text and "dense_1 (int8)\nlowered: 0.2" in text
