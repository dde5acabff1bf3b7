"""The page of a profile in a real browser: what is drawn, and what clicks and keys do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ortkit.runtime.profiling.page.write import Page, page_text, write_page
from tests.runtime import chromium
from tests.runtime.chromium import Chromium
from tests.runtime.profile_pages import HOSTILE, OPS, page

WIDTH, HEIGHT = 1280, 800
BARS = "document.querySelectorAll('#timeline .bars rect')"
SEVERAL = "document.querySelectorAll('#timeline .bars .several')"
RANGE = "document.getElementById('timeline').dataset.view.split(' ').map(Number)"
TIP = "document.getElementById('tip')"
MARGIN_LEFT, MARGIN_RIGHT, AXIS = 118, 16, 30
DETAILS = "document.getElementById('details').textContent"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium(width=WIDTH, height=HEIGHT) as made:
        yield made


def shown(browser: Chromium, content: Page, folder: Path) -> None:
    """Open a page and wait until it is drawn."""
    write_page(content, folder / "page.html")
    browser.open(folder / "page.html")
    browser.wait("document.documentElement.dataset.ready === 'yes'")


def column(browser: Chromium, table: str, title: str) -> list[str]:
    found: list[str] = browser.value(
        f"(() => {{ const t = document.getElementById('{table}');"
        f"const at = [...t.tHead.rows[0].cells].findIndex(c => c.textContent === '{title}');"
        "return [...t.tBodies[0].rows].map(r => r.cells[at].textContent); })()"
    )
    return found


def numbers(browser: Chromium, title: str) -> list[float]:
    return [float(text.replace(",", "")) for text in column(browser, "nodes", title)]


def plot_box(browser: Chromium) -> dict[str, float]:
    """Scroll to the timeline and return where its bars are drawn."""
    browser.place("#timeline")
    found: dict[str, float] = browser.value(
        "(() => { const b = document.getElementById('timeline').getBoundingClientRect();"
        f"return {{x: b.x + {MARGIN_LEFT}, y: b.y, width: b.width - {MARGIN_LEFT + MARGIN_RIGHT},"
        f"height: b.height - {AXIS}}}; }})()"
    )
    return found


@chromium.needed
class TestInChromium:
    def test_it_needs_nothing_from_anywhere(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(), tmp_path)
        assert browser.requests() == [(tmp_path / "page.html").as_uri()]
        assert browser.problems() == []

    def test_all_is_drawn_within_the_width(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(), tmp_path)
        assert browser.value("document.documentElement.scrollWidth") <= WIDTH
        assert browser.value(f"{BARS}.length") == 60
        tiles = "document.querySelectorAll('#treemap .part').length"
        assert browser.value(tiles) > len(OPS)
        points = "document.querySelectorAll('#roofline .point').length"
        assert browser.value(points) == 5
        assert len(column(browser, "ops", "Operator")) == len(OPS)
        assert len(column(browser, "nodes", "Node")) == 60

    def test_bars_have_the_colour_of_the_legend(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(nodes=12), tmp_path)
        box = plot_box(browser)
        # MatMul comes first and takes longest, so that most of the left is one bar of it.
        expected = browser.value(
            "getComputedStyle([...document.querySelectorAll('#legend li')]"
            ".find(one => one.textContent === 'MatMul').firstChild).backgroundColor"
        )
        colour, gap = browser.colours(
            [(box["x"] + 0.1 * box["width"], box["y"] + 8), (box["x"] - 3, box["y"] + 8)]
        )
        assert expected == f"rgb{colour}"
        assert gap == (255, 255, 255)

    def test_nothing_moves_once_it_is_shown(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(), tmp_path)
        shift = browser.value(
            "new Promise(done => { let sum = 0; new PerformanceObserver(list => {"
            "for (const one of list.getEntries()) sum += one.value; })"
            ".observe({type: 'layout-shift', buffered: true});"
            "setTimeout(() => done(sum), 300); })"
        )
        assert shift < 0.005

    def test_tiles_are_as_large_as_their_times(self, browser: Chromium, tmp_path: Path) -> None:
        content = page()
        shown(browser, content, tmp_path)
        colour = browser.value(
            "getComputedStyle(document.querySelector('#legend i')).backgroundColor"
        )
        areas = browser.value(
            "[...document.querySelectorAll('#treemap .leaf')]"
            f".filter(one => getComputedStyle(one).fill === '{colour}')"
            ".map(one => one.width.baseVal.value * one.height.baseVal.value)"
        )
        nodes: Any = content.data["nodes"]
        times = [time for time, op in zip(nodes["time"], nodes["op"], strict=True)
                 if op == "MatMul"]  # fmt: skip
        parts = [sorted(area / sum(found) for area in found) for found in (areas, times)]
        assert parts[0] == pytest.approx(parts[1], rel=1e-3) and len(areas) == 5
        # An operator's title shows it alone, and shows all again.
        tiles = "document.querySelectorAll('#treemap .leaf').length"
        before = browser.value(tiles)
        op = "#treemap .part:not(.leaf)[fill]"
        for expected in (5, before):
            x, y = browser.value(
                f"(() => {{ const e = document.querySelector('{op}');"
                "e.scrollIntoView({block: 'center', behavior: 'instant'});"
                "const b = e.getBoundingClientRect(); return [b.x + 20, b.y + 6]; })()"
            )
            for kind in ("mousePressed", "mouseReleased"):
                browser.mouse(kind, x, y, button="left", clickCount=1)
            assert browser.value(tiles) == expected
        browser.click("#treemap .leaf")
        assert "MatMul" in browser.value(DETAILS)

    def test_points_lie_where_their_rates_are(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(), tmp_path)
        place = browser.value(
            "(() => { const p = document.querySelector('#roofline .point');"
            "return [p.cx.baseVal.value, p.cy.baseVal.value]; })()"
        )
        ticks = browser.value(
            "Object.fromEntries([...document.querySelectorAll('#roofline text')].map(one =>"
            "[one.getAttribute('class') + one.textContent, "
            "[Number(one.getAttribute('x')), Number(one.getAttribute('y'))]]))"
        )
        low, high = ticks["end10"][1], ticks["end100"][1]
        assert place[0] == pytest.approx(ticks["middle10"][0], abs=0.2)  # 10 FLOP a byte
        assert place[1] == pytest.approx(low + math.log10(2) * (high - low), abs=0.2)  # 20 GFLOP/s
        names = {name for name in ticks if name.startswith("roof")}
        assert names == {
            "roof-namememory 14 GB/s",
            "roof-namecaches 80 GB/s",
            "roof-name endfloat32 90 GFLOP/s",
        }

    def test_names_are_text_and_nothing_else(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(nodes=30, names=HOSTILE), tmp_path)
        assert browser.problems() == []
        assert browser.value("window.hacked") is None
        assert browser.value("document.querySelector('main b, main img')") is None
        assert browser.value("document.title") == f"{HOSTILE}.onnx"
        assert f"{HOSTILE}7" in column(browser, "nodes", "Node")
        box = plot_box(browser)
        browser.mouse("mouseMoved", box["x"] + 0.03 * box["width"], box["y"] + 8)
        browser.wait(f"!{TIP}.hidden && {TIP}.textContent.includes('window.hacked')")
        assert HOSTILE[:16] in browser.value(f"{TIP}.textContent")
        browser.click("#nodes tbody button")
        assert HOSTILE in browser.value(DETAILS)
        assert browser.value("window.hacked") is None

    def test_titles_sort_and_words_filter(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(), tmp_path)
        first = numbers(browser, "µs a run")
        assert first == sorted(first, reverse=True) and len(set(first)) > 30
        browser.click("#nodes th:nth-child(4) button")
        assert numbers(browser, "µs a run") == sorted(first)
        sort = "document.querySelector('#nodes th:nth-child(4)').getAttribute('aria-sort')"
        assert browser.value(sort) == "ascending"
        browser.click("#nodes th:nth-child(2) button")
        assert column(browser, "nodes", "Operator") == sorted(OPS * 5)
        assert browser.value(sort) is None
        # What is not known comes last, either way.
        for _ in range(2):
            browser.click("#nodes th:nth-child(9) button")
            rates = column(browser, "nodes", "GFLOP/s")
            assert rates == ["20.0"] * 5 + [""] * 55
        browser.click("#nodes-filter")
        browser.type("LAYER.3 softmax")
        assert column(browser, "nodes", "Node") == ["/layer.3/Softmax_37"]
        said = browser.value("document.getElementById('nodes-what').textContent")
        assert said == "1 of 60 nodes match"
        browser.value("document.getElementById('nodes-filter').select()")
        browser.type("origin_10")
        assert column(browser, "nodes", "Node") == ["/layer.0/Slice_10".replace("Slice", OPS[10])]

    def test_the_keyboard_is_enough(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(), tmp_path)
        reached = set()
        for _ in range(40):
            browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab",
                         windowsVirtualKeyCode=9)  # fmt: skip
            reached.add(browser.value("document.activeElement.id || document.activeElement.title"))
        assert {"theme", "timeline", "ops-filter", "Zoom in (+)"} <= reached
        browser.value("document.getElementById('timeline').focus()")
        start, end = browser.value(RANGE)
        for key, expected in (("+", 0.5), ("+", 0.25), ("-", 0.5)):
            browser.key(key)
            low, high = browser.value(RANGE)
            assert (high - low) / (end - start) == pytest.approx(expected)
        browser.key("ArrowRight")
        assert browser.value(RANGE)[0] > low
        browser.key("0")
        assert browser.value(RANGE) == [start, end]
        for name in ("/layer.0/MatMul_0", "/layer.0/Softmax_1"):
            browser.key("n")
            assert name in browser.value(DETAILS)
        browser.key("p")
        assert "/layer.0/MatMul_0" in browser.value(DETAILS)

    def test_the_mouse_zooms_and_moves(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(), tmp_path)
        box = plot_box(browser)
        start, end = browser.value(RANGE)

        def drag(first: float, last: float, **more: Any) -> tuple[float, float]:
            y = box["y"] + box["height"] / 2
            left, right = (box["x"] + part * box["width"] for part in (first, last))
            browser.mouse("mouseMoved", left, y)
            browser.mouse("mousePressed", left, y, button="left", clickCount=1, **more)
            for part in (0.3, 0.7, 1):
                x = left + part * (right - left)
                browser.mouse("mouseMoved", x, y, button="left", **more)
            browser.mouse("mouseReleased", right, y, button="left", clickCount=1, **more)
            low, high = browser.value(RANGE)
            return (low - start) / (end - start), (high - start) / (end - start)

        assert drag(0.25, 0.75) == pytest.approx((0.25, 0.75), abs=0.01)
        assert drag(0.5, 0.7, modifiers=8) == pytest.approx((0.15, 0.65), abs=0.01)
        x, y = box["x"] + box["width"] / 2, box["y"] + 10
        browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-100, modifiers=2)
        low, high = browser.value(RANGE)
        assert (high - low) / (end - start) == pytest.approx(0.5 * 2**-0.5, abs=0.01)
        browser.click("[data-move=all]")
        assert browser.value(RANGE) == [start, end]

    def test_a_click_tells_of_a_node(self, browser: Chromium, tmp_path: Path) -> None:
        content = page()
        shown(browser, content, tmp_path)
        assert "Choose a node" in browser.value(DETAILS)
        box = plot_box(browser)
        x, y = box["x"] + 0.03 * box["width"], box["y"] + 8
        browser.mouse("mouseMoved", x, y)
        browser.wait(f"!{TIP}.hidden")
        browser.mouse("mousePressed", x, y, button="left", clickCount=1)
        browser.mouse("mouseReleased", x, y, button="left", clickCount=1)
        browser.wait(f"{DETAILS}.includes('MatMul_0')")
        assert "origin_0, shared" in browser.value(DETAILS)
        assert browser.value("document.querySelector('#nodes .chosen td').textContent") == (
            "/layer.0/MatMul_0"
        )
        browser.click("#nodes tbody tr:nth-child(3) button")
        name = column(browser, "nodes", "Node")[2]
        assert name in browser.value(DETAILS)
        start, end = browser.value(RANGE)
        run: Any = content.data["run"]
        assert end - start < 0.9 * run["duration"]

    def test_a_node_links_to_its_place_in_the_graph(
        self, browser: Chromium, tmp_path: Path
    ) -> None:
        content = page(nodes=4)
        shown(browser, content, tmp_path)
        browser.click("#nodes tbody button")
        assert browser.value("document.querySelector('#details a')") is None
        parts: Any = content.data
        parts["graph_page"] = "../graph%20of%20it.html"
        shown(browser, content, tmp_path)
        browser.click("#nodes tbody button")
        name = column(browser, "nodes", "Node")[0]
        link = browser.value("document.querySelector('#details a').getAttribute('href')")
        assert link == f"../graph%20of%20it.html#node={quote(name, safe='')}"

    def test_dark_and_light(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(), tmp_path)
        box = plot_box(browser)
        point = (box["x"] - 3, box["y"] + 8)
        (light,) = browser.colours([point])
        browser.click("#theme")
        plot_box(browser)
        (dark,) = browser.colours([point])
        assert min(light) > 200 and max(dark) < 80
        browser.call("Emulation.setEmulatedMedia",
                     features=[{"name": "prefers-color-scheme", "value": "dark"}])  # fmt: skip
        shown(browser, page(), tmp_path)
        assert browser.value("document.documentElement.dataset.theme") == "dark"
        browser.call("Emulation.setEmulatedMedia", features=[])

    def test_many_nodes_are_drawn_together(self, browser: Chromium, tmp_path: Path) -> None:
        shown(browser, page(nodes=20_000, threads=4), tmp_path)
        assert browser.problems() == []
        assert browser.value(f"{BARS}.length") <= 2500
        assert browser.value(f"{SEVERAL}.length")
        assert len(column(browser, "nodes", "Node")) == 200
        what = "document.getElementById('nodes-what').textContent"
        assert browser.value(what) == "200 of 20,000 nodes"
        browser.click("#nodes-more")
        assert len(column(browser, "nodes", "Node")) == 400
        assert "joined as" in browser.value("document.getElementById('treemap-what').textContent")
        # Zoomed in far enough, each is a bar of its own.
        browser.value("document.getElementById('timeline').focus()")
        for _ in range(8):
            browser.key("+")
        assert not browser.value(f"{SEVERAL}.length")
        assert browser.value(f"{BARS}.length") > 15

    @pytest.mark.parametrize("narrow", [False, True])
    def test_gaps_are_not_covered(self, narrow: bool, browser: Chromium, tmp_path: Path) -> None:
        content = page(nodes=40)
        parts: Any = content.data
        # Two bars, or two groups of bars that are narrower than a pixel, and nothing between.
        width = 1.0 if narrow else 800.0
        parts["bars"]["start"] = [9000.0 * (index % 2) + 20 * width * (index // 2) / 800
                                  for index in range(40)]  # fmt: skip
        parts["bars"]["duration"] = [width / 60] * 40 if narrow else [width / 40] * 40
        parts["run"]["duration"] = 10_000.0
        shown(browser, content, tmp_path)
        box = plot_box(browser)
        row = box["y"] + 8
        (gap,) = browser.colours([(box["x"] + 0.5 * box["width"], row)])
        assert gap == (255, 255, 255)
        assert browser.value(f"{BARS}.length") >= 2

    def test_without_peaks_and_memory(self, browser: Chromium, tmp_path: Path) -> None:
        content = page(peaks=False)
        parts: Any = content.data
        parts["memory"] = {"time": [], "bytes": [], "of": "", "missing": "the arena is off"}
        shown(browser, content, tmp_path)
        assert browser.problems() == []
        said = "document.getElementById('{}').textContent"
        assert "the arena is off" in browser.value(said.format("timeline-what"))
        assert "peaks were not measured" in browser.value(said.format("roofline-what"))
        parts["nodes"]["gflops"] = [None] * 60
        shown(browser, content, tmp_path)
        assert browser.value(said.format("roofline")).startswith("No node's arithmetic")

    def test_a_device_has_lanes_and_a_table(self, browser: Chromium, tmp_path: Path) -> None:
        content = page(nodes=12)
        parts: Any = content.data
        parts["lanes"].append("stream 7")
        for name, value in (("start", 5.0), ("duration", 300.0), ("node", -1), ("lane", 1),
                            ("depth", 0), ("label", f"kernel {HOSTILE}")):  # fmt: skip
            parts["bars"][name].append(value)
        parts["nodes"]["device"] = [float(index) for index in range(12)]
        parts["kernels"] = {"name": [HOSTILE, "copy to the device"], "kind": ["kernel", "copy"],
                            "calls": [3, 1], "time": [40.0, 60.0], "share": [0.4, 0.6],
                            "bytes": [None, 4096]}  # fmt: skip
        shown(browser, content, tmp_path)
        assert browser.problems() == []
        assert column(browser, "kernels", "Kernel") == ["copy to the device", HOSTILE]
        assert column(browser, "nodes", "Device µs")[0] == "0.0"
        said = "document.getElementById('{}').textContent"
        assert browser.value(said.format("treemap-what")) == "time on the device a run"
        assert "stream 7" in browser.value(said.format("timeline"))
        box = plot_box(browser)
        x, y = box["x"] + 0.1 * box["width"], box["y"] + 46 + 8
        browser.mouse("mouseMoved", x, y)
        browser.wait(f"!{TIP}.hidden")
        browser.mouse("mousePressed", x, y, button="left", clickCount=1)
        browser.mouse("mouseReleased", x, y, button="left", clickCount=1)
        browser.wait(f"{DETAILS}.startsWith('On the device')")
        assert HOSTILE in browser.value(DETAILS)
        assert browser.value("window.hacked") is None


def test_data_cannot_end_their_element() -> None:
    text = page_text(page(nodes=30, names=HOSTILE))
    start = text.index('<script type="application/json" id="data">') + 42
    embedded = text[start : text.index("</script>", start)]
    assert json.loads(embedded)["nodes"]["name"][3] == f"{HOSTILE}3"
    assert "<script>window" not in text
