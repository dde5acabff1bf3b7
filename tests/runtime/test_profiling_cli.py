"""`ortkit profile`: tables, files and errors, of models and of traces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.cli.main import run
from ortkit.runtime.profiling.peaks import Peaks, save_peaks
from tests.runtime.traces import MEMORY, node, written
from tests.runtime.traces import run as run_event

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the peaks of this machine, which take seconds to measure, out of it."""
    from ortkit.kernels.tuning.calibration import machine

    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    save_peaks(
        Peaks("CPUExecutionProvider", 1, machine(), {"float32": 100.0}, ((10**9, 10.0),), 1.0)
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[batch, 8] x) => (float[batch, 8] y) {
            [one] a = Tanh (x)
            [two] b = Exp (a)
            [three] c = MatMul (b, w)
            [four] y = Softmax (c)
        }"""
    )
    weights = np.ones((8, 8), np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "small.onnx"
    onnx.save(made, path)
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_tables_and_what_to_do(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    code, out, err = said(
        capsys, "profile", model, "--shape", "batch=4", "--runs", "20", "--threads", "1"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "input     x [4, 8]" in lines
    assert any(line.startswith("run ") and "without tracing" in line for line in lines)
    assert "peaks     100 GFLOP/s float32; 10.0 GB/s from memory, up to 10 in caches" in lines
    for name in ("one", "two", "three", "four"):
        assert any(line.split()[:1] == [name] for line in lines), name
    assert any("4x8 8x8 -> 4x8" in line for line in lines)


def test_files_are_written_and_said(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_file = tmp_path / "out.json"
    code, out, _ = said(
        capsys, "profile", model, "--runs", "3", "--threads", "1", "--trace", out_file
    )
    assert code == 0 and f"wrote     {out_file}" in out.splitlines()
    events = json.loads(out_file.read_text("utf-8"))["traceEvents"]
    assert sum(event["name"] == "three" for event in events) >= 3


def test_json_is_read_back(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ortkit.runtime.profiling.document import read_profile_document

    code, out, _ = said(capsys, "profile", model, "--runs", "3", "--threads", "1", "--json")
    saved = tmp_path / "saved.json"
    saved.write_text(out, encoding="utf-8")
    found = read_profile_document(saved)
    assert code == 0 and found.runs == 3
    assert {row.name for row in found.rows} == {"one", "two", "three", "four"}
    assert found.peaks is not None and found.about.sha256 is not None


def test_a_trace_speaks_alone_and_with_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        tmp_path,
        node("MatMul", 110, 30, name="mm", inputs=[{"float": [2, 8]}], **MEMORY),
        run_event(100, 50),
        node("MatMul", 310, 30, name="mm", inputs=[{"float": [2, 8]}], **MEMORY),
        run_event(300, 50),
    )
    code, out, _ = said(capsys, "profile", "--from", path)
    assert code == 0 and "traced    50.0 µs (median of 1, fastest 50.0 µs)" in out
    assert "30.0 µs in nodes, 0.0 µs between them, 20.0 µs before and after" in out
    assert "memory    512 B in use at most" in out
    code, out, _ = said(capsys, "profile", "--from", path, "--warmup", "0")
    assert "median of 2" in out


def test_real_traces_of_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    # onnxruntime-gpu 1.31.1 on an H100: bert in float32, every sixteenth node of three runs.
    code, out, _ = said(capsys, "profile", "--from", DATA / "cuda_trace.json")
    assert code == 0
    assert "ran on    CUDA, CPU, 16 threads" in out
    assert "those of launching them" in out
    # resnet50 in float16 with a CUDA graph: three runs that capture it, eleven that replay it.
    code, out, _ = said(capsys, "profile", "--from", DATA / "cuda_graph_trace.json")
    assert code == 0 and "11 of 13 runs show no nodes" in out


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ((), "there is nothing to profile; give a MODEL, or --from TRACE"),
        (("none.onnx",), "none.onnx: no such file"),
        (("MODEL", "--runs", "0"), "--runs: 0 runs show nothing"),
        (("MODEL", "--warmup", "-1"), "--warmup: -1 runs cannot be left out"),
        (("MODEL", "--top", "-1"), "--top: -1 rows"),
        (("MODEL", "--shape", "bach=2"), "no input has a size named 'bach'; did you mean"),
        (("MODEL", "--target", "quantum"), "'quantum': is no execution provider"),
        (("MODEL", "--trace", "MODEL"), "is read; name another file"),
        (("MODEL", "--trace", "x", "--html", "x"), "x: is written by --trace; name another file"),
        (("MODEL", "--trace", "none/out.json"), "there is no folder 'none'"),
        (("MODEL", "--html", "none/out.html"), "there is no folder 'none'"),
        (("--from", "none.json"), "none.json: cannot read the profile: No such file"),
        (("--from", "MODEL"), "is no profile of ONNX Runtime"),
        (("--from", "TRACE", "--runs", "3"), "--runs: nothing is run for a trace"),
        (("--from", "TRACE", "--warmup", "9"), "the profile holds 1 runs and 9 are warm-up"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    problem: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = written(tmp_path, node("A", 110, 5), run_event(100, 20))
    given = [{"MODEL": model, "TRACE": trace}.get(argument, argument) for argument in arguments]
    code, out, err = said(capsys, "profile", *given)
    assert (code, out) == (2, "")
    assert problem in err and err.count("\n") == 1 and "Traceback" not in err


def test_a_model_that_fails_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n] x) => (float[m] y) <int64[1] shape = {7}> { y = Reshape (x, shape) }"""
    )
    onnx.save(made, tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones(3, np.float32))
    code, out, err = said(capsys, "profile", tmp_path / "m.onnx", "--inputs", tmp_path / "in.npz")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "Reshape" in err
