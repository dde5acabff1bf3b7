"""`ortkit run` and `ortkit compare` at the terminal: what they print, write and end with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Call

QUICK = ("--rounds", "3", "--processes", "2", "--threads", "1")
BRIEF = ("--rounds", "1", "--processes", "1", "--threads", "1")


# ---- run -----------------------------------------------------------------------------------


def test_run_says_what_came_out(call: Call, folder: Path) -> None:
    done = call("run", folder / "small.onnx", "--shape", "n=3")
    assert (done.code, done.err) == (0, "")
    assert "input     x [3, 8]" in done.out
    assert "nodes     cpu " in done.out
    assert "[3, 8]" in done.out.partition("output")[2]
    assert "ms for the first run" in done.out


def test_run_writes_what_run_reads(call: Call, folder: Path, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    np.savez(tmp_path / "x.npz", x=x)
    out = tmp_path / "y.npz"
    done = call("run", folder / "small.onnx", "--inputs", tmp_path / "x.npz", "--outputs", out)
    assert done.code == 0, done.err
    assert f"wrote     {out}" in done.out
    with np.load(out) as file:
        wanted = np.tanh(np.maximum(x, 0)) + np.arange(1, 9, dtype=np.float32)
        np.testing.assert_allclose(file["y"], wanted, rtol=1e-6)
        assert file.files == ["y"]
    np.savez(tmp_path / "x64.npz", x=x.astype(np.float64))
    given = ("--inputs", tmp_path / "x64.npz", "--outputs", tmp_path / "y64.npz")
    refused = call("run", folder / "small.onnx", *given)
    assert refused.code == 2 and "input 'x' is float64" in refused.err
    assert not (tmp_path / "y64.npz").exists()
    assert call("run", folder / "small.onnx", *given, "--cast").code == 0
    with np.load(tmp_path / "y64.npz") as file:
        np.testing.assert_allclose(file["y"], wanted, rtol=1e-6)


def test_what_run_cannot_do_is_one_line(call: Call, folder: Path, tmp_path: Path) -> None:
    model = folder / "small.onnx"
    np.savez(tmp_path / "other.npz", z=np.ones(3, np.float32))
    np.savez(tmp_path / "nan.npz", x=np.full((1, 8), np.nan, np.float32))
    (tmp_path / "no.npz").write_bytes(b"no archive")
    for given, said in (
        (("--inputs", tmp_path / "none.npz"), "none.npz: no such file"),
        (("--inputs", tmp_path / "no.npz"), "not an npz file"),
        (("--inputs", tmp_path / "other.npz"), "the model has no input 'z'"),
        (("--inputs", tmp_path / "other.npz", "--cast"), "there is no input 'z'"),
        (("--cast",), "--cast: there is nothing to convert; give --inputs"),
        (("--inputs", tmp_path / "nan.npz", "--shape", "n=2"), "--shape: the inputs given have"),
        (("--shape", "m=2"), "no input has a size named 'm'"),
        (("--target", "cpuu"), "did you mean 'cpu'"),
        (("--outputs", tmp_path / "none" / "y.npz"), "there is no folder"),
        (("--library", tmp_path / "none.so"), "none.so: no such file"),
    ):
        done = call("run", model, *given)
        assert (done.code, done.out) == (2, ""), given
        assert said in done.err and done.err.count("\n") == 1, done.err
    done = call("run", model, "--inputs", tmp_path / "nan.npz")
    assert done.code == 0
    assert "note      input 'x': 8 of 8 values are NaN or infinite" in done.out


# ---- compare -------------------------------------------------------------------------------


def test_models_that_agree(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    done = call("compare", folder / "small.onnx", folder / "bert.onnx", *BRIEF)
    assert done.code == 1
    assert "row 2     " in done.out and "outputs   different" in done.out
    done = call("compare", folder / "small.onnx", folder / "small.onnx", "--batch", "4", *QUICK)
    assert (done.code, done.err) == (0, ""), done.err
    for said in (
        "row 1     small.onnx",
        "inputs    batch 4: x [4, 8]",
        "median ms", "95 % interval", "items/s", "verdict",
        "load ms", "first run ms", "peak RSS MB",
        "noise     row 1 against itself: ", "ratios up to ",
        "cosine", "epsilons",
        "machine   ", "outputs   equal",
    ):  # fmt: skip
        assert said in done.out, said


def test_models_that_differ(call: Call, folder: Path) -> None:
    done = call("compare", folder / "small.onnx", folder / "other.onnx", *BRIEF)
    assert done.code == 1
    assert "outputs   different" in done.out
    assert "row 2     output 'y': off by " in done.out


def test_a_model_alone_stands_against_its_optimized_form(call: Call, folder: Path) -> None:
    done = call("compare", folder / "bert.onnx", *BRIEF, "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["batches"][0]["rows"]
    assert [Path(row["model"]).name for row in rows] == ["bert.onnx", "bert.opt.onnx"]
    assert rows[1]["equality"] == "equal"


def test_settings_are_rows(call: Call, folder: Path) -> None:
    given = ("--optimizations", "all,off", "--rounds", "1", "--processes", "1", "--threads", "1,2")
    done = call("compare", folder / "small.onnx", *given)
    assert done.code == 0, done.err
    assert "row 1     small.onnx: 1 thread, optimizations all" in done.out
    assert "row 4     small.onnx: 2 threads, optimizations off" in done.out


def test_what_compare_cannot_do_is_one_line(call: Call, folder: Path) -> None:
    for given, said in (
        (("--threads", "one"), "--threads: cannot read 'one'; write N,N,..."),
        (("--target", "cpu,"), "--target: cannot read 'cpu,'; write A,B,..."),
        (("--target", "cpu,cdua"), "is no execution provider; did you mean 'cuda'"),
        (("--optimizations", "alll"), "'alll' is not known"),
        (("--batch", "0"), "--batch: a batch of 0"),
        (("--seconds", "0"), "--seconds: 0 seconds"),
        (("--repro", "x"), "--repro: goes with --nodes only"),
        (("--nodes", "--batch", "2"), "--batch: does not go with --nodes"),
        (("--nodes", "--concurrency", "2"), "--concurrency: does not go with --nodes"),
    ):
        done = call("compare", folder / "small.onnx", folder / "small.onnx", *given)
        assert (done.code, done.out) == (2, ""), given
        assert said in done.err and done.err.count("\n") == 1, done.err
    done = call("compare", folder / "small.onnx", folder / "none.onnx")
    assert done.code == 2 and "none.onnx" in done.err


def test_nodes_are_compared_on_request(call: Call, folder: Path) -> None:
    done = call("compare", folder / "small.onnx", folder / "other.onnx", "--nodes")
    assert done.code == 1, done.err
    assert "Tanh" in done.out and "Sigmoid" in done.out
    assert call("compare", folder / "small.onnx", folder / "small.onnx", "--nodes").code == 0


def test_a_folder_beside_a_model_is_what_is_refused(call: Call, folder: Path) -> None:
    for given in (".", "/", folder):
        done = call("compare", folder / "small.onnx", given)
        assert done.code == 2
        assert done.err.startswith(f"ortkit: {given}: is a folder without genai_config.json")
