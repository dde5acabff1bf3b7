"""The constants of the cost model: shipped, written, read back, and not trusted when damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ortkit.errors import UserError
from ortkit.kernels.cache_files import read_cached
from ortkit.kernels.tuning import calibration
from ortkit.kernels.tuning.calibration import (
    FILE,
    Calibration,
    load_calibration,
    machine,
    save_calibration,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_nothing_measured_gives_the_defaults() -> None:
    assert load_calibration() == Calibration()
    assert Calibration().machine == ""


def test_what_is_written_is_read_back(folder: Path) -> None:
    kernels = (("product", 1.25), ("conv", 0.5))
    found = replace(Calibration(), node_ns=123.5, kernels=kernels, machine=machine())
    assert save_calibration(found) == folder / FILE
    assert load_calibration() == found
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_the_file_is_read_once_and_when_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []

    def count(path: Path, key: str, read: Callable[[Any], Any]) -> Any:
        reads.append(path)
        return read_cached(path, key, read)

    monkeypatch.setattr(calibration, "read_cached", count)
    found = replace(Calibration(), node_ns=123.5, machine=machine())
    save_calibration(found)
    assert [load_calibration() for _ in range(5)] == [found] * 5
    assert len(reads) == 1
    save_calibration(replace(found, node_ns=124.5))
    assert [load_calibration().node_ns for _ in range(5)] == [124.5] * 5
    assert len(reads) == 2


def test_another_machine_s_is_not_used() -> None:
    save_calibration(replace(Calibration(), node_ns=1.0, machine="Abacus, 10 cores"))
    assert load_calibration() == Calibration()


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "ortkit.calibration/99"},
        {"node_ns": -1.0},
        {"node_ns": "fast"},
        {"bandwidths": []},
        {"bandwidths": [[1]]},
        {"kernels": [["conv", 0]]},
        {"kernels": [["conv"]]},
        {"more": 1},
    ],
)
def test_what_does_not_fit_is_not_used(folder: Path, change: dict[str, object]) -> None:
    path = save_calibration(replace(Calibration(), machine=machine()))
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, **change}), "utf-8")
    assert load_calibration() == Calibration()


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"schema": "ortkit.calibration/1"}'])
def test_a_damaged_file_is_not_used(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / FILE).write_text(text, "utf-8")
    assert load_calibration() == Calibration()


def test_more_bytes_take_longer_and_more_so_beyond_the_caches() -> None:
    rates = ((100, 10.0), (1000, 5.0))
    found = replace(Calibration(), bandwidths=rates)
    assert [found.move_ns(count) for count in (0, 100, 200, 5000)] == [0.0, 10.0, 40.0, 1000.0]


def test_a_folder_that_cannot_be_written_is_the_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="cannot write the calibration: Not a directory"):
        save_calibration(Calibration())
