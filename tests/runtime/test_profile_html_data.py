"""From real profiles to what their pages hold."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.page.text import bytes_text
from ortkit.runtime.profiling.advice import Advice
from ortkit.runtime.profiling.document import profile_from
from ortkit.runtime.profiling.page import data as data_module
from ortkit.runtime.profiling.page import timeline as timeline_module
from ortkit.runtime.profiling.page.data import page_of
from ortkit.runtime.profiling.page.write import page_text, write_page
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.session import Session
from tests.runtime import chromium
from tests.runtime.profile_pages import HOSTILE

LOOP = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) {
  w = Constant <value_floats: floats = [1.0]> ()
  trips = Constant <value_int: int = 5> ()
  true = Constant <value = bool {1}> ()
  [outside] t = MatMul (x, k)
  [the_loop] z = Loop (trips, true, t) <body = body (int64 i, bool c, float[n, 64] s)
    => (bool d, float[n, 64] r) {
      [also_inside] d = Identity (c)
      [inside] r = Sin (s)
    }>
  [last] y = Tanh (z)
}
"""


def profiled(folder: Path, *, rename: str = "", runs: int = 8) -> Profile:
    model = onnx.parser.parse_model(LOOP.replace("float[n, 64] x)", "float[n, 64] x)", 1))
    weight = np.full((64, 64), 0.01, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "k"))
    if rename:
        for node in model.graph.node:
            node.name = node.name and f"{rename}{node.name}"
    path = folder / "m.onnx"
    onnx.save(model, path)
    with Session(path, "cpu") as session:
        with session.profile(warmup=1) as recording:
            for _ in range(runs):
                session.run({"x": np.ones((4, 64), np.float32)})
        return recording.result


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return profiled(tmp_path_factory.mktemp("profile"))


def names_of(nodes: Any) -> list[str]:
    found: list[str] = nodes["name"]
    return found


def test_bars_are_one_run_and_nest(profile: Profile) -> None:
    page = page_of(profile)
    data: Any = json.loads(json.dumps(page.data, allow_nan=False))
    names, bars = names_of(data["nodes"]), data["bars"]
    shown = [names[node] for node in bars["node"]]
    assert shown.count("outside") == shown.count("the_loop") == shown.count("last") == 1
    assert shown.count("inside") == 5
    loop = shown.index("the_loop")
    start, end = bars["start"][loop], bars["start"][loop] + bars["duration"][loop]
    for at, name in enumerate(shown):
        assert bars["depth"][at] == (1 if "inside" in name else 0)
        if "inside" in name:
            assert start <= bars["start"][at] <= bars["start"][at] + bars["duration"][at] <= end
        assert bars["start"][at] >= 0
        assert bars["start"][at] + bars["duration"][at] <= data["run"]["duration"]
    assert (data["run"]["of"], len(data["lanes"])) == (7, 1)


def test_the_run_shown_is_the_median(profile: Profile) -> None:
    assert profile.trace is not None
    taken = sorted(profile.trace.runs[run].duration_us for run in profile.counted)
    assert page_of(profile).data["run"]["duration"] == taken[3]  # type: ignore[index]


def test_runs_that_were_disturbed_are_said(profile: Profile) -> None:
    assert profile.trace is not None
    number = profile.counted[0]
    runs = list(profile.trace.runs)
    for one in profile.counted:
        runs[one] = dataclasses.replace(runs[one], duration_us=1000)
    said = "1 of 7 runs took more than 2 times the median (run 1: 2.5 ms): the machine"
    for duration, is_said in ((2000, False), (2500, True)):
        runs[number] = dataclasses.replace(runs[number], duration_us=duration)
        trace = dataclasses.replace(profile.trace, runs=runs)
        notes = page_of(dataclasses.replace(profile, trace=trace)).notes
        assert any(note.startswith(said) for note in notes) is is_said


def test_tables_are_the_rows_of_the_profile(profile: Profile) -> None:
    data: Any = page_of(profile).data
    assert names_of(data["nodes"]) == [row.name for row in profile.rows]
    column = data["nodes"]["inputs"]
    place = names_of(data["nodes"]).index("outside")
    assert column["values"][column["index"][place]].startswith("float32[4,64]")
    assert data["nodes"]["calls"][names_of(data["nodes"]).index("inside")] == 5
    assert sum(data["ops"]["nodes"]) == len(profile.rows)


