"""Pictures for the documentation: a layer as the page of a model draws it, and charts."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import models
from ortkit.graph.io.open import open_model
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.page.chart import draw_chart
from ortkit.page.graph.build import document_of_two
from ortkit.page.graph.document import Document, Graph
from ortkit.page.graph.groups import with_groups
from ortkit.page.graph.write import write_page
from scripts.charts import charts
from tests.runtime.chromium import Chromium

ROOT = Path(__file__).parents[1]
FILE = "before_after.svg"
LAYER = ("encoder", "layer.0")
_WIDTHS, _HEIGHT, _GAP, _HEAD = (340, 520), 560, 30, 34


def main(folder: Path) -> Path:
    """Write the pictures into a folder, which is made if it is not there."""
    with tempfile.TemporaryDirectory() as work:
        os.environ["ORTKIT_CACHE"] = work  # a calibration of this machine changes what is fused
        content = layer_picture(Path(work))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(content, encoding="utf-8")
    for name, chart in charts().items():
        (folder / name).write_text(draw_chart(chart), encoding="utf-8")
    return folder / FILE


def layer_picture(work: Path) -> str:
    """Return one encoder layer of a BERT, as exported and as optimized, side by side."""
    source = models.build("bert", "tiny", "ts")
    options = OptimizeOptions(verify=False, check_load=False, cpu="x86-64-v4")
    optimized = optimize(source, options)
    document = document_of_two(open_model(source), optimized.model, ("before", "after"))
    counts, pictures = [], []
    cut = replace(document, graphs=tuple(map(only_layer, document.graphs)), origins=())
    for graph in cut.graphs:
        counts.append(sum(node.role == "node" for node in graph.nodes))
        pictures.append(drawn(Document("picture", "", (graph,)), work))
    return side_by_side(
        pictures, [f"exported: {counts[0]} nodes", f"optimized: {counts[1]} nodes"]
    )


def only_layer(graph: Graph) -> Graph:
    """Return the part of a graph that is in the group `LAYER`, without groups and constants."""
    is_inside = [group.path[: len(LAYER)] == LAYER for group in graph.groups]
    chosen = [
        at
        for at, node in enumerate(graph.nodes)
        if is_inside[graph.group_of[at]] and node.op != "Constant"
    ]
    number = {at: new for new, at in enumerate(chosen)}
    edges = tuple(
        replace(edge, source=number[edge.source], target=number[edge.target])
        for edge in graph.edges
        if edge.source in number and edge.target in number
    )
    nodes = tuple(replace(graph.nodes[at], path=()) for at in chosen)
    return with_groups(replace(graph, nodes=nodes, edges=edges))


def drawn(document: Document, work: Path) -> str:
    """Return what the button of a page saves."""
    page = work / "page.html"
    write_page(document, page)
    with Chromium(width=1200, height=900) as browser:
        browser.open(page)
        browser.wait("document.documentElement.dataset.ready === 'yes'")
        browser.value(
            "HTMLAnchorElement.prototype.click = function () { window.saved = this.href; }, true"
        )
        browser.click("[title^='Save this graph']")
        saved: str = browser.value("window.saved")
    return unquote(saved.partition(",")[2])


def side_by_side(pictures: list[str], titles: list[str]) -> str:
    """Return pictures in a row, each as large as its column and below its title."""
    parts, x = [], 0
    for picture, title, column in zip(pictures, titles, _WIDTHS, strict=True):
        size = re.search(r'width="(\d+)" height="(\d+)"', picture)
        assert size is not None
        box = f'x="{x}" y="{_HEAD}" width="{column}" height="{_HEIGHT}"'
        placed = picture.replace(size[0], box)  # which keeps the aspect ratio
        parts.append(f'<text class="head" x="{x + column // 2}" y="20">{title}</text>{placed}')
        x += column + _GAP
    # The first picture's style is enough: it holds for the whole file.
    first, *rest = parts
    rest = [re.sub(r"<style>.*?</style>", "", part, flags=re.DOTALL) for part in rest]
    style = (
        "<style>.head{font:600 15px system-ui,sans-serif;text-anchor:middle;fill:#444c56}"
        "@media (prefers-color-scheme:dark){.head{fill:#c3cad3}}</style>"
    )
    width, height = x - _GAP, _HEIGHT + _HEAD
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{style}{first}{"".join(rest)}</svg>\n'
    )


if __name__ == "__main__":
    print(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"))
