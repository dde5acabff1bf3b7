"""`ortkit optimize`: a headline and a summary, and tables by -v."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--level", "1"), "small.onnx: 4 -> 3 nodes, verified, not timed"),
        (("--level", "1", "--no-verify"), "small.onnx: 4 -> 3 nodes, not verified, not timed"),
    ],
)
def test_a_headline_comes_first(
    call: Call, folder: Path, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    done = call("optimize", folder / "small.onnx", "-o", tmp_path / "o.onnx", *flags)
    assert done.out.splitlines()[0] == said
    assert "operators Relu, Tanh, Add\n" in done.out
    assert "rewrites  drop-identity\n" in done.out
    assert "before" not in done.out


def test_tables_come_with_verbose(call: Call, folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "o.onnx"
    done = call("optimize", folder / "small.onnx", "-o", made, "--level", "1", "-v")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert {"op before after", "Identity 1 0", "all nodes 4 3", "drop-identity 1"} <= {*lines}
    assert "operators Relu" not in done.out


def test_kernels_are_counted_by_kind(call: Call, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    made = tmp_path / "o.onnx"
    done = call("optimize", folder / "bert.onnx", "-o", made, "--no-verify")
    first, _, kernels, *_ = done.out.splitlines()
    assert " kernels in " in first
    assert " places, not verified, not timed" in first
    assert kernels.startswith("kernels   product ")
    assert max(map(len, done.out.splitlines()[:6])) < 150


def test_quiet_prints_nothing(call: Call, folder: Path, tmp_path: Path) -> None:
    done = call("optimize", folder / "small.onnx", "-o", tmp_path / "o.onnx", "--level", "1", "-q")
    assert (done.code, done.out) == (0, "")