def test_memory_is_that_of_the_run(profile: Profile) -> None:
    data: Any = page_of(profile).data
    memory = data["memory"]
    assert memory["missing"] == "" and memory["of"] == "CPUExecutionProvider"
    assert len(memory["time"]) == len(memory["bytes"]) == 1 + len(data["bars"]["start"])
    assert memory["time"] == sorted(memory["time"])
    # The weight of the product stays in use throughout.
    assert min(memory["bytes"]) >= 64 * 64 * 4


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (512, "512 B"), (999.9, "1 kB"), (344.3e6, "344 MB"), (2.5e12, "2.5 TB")],
)
def test_sizes_are_for_people(count: float, said: str) -> None:
    assert bytes_text(count) == said


@pytest.mark.parametrize(
    ("us", "said"), [(0, "0 µs"), (12.345, "12.3 µs"), (999.9, "1 ms"), (2.5e6, "2.5 s")]
)
def test_times_are_for_people(us: float, said: str) -> None:
    assert data_module.time_text(us) == said


def test_what_is_left_out_is_said(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "MOST_ROWS", 2)
    monkeypatch.setattr(timeline_module, "MOST_BARS", 3)
    page = page_of(profile)
    data: Any = page.data
    assert len(names_of(data["nodes"])) == 2
    assert len(data["bars"]["start"]) == 3
    rest = len(profile.rows) - 2
    assert any(f"{rest} of {len(profile.rows)} nodes" in note for note in page.notes)
    assert any("shortest of its bars" in note for note in page.notes)
    # A bar whose node is in no table still has its name.
    named = zip(data["bars"]["node"], data["bars"]["label"], strict=True)
    assert all(node >= 0 or label for node, label in named)


def test_a_saved_profile_has_tables_and_no_run(profile: Profile) -> None:
    saved = profile_from(json.loads(json.dumps(profile.to_json())))
    page = page_of(saved)
    assert names_of(page.data["nodes"]) == [row.name for row in profile.rows]
    assert page.data["run"]["number"] == 0  # type: ignore[index]
    assert any("no run to show" in note for note in page.notes)


def test_advice_is_shown_with_what_it_gives(profile: Profile) -> None:
    advice = Advice("fewer <nodes>", "5 of them", (), 12.5)
    ((title, detail, gain),) = page_of(profile, [advice]).advice
    assert (title, detail) == ("fewer <nodes>", "5 of them")
    assert gain.startswith("at most 12.5 µs")
    assert "<strong>fewer &lt;nodes&gt;</strong>" in page_text(page_of(profile, [advice]))


def test_numbers_that_json_has_not_are_left_out(profile: Profile) -> None:
    row = profile.rows[0]
    work = dataclasses.replace(row.work, gflops=float("inf"), gbs=float("nan"))
    odd = dataclasses.replace(
        profile, rows=(dataclasses.replace(row, work=work), *profile.rows[1:])
    )
    data: Any = page_of(odd).data
    assert (data["nodes"]["gflops"][0], data["nodes"]["gbs"][0]) == (None, None)


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Chromium]:
    with chromium.Chromium() as made:
        yield made


@chromium.needed
class TestInChromium:
    def test_names_that_onnx_runtime_gives_are_text(
        self, browser: chromium.Chromium, tmp_path: Path
    ) -> None:
        profile = profiled(tmp_path, rename=HOSTILE)
        write_page(page_of(profile), tmp_path / "page.html")
        browser.open(tmp_path / "page.html")
        browser.wait("document.documentElement.dataset.ready === 'yes'")
        assert browser.problems() == []
        assert browser.value("window.hacked") is None
        cells = "[...document.querySelectorAll('#nodes td:first-child')].map(c => c.textContent)"
        assert f"{HOSTILE}outside" in browser.value(cells)

    def test_a_saved_profile_is_shown(
        self, browser: chromium.Chromium, tmp_path: Path, profile: Profile
    ) -> None:
        saved = profile_from(json.loads(json.dumps(profile.to_json())))
        write_page(page_of(saved), tmp_path / "page.html")
        browser.open(tmp_path / "page.html")
        browser.wait("document.documentElement.dataset.ready === 'yes'")
        assert browser.problems() == []
        said = browser.value("document.getElementById('timeline').textContent")
        assert "no run to show" in said
