"""`ortkit optimize --measure`: the table, and the JSON document of docs/reference/cli.md."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest
from test_cli_json import documented, paths

from ortkit.measure import regions, whole

WIDTH = 512
TEXT = f"""<ir_version: 10, opset_import: ["" : 20]>
g (float[n, {WIDTH}] x, float[{WIDTH}, {WIDTH}] w) => (float[n, {WIDTH}] y)
<float[{WIDTH}] b = {{{", ".join(["0.5"] * WIDTH)}}}>
{{ m = MatMul(x, w)  a = Add(m, b)  y = Gelu(a) }}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for module, name, value in (
        (whole, "ROUNDS", 1), (whole, "_SECONDS", 0.05), (whole, "_PROFILE_SECONDS", 0.05),
        (regions, "ROUNDS", 1), (regions, "MOST_NOISE", 1e9),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_document_and_the_table_say_what_was_measured(
    call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    done = call("optimize", model, "--measure", "--threads", "1", "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    found = content["measurement"]
    assert found["notes"] == [] or found["model"] is not None
    assert found["threads"] == 1
    assert [item["inputs"] for item in found["regions"]] == [["float[1, 512]", "float[512]"]]
    assert found["model"]["verdict"] in ("faster", "slower", "no difference")
    assert found["ceiling"]["heavy_ops"] != []
    known = documented("optimize")
    measured = {path for path in paths(content, known) if path.startswith("measurement")}
    assert measured - known == set()
    shown = call("optimize", model, "--measure", "--threads", "1").out
    assert "times as fast" in shown
    assert "known from before" in shown
    assert "ceiling   " in shown


def test_threads_below_zero_are_refused(call, model: Path) -> None:
    done = call("optimize", model, "--measure", "--threads", "-1")
    assert (done.code, done.out) == (2, "")
    assert done.err == "ortkit: --threads: cannot be -1; use a number, 0 or more\n"
