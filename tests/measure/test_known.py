"""Times from earlier runs: found under the same conditions only, and never trusted when odd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortkit.measure.known import KnownTimes
from ortkit.measure.result import compare

TIMES = compare([2.0, 2.0], [1.0, 1.0])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    return tmp_path / "timings"


def test_times_add_up_and_belong_to_their_conditions() -> None:
    here, there = KnownTimes("one machine"), KnownTimes("another")
    assert here.load() == {}
    here.add({"a": TIMES})
    here.add({"b": TIMES})
    assert here.load() == {"a": TIMES, "b": TIMES}
    assert there.load() == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', "damaged"])
def test_a_damaged_file_is_written_anew(text: str, folder: Path) -> None:
    known = KnownTimes("here")
    known.add({"a": TIMES})
    (path,) = folder.iterdir()
    path.write_text(text)
    assert known.load() == {}
    known.add({"b": TIMES})
    assert known.load() == {"b": TIMES}


def test_a_time_of_another_form_is_not_read(folder: Path) -> None:
    known = KnownTimes("here")
    known.add({"a": TIMES})
    (path,) = folder.iterdir()
    content = json.loads(path.read_text())
    content["times"]["a"]["more"] = 1
    path.write_text(json.dumps(content))
    assert known.load() == {}


def test_files_of_other_conditions_do_not_pile_up(folder: Path) -> None:
    for number in range(40):
        KnownTimes(f"toolchain {number}").add({"a": TIMES})
    assert len(list(folder.iterdir())) == 16
    assert KnownTimes("toolchain 39").load() == {"a": TIMES}


def test_a_folder_that_cannot_be_written_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "file"))
    KnownTimes("here").add({"a": TIMES})
    assert KnownTimes("here").load() == {}
