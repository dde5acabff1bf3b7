"""`scripts/bench tune`: from a piece to a row of the table and of the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts.benches import tune


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


def test_a_hand_shaped_kernel_is_left_as_it_is() -> None:
    from ortkit.kernels import Target
    from ortkit.kernels.cpu import resolve
    from ortkit.tune.cases import TuneCase
    from scripts.benches.kernel_cases import CASES
    from scripts.benches.kernels import as_region

    case = next(one for one in CASES if "depthwise" in one.name)
    signature = as_region(case.as_kernel())
    row = tune._tuned(TuneCase(signature), resolve(Target()), 1.0)
    assert row == {"problem": "a hand-shaped kernel", "gain": None}
