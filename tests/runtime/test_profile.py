"""Profiles as onnxruntime 1.31.1 writes them, with times made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortkit.errors import UserError
from ortkit.runtime.profile import OpTime, read_profile


def node(op: str, start: int, taken: int) -> dict[str, object]:
    return {
        "cat": "Node", "name": f"{op}_1_kernel_time", "ts": start, "dur": taken, "tid": 7,
        "args": {"op_name": op},
    }  # fmt: skip


def run(start: int, taken: int) -> dict[str, object]:
    return {"cat": "Session", "name": "model_run", "ts": start, "dur": taken, "tid": 7}


def written(folder: Path, *events: dict[str, object]) -> Path:
    path = folder / "profile.json"
    loading = {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 50, "tid": 7}
    path.write_text(json.dumps([loading, *events]), encoding="utf-8")
    return path


def test_nodes_belong_to_the_run_around_them_and_not_to_the_line_before(tmp_path: Path) -> None:
    # A run's nodes stand before its own model_run in the file.
    path = written(
        tmp_path,
        node("MatMul", 110, 900), run(100, 1000),
        node("Cast", 2050, 20),  # between two runs: in neither
        node("MatMul", 2110, 30), node("Add", 2150, 10), run(2100, 100),
        node("MatMul", 3110, 50), node("Add", 3170, 10), run(3100, 120),
    )  # fmt: skip
    found = read_profile(path, warmup=1)
    assert found.runs == 1
    assert found.run_milliseconds == pytest.approx(0.100)
    assert found.ops == (OpTime("MatMul", 0.030, 1), OpTime("Add", 0.010, 1))
    assert found.kernel_milliseconds == pytest.approx(0.040)
    assert found.share(frozenset({"MatMul"})) == pytest.approx(0.3)


def test_the_slower_half_of_the_runs_is_left_out(tmp_path: Path) -> None:
    events = []
    for number, taken in enumerate((10, 10, 20, 500, 900)):
        start = 1000 * (number + 1)
        events += [node("Relu", start + 1, taken), run(start, taken + 2)]
    found = read_profile(written(tmp_path, *events), warmup=1)
    assert found.runs == 2
    assert found.ops[0].milliseconds == pytest.approx(0.015)


def test_bodies_do_not_count_twice(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        run(0, 10),
        node("If", 110, 80), node("Conv", 120, 30), node("Conv", 155, 20), node("Add", 195, 4),
        run(100, 110),
    )  # fmt: skip
    found = {one.op: one for one in read_profile(path, warmup=1).ops}
    assert found["If"].milliseconds == pytest.approx(0.030)
    assert (found["Conv"].milliseconds, found["Conv"].calls) == (pytest.approx(0.050), 2)
    assert found["Add"].milliseconds == pytest.approx(0.004)


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '[{"cat": "Node", "dur": 1}]'])
def test_what_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"profile\.json"):
        read_profile(path)


def test_too_few_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds 1 runs and 1 are warm-up"):
        read_profile(written(tmp_path, node("Relu", 2, 1), run(0, 10)))
