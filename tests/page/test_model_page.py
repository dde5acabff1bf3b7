"""The page of a model in a real browser: what is drawn, and what clicks and keys do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ortkit.page.graph.build import document_of
from ortkit.page.graph.document import Document
from ortkit.page.graph.write import write_page
from tests.page.page_models import hostile_pair, large, optimized_page, pair
from tests.runtime import chromium
from tests.runtime.chromium import Chromium

pytestmark = chromium.needed
DETAILS = "document.getElementById('details').textContent"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium(width=1440, height=900) as made:
        yield made


def shown(browser: Chromium, page: Path, node: str = "") -> None:
    browser.open(page)
    browser.wait("document.documentElement.dataset.ready === 'yes'")
    if node:
        browser.value(f"location.hash = {json.dumps('#node=' + quote(node, safe=''))}")
        browser.wait("document.querySelector('.chosen')")


def written(document: Document, folder: Path) -> Path:
    write_page(document, folder / "page.html")
    return folder / "page.html"


def titles(browser: Chromium, selector: str) -> list[str]:
    found: list[str] = browser.value(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)"
    )
    return sorted(found)


def middle(browser: Chromium, pane: int, text: str) -> tuple[float, float]:
    """Return where the box that says `text` first is."""
    box = browser.value(
        f"(() => {{ const e = [...document.querySelectorAll('#pane-{pane} .item')]"
        f".find(one => one.querySelector('text').textContent === {json.dumps(text)});"
        "const b = e.querySelector('rect').getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    return box[0], box[1]


def click(browser: Chromium, pane: int, text: str) -> None:
    x, y = middle(browser, pane, text)
    browser.mouse("mouseMoved", x, y)
    browser.mouse("mousePressed", x, y, button="left", clickCount=1)
    browser.mouse("mouseReleased", x, y, button="left", clickCount=1)


def test_no_request_leaves_the_page(browser: Chromium, tmp_path: Path) -> None:
    page = written(pair(), tmp_path)
    shown(browser, page)
    assert browser.requests() == [page.as_uri()]
    assert browser.problems() == []
    assert titles(browser, "#pane-1 .node .title") == [
        "Relu", "mul_tanh_add", "product_gelu", "x", "y",
    ]  # fmt: skip


def test_a_click_on_a_fused_node_tells_of_it_and_lights_what_it_stands_for(
    browser: Chromium, tmp_path: Path
) -> None:
    shown(browser, written(pair(), tmp_path))
    click(browser, 1, "product_gelu")
    browser.wait("document.querySelector('#pane-1 .chosen')")
    told = browser.value(DETAILS)
    assert "e = Erf (q)" in told and "Stands for 4 nodes" in told
    lit = "#pane-0 .item.lit .title"
    assert titles(browser, lit) == ["Add", "Erf", "MatMul", "Mul"]
    assert browser.value("location.hash") == "#node=r%2Ffused"
    browser.key("Escape")
    assert titles(browser, lit) == []
    assert browser.value("document.querySelector('.chosen')") is None


def test_hovering_lights_the_other_graph_and_names_edges(
    browser: Chromium, tmp_path: Path
) -> None:
    shown(browser, written(pair(), tmp_path))
    browser.mouse("mouseMoved", *middle(browser, 1, "mul_tanh_add"))
    browser.wait("document.querySelectorAll('#pane-0 .item.lit').length === 3")
    x, y = browser.value(
        "(() => { const e = document.querySelector('#pane-1 .touch');"
        "const p = e.getPointAtLength(e.getTotalLength() / 2).matrixTransform(e.getScreenCTM());"
        "return [p.x, p.y]; })()"
    )
    browser.mouse("mouseMoved", x, y)
    browser.wait("document.getElementById('tip').textContent.includes('float32[n, 64]')")


def test_search_finds_and_goes_there(browser: Chromium, tmp_path: Path) -> None:
    shown(browser, written(pair(), tmp_path))
    browser.key("/", "/")
    browser.type("tanh")
    browser.wait("document.querySelectorAll('#found li').length === 2")
    assert titles(browser, "#found li small") == ["after · y/fused", "before · /b/Tanh"]
    browser.key("ArrowDown")
    browser.key("Enter")
    browser.wait("document.querySelector('#pane-0 .chosen .title')?.textContent === 'Tanh'")
    assert "Became 1 node" in browser.value(DETAILS)
    browser.key("/", "/")
    browser.type("nowhere")
    browser.wait("document.getElementById('found').textContent === 'nothing is called that'")


def test_a_link_leads_to_a_node_or_to_what_makes_a_value(
    browser: Chromium, tmp_path: Path
) -> None:
    page = written(pair(), tmp_path)
    shown(browser, page, "/b/Tanh")
    assert titles(browser, ".chosen .title") == ["Tanh"]
    shown(browser, page, "y")
    assert titles(browser, ".chosen .title") == ["mul_tanh_add"]
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=f"{page.as_uri()}#node=/b/Constant")
    browser.wait("document.querySelector('#pane-0 .chosen .title')?.textContent === 'Constant'")


def test_groups_open_and_close(browser: Chromium, tmp_path: Path) -> None:
    shown(browser, written(pair(), tmp_path))
    before = titles(browser, "#pane-0 .node .title")
    assert len(before) == 11
    browser.click("#pane-0 [title='Close all groups']")
    assert titles(browser, "#pane-0 .node .title") == ["x", "y"]
    assert titles(browser, "#pane-0 .group .title") == ["▸ a", "▸ b"]
    click(browser, 0, "▸ a")
    assert titles(browser, "#pane-0 .node .title") == ["Add", "Erf", "MatMul", "Mul", "x", "y"]
    browser.click("#pane-0 [title='Open all groups']")
    assert titles(browser, "#pane-0 .node .title") == before


def test_boxes_do_not_overlap_and_edges_lead_down(browser: Chromium, tmp_path: Path) -> None:
    shown(browser, optimized_page(tmp_path))
    for pane in (0, 1):
        browser.click(f"#pane-{pane} [title='Open all groups']")
        browser.click(f"#pane-{pane} [title='Show all (0)']")
        overlaps = browser.value(
            "(() => { const all ="
            f" [...document.querySelectorAll('#pane-{pane} .item:not(.open)')]"
            ".map(one => { const b = one.querySelector('rect').getBoundingClientRect();"
            " return [b.x, b.y, b.right, b.bottom]; });"
            "let count = 0; for (const a of all) for (const b of all) if (a !== b"
            " && a[0] < b[2] - 0.2 && b[0] < a[2] - 0.2 && a[1] < b[3] - 0.2 && b[1] < a[3] - 0.2)"
            " count++; return [all.length, count]; })()"
        )
        assert overlaps[0] > 30 and overlaps[1] == 0
        assert browser.value(
            f"[...document.querySelectorAll('#pane-{pane} .wire')].every(one => {{"
            "const end = one.getTotalLength();"
            "return one.getPointAtLength(0).y < one.getPointAtLength(end).y; })"
        )
    assert browser.problems() == []


def test_what_optimize_says_is_on_its_page(browser: Chromium, tmp_path: Path) -> None:
    shown(browser, optimized_page(tmp_path))
    browser.wait("document.querySelector('#pane-1 .fused')")
    browser.value("location.hash = '#node=last_hidden_state'")
    browser.wait("document.querySelector('#pane-1 .chosen')")
    told = browser.value(DETAILS)
    for word in ("kernel", "add_layer_norm, 2 nodes", "predicted", "fuse-regions", "LayerNorm"):
        assert word in told, word
    sections = titles(browser, "#tables h2")
    assert sections == ["Not rewritten", "Operators", "Passes", "Regions"]


def test_5000_nodes_stay_usable(browser: Chromium, tmp_path: Path) -> None:
    page = written(document_of(large(), "large"), tmp_path)
    shown(browser, page)
    click(browser, 0, "▸ model")
    browser.wait("document.querySelector('.group .title')?.textContent.startsWith('▸ layers.')")
    browser.click("[title='Open all groups']")
    browser.click("[title='Show all (0)']")
    drawn = "Number(document.querySelector('svg').dataset.drawn)"
    assert browser.value(drawn) > 5000
    elements = "document.querySelectorAll('svg *').length"
    assert browser.value(elements) < 100  # far out: a path for each family
    browser.key("/", "/")
    browser.type("layers.137/Sigmoid_24")
    browser.key("Enter")
    browser.wait("document.querySelector('.chosen .title')?.textContent === 'Sigmoid'")
    assert browser.value(drawn) < 1000
    assert browser.problems() == []
    # What a step costs is what it draws: the nodes of the window, not those of the model.
    most = browser.value(
        "(() => { const sizes = [], buttons = ['Zoom out (−)', 'Zoom in (+)'];"
        "for (let turn = 0; turn < 20; turn++) {"
        " document.querySelector(`[title='${buttons[turn % 2]}']`).click();"
        f" sizes.push({elements}); }}"
        "return Math.max(...sizes); })()"
    )
    assert most < 3000


def test_names_are_text_and_nothing_else(browser: Chromium, tmp_path: Path) -> None:
    page = written(hostile_pair(), tmp_path)
    shown(browser, page)
    click(browser, 1, "product_gelu")
    browser.wait(f"{DETAILS}.includes('onerror')")
    browser.mouse("mouseMoved", *middle(browser, 1, "mul_tanh_add"))
    browser.key("/", "/")
    browser.type("onerror")
    browser.wait("document.querySelectorAll('#found li').length > 3")
    assert browser.value("window.hacked") is None
    assert browser.value("document.querySelector('img, main b')") is None
    assert browser.problems() == []
    assert browser.requests() == [page.as_uri()]


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (900, 700)])
def test_it_fits_and_is_light_or_dark(
    width: int, height: int, browser: Chromium, tmp_path: Path
) -> None:
    page = written(pair(), tmp_path)
    size = {"deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **size)
    for scheme in ("dark", "light"):
        browser.call("Emulation.setEmulatedMedia",
                     features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
        shown(browser, page)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.value("document.documentElement.dataset.theme") == scheme
        x, y = browser.place("#pane-1 svg")
        box = browser.value("document.querySelector('#pane-1 svg').getBoundingClientRect().left")
        (colour,) = browser.colours([(box + 4, y)])
        assert (min(colour) > 200) == (scheme == "light"), (x, colour)
    browser.call("Emulation.setEmulatedMedia", features=[])
    browser.call("Emulation.setDeviceMetricsOverride", width=1440, height=900, **size)
