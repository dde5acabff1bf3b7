"""`ortkit memory`: what it prints, plots and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.errors import RunError

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, width] x) => (float[batch, width] y)
<float[1] w = {2.0}> { a = Exp (x)  b = Mul (a, w)  y = Add (a, b) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_one_point_in_words(call, model: Path) -> None:
    done = call("memory", model, "--target", "cpu", "--shape", "batch=64", "--nodes")
    assert done.code == 0, done.err
    for part in ("arena Cpu", "weights   4 B in one tensor", "peak ", "tensors with memory",
                 "the fullest of", "activations"):  # fmt: skip
        assert part in done.out, part


def test_a_sweep_grows_with_the_size(call, model: Path) -> None:
    sweep = ("--sweep", "batch=16,64", "--sweep", "width=256,512")
    done = call("memory", model, "--target", "cpu", *sweep, "--json")
    assert done.code == 0, done.err
    points = json.loads(done.out)["points"]
    assert [item["sizes"] for item in points] == [
        {"batch": batch, "width": width} for batch in (16, 64) for width in (256, 512)
    ]
    for point in points:
        size = 4 * point["sizes"]["batch"] * point["sizes"]["width"]
        assert point["input_bytes"] == point["output_bytes"] == size
        (peak,) = point["peaks"]
        # a, b and the output: b is written over nothing, because a is read again.
        assert peak["tensor_bytes"] == pytest.approx(3 * size, rel=0.05)
        assert point["stages"][1]["arenas"][0]["peak"] == peak["bytes"]


def test_a_sweep_in_words(call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    done = call("memory", model, "--target", "cpu", "--sweep", "batch=1,2", "--shape", "width=9")
    assert done.code == 0, done.err
    assert "fullest at" in done.out
    assert "batch=2  █" in done.out


def test_a_sweep_that_ends_early_keeps_what_it_has(
    call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortkit.runtime.memory import point

    measure_point = point.measure_point

    def limited(plan: point.PointPlan) -> point.Point:
        found = measure_point(plan)
        if found.output_bytes > 4 * 2 * 8:
            raise RunError("out of memory: no more of it")
        return found

    monkeypatch.setattr(point, "measure_point", limited)
    arguments = ("--target", "cpu", "--shape", "width=8", "--sweep", "batch=2,3,4")
    done = call("memory", model, *arguments)
    assert done.code == 0, done.err
    assert "stopped   at width=8, batch=3: out of memory: no more of it" in done.out
    assert "batch=2  █" in done.out
    assert "batch=4" not in done.out
    done = call("memory", model, *arguments[:4], "--sweep", "batch=5")
    assert done.code == 2
    assert done.err == "ortkit: out of memory: no more of it\n"


def test_inputs_of_the_user(call, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((3, 5), np.float32))
    done = call("memory", model, "--target", "cpu", "--inputs", tmp_path / "x.npz", "--json")
    assert done.code == 0, done.err
    (point,) = json.loads(done.out)["points"]
    assert point["inputs"] == {"x": [3, 5]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sweep", [(), ("--sweep", "batch=1,2")])
def test_a_plot_needs_no_network(
    call, model: Path, tmp_path: Path, sweep: tuple[str, ...]
) -> None:
    page = tmp_path / "plot.html"
    done = call("memory", model, "--target", "cpu", *sweep, "--plot", page)
    assert done.code == 0, done.err
    assert f"wrote     {page}" in done.out
    text = page.read_text(encoding="utf-8")
    assert "Memory of m.onnx" in text
    assert "<script src=" not in text
    told = "<title>batch=2\npeak" if sweep else "CPU: in use: "
    assert told in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sweep", "batch"), "--sweep: cannot read 'batch'; write NAME=1,2,4"),
        (("--sweep", "batch=1,x"), "cannot read 'batch=1,x'"),
        (("--sweep", "batch="), "cannot read 'batch='"),
        (("--sweep", "batch=1", "--sweep", "batch=2"), "'batch' is there twice"),
        (("--sweep", "batch=1", "--shape", "batch=2"), "'batch' is in --sweep too"),
        (("--sweep", "batsch=1,2"), "did you mean batch"),
        (("--inputs", "x.npz", "--sweep", "batch=1"), "--sweep: cannot go with --inputs"),
        (("--inputs", "nowhere.npz"), "nowhere.npz"),
        (("--plot", "x.jpeg2"), "--plot x.jpeg2: cannot be told"),
        (("--plot", "x.png"), "end it in .html, .svg"),
        (("--plot", "nowhere/x.html"), "there is no folder 'nowhere'"),
        (("--threads", "-1"), "--threads: -1 is negative"),
        (("--target", "cuda"), "has no CUDAExecutionProvider"),
    ],
)
def test_bad_arguments_are_one_line(
    call, model: Path, arguments: tuple[str, ...], said: str
) -> None:
    if arguments[-1] == "cuda":
        import onnxruntime

        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            pytest.skip("this ONNX Runtime has CUDA")
    done = call("memory", model, *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_a_model_that_is_none(call, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    for name in ("bad.onnx", "nowhere.onnx"):
        done = call("memory", tmp_path / name)
        assert done.code == 2
        assert name in done.err
        assert done.err.count("\n") == 1
