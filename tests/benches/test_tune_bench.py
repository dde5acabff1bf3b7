"""`scripts/bench tune`: from a piece to a row of the table and of the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.targets.target import Target
from ortkit.tune.cases import TuneCase
from scripts.benches import tune
from scripts.benches.kernel_cases import CASES
from scripts.benches.kernels import as_region
from scripts.benches.tune_defaults import Table
from scripts.benches.tune_suite import suite


def test_a_piece_is_tuned_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["tune", "--only", "head", "--seconds", "0.1"])
    assert tune.main() == 0
    printed = capsys.readouterr().out
    assert "geometric mean of 1" in printed
    (file,) = (tmp_path / "bench-results").iterdir()
    (row,) = json.loads(file.read_text())["tuned"]
    assert row["trials"] > 0
    assert row["gain"] > 0


def test_a_kernel_without_choices_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = as_region(CASES[0].as_kernel())
    monkeypatch.setattr(TvmBackend, "parameters", lambda *_: {})
    row = tune._tuned(TuneCase(signature), Target().resolved(), 1.0)
    assert row == {"problem": "a kernel without choices", "gain": None}


def test_regions_by_hand_are_in_the_suite_for_cpus() -> None:
    names = [item.name for item in suite(np.float32, by_hand=True)]
    more = [name for name in names if name not in {each.name for each in suite(np.float16)}]
    assert (
        sum("attention" in one or "convolution" in one or "depthwise" in one for one in more) == 11
    )
    assert len(more) == 11


def test_a_table_keeps_what_a_run_does_not_come_to(tmp_path: Path) -> None:
    chosen = {"choices": "vector=32", "gain": 1.1, "least": 1.0, "regions": ["a"]}
    first = Table(tmp_path / "t.json", "tvm", "x86-64-v4", "A machine")
    assert first.tried == frozenset()
    first.write({"rows": chosen, "flat": None, "tiles": chosen}, 10.0)
    again = Table(tmp_path / "t.json", "tvm", "x86-64-v4", "A machine")
    assert again.tried == {"rows", "flat", "tiles"}
    again.write({"rows": None, "flat": {**chosen, "choices": "unroll=2"}}, 5.0)
    content = json.loads((tmp_path / "t.json").read_text())
    assert content["as_ruled"] == ["rows"]
    assert {kind: item["choices"] for kind, item in content["kinds"].items()} == {
        "flat": "unroll=2", "tiles": "vector=32",
    }  # fmt: skip
    assert (content["backend"], content["level"]) == ("tvm", "x86-64-v4")
