"""`ortkit cache`: what an optimization leaves is listed, and removed."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

GELU = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 32] x) => (float[n, 32] y)
<float[32] b = {BIAS}>
{ a = Add(x, b)  y = Gelu(a) }
""".replace("BIAS", ", ".join(["0.5"] * 32))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def test_kernels_are_listed_and_removed(call, cache: Path, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(GELU), tmp_path / "m.onnx")
    empty = call("cache", "list")
    assert (empty.code, empty.out) == (0, f"0 kernels, 0 B of at most 536.9 MB, in {cache}\n")
    made = call("optimize", tmp_path / "m.onnx", "--no-verify", "--json")
    ops = [load["emitted_as"] for load in json.loads(made.out)["regions"]]
    assert len(ops) == 1
    listed = json.loads(call("cache", "list", "--json").out)
    assert [item["op"] for item in listed["kernels"]] == ops
    assert listed["bytes"] == sum(path.stat().st_size for path in cache.iterdir())
    shown = call("cache", "list").out
    assert ops[0] in shown
    assert "1 kernel, " in shown
    cleared = json.loads(call("cache", "clear", "--json").out)
    # The kernel, and what its library was linked from.
    assert (cleared["removed"], cleared["kernels"], cleared["bytes"]) == (2, [], 0)
    assert list(cache.iterdir()) == []
    assert call("cache", "clear").out.startswith("removed   0 files")


def test_what_is_no_kernel_of_this_version_is_counted_and_removed(call, cache: Path) -> None:
    plans = cache.parent / "provider" / "plans"
    plans.mkdir(parents=True)
    cache.mkdir()
    head = '{"schema": 3, "key": "0", "op": "old", "backend": "tvm", "level": "x86-64-v3"}\n'
    removed = {
        cache / "old.kernel": head, cache / "damaged.kernel": "?", plans / "a.json": "{}",
        plans / "a.weights": "w", plans.parent / "b.so": "code", plans.parent / "b.json": "{}",
    }  # fmt: skip
    kept = (cache.parent / "tuned.json", plans.parent / "failures.json", cache / "foreign.txt")
    for path in (*removed, *kept):
        path.write_text(removed.get(path, "kept"), "utf-8")
    others = {"files": len(removed), "bytes": sum(map(len, removed.values()))}
    listed = json.loads(call("cache", "list", "--json").out)
    assert (listed["kernels"], listed["bytes"], listed["refused"]) == ([], 0, "")
    assert listed["others"] == others
    assert f"{len(removed)} other files, {others['bytes']} B: " in call("cache", "list").out
    assert json.loads(call("cache", "clear", "--json").out)["removed"] == len(removed)
    assert not any(path.exists() for path in removed)
    assert all(path.exists() for path in kept)


def test_a_fetched_onnxruntime_is_listed_and_removed(call, cache: Path) -> None:
    folder = cache.parent / "onnxruntimes" / "onnxruntime-1.24.4-cp311"
    (folder / "onnxruntime").mkdir(parents=True)
    (folder / "onnxruntime" / "__init__.py").write_text("12345", "utf-8")
    listed = json.loads(call("cache", "list", "--json").out)
    assert listed["onnxruntimes"] == [{"folder": str(folder), "bytes": 5}]
    assert f"ONNX Runtime, fetched on request, 5 B, in {folder}\n" in call("cache", "list").out
    assert call("cache", "clear").out.startswith("removed   1 file, 5 B")
    assert not folder.exists()
    assert json.loads(call("cache", "list", "--json").out)["onnxruntimes"] == []


def test_bad_usage_is_code_2(call, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("cache").code == 2
    assert "did you mean 'clear'?" in call("cache", "cler").err
    monkeypatch.setenv("ORTKIT_CACHE_SIZE", "lots")
    done = call("cache", "list")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "ortkit: ORTKIT_CACHE_SIZE: 'lots' is no size; give bytes, or such as 512MB\n"
    )
