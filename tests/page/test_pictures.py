"""The pictures of the documentation are what `scripts/pictures` makes today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ortkit.page.chart import draw_chart
from scripts.charts import charts
from tests.runtime import chromium

ROOT = Path(__file__).parents[2]


def _without_style(picture: str) -> str:
    """Return a picture without its styles, which each browser's version writes in its own way."""
    return re.sub(r"<style>.*?</style>", "", picture, flags=re.DOTALL)


def test_charts_are_what_the_documentation_says() -> None:
    for name, chart in charts().items():
        kept = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
        assert kept == draw_chart(chart), "run scripts/pictures"
    cpu, cuda = charts().values()
    assert (cpu.labels[0], cpu.series[0].values[0]) == ("bert", 1.18)
    assert (cuda.labels[0], cuda.series[0].values[0]) == ("bert-base", 2.78 / 0.506)
    for chart in (cpu, cuda):
        assert re.match(r"20\d\d-\d\d-\d\d, .*, onnxruntime.* \d+\.\d+", chart.note)


@chromium.needed
def test_pictures_are_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts" / "pictures.py")
    assert spec is not None and spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))  # restored afterwards
    made = pictures.main(tmp_path / "images").read_text(encoding="utf-8")
    kept = (ROOT / "docs" / "images" / pictures.FILE).read_text(encoding="utf-8")
    assert _without_style(kept) == _without_style(made), "run scripts/pictures"


def test_a_picture_stands_alone_and_is_light_and_dark() -> None:
    text = (ROOT / "docs" / "images" / "before_after.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    titles = [item.text or "" for item in root.iter() if item.get("class") == "head"]
    before, after = (int(re.findall(r"\d+", title)[0]) for title in titles)
    boxes = [one for one in root.iter() if "item" in (one.get("class") or "").split()]
    assert before > 5 * after and len(boxes) == before + after
    assert "prefers-color-scheme" in text and "--on-fused" in text
    assert not re.search(r"href|@import|url\(|<script", text)
