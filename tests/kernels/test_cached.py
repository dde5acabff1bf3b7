"""Files of the cache: written whole, and as good as absent where they are damaged."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from ortkit import env
from ortkit.cli.main import run
from ortkit.errors import UserError
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.cache_files import FOLDERS, read_cached, write_cached
from ortkit.kernels.link.linker import find_shim
from ortkit.kernels.objects import VERDICTS, note_objects
from ortkit.kernels.tuning.calibration import Calibration, load_calibration
from ortkit.kernels.tuning.database import TunedDatabase, keep_database, load_database
from ortkit.measure.known import KnownTimes
from ortkit.provider.own import building, failures, plan_cache
from ortkit.runtime.profiling.document import read_profile_document
from ortkit.runtime.profiling.peaks import load_peaks
from ortkit.verify.kernels.models import KernelNode
from ortkit.verify.kernels.verdicts import Verdicts

#: What a file may hold besides what was written.
DAMAGE = {
    "empty": "",
    "half": '{"schema": "ortkit.cal',
    "deep": "[" * 100_000,
    "a list": "[1, 2]",
    "a number": "7",
    "fields of other types": '{"schema": 3, "claims": 3, "library": 3, "refused": 3}',
}
#: What reads it, and what that gives where there is nothing.
READERS: dict[str, tuple[Callable[[Path], object], object]] = {
    "calibration": (lambda path: load_calibration(), Calibration()),
    "peaks": (lambda path: load_peaks("CPUExecutionProvider", 1, "here"), None),
    "times": (lambda path: KnownTimes("here").load(), {}),
    "plan": (lambda path: plan_cache.recall(path, "key"), None),
    "library": (lambda path: building._known(path / "made.so"), None),
    "failures": (lambda path: failures.read(path), []),
    "kernels": (lambda path: KernelCache(path / "kernels").entries(), ()),
}


#: What the files of readers are written for.
KEYS = {
    "calibration": "calibration", "peaks": "peaks", "times": "timings here", "plan": "plan key",
    "library": "library made", "failures": "failures",
}  # fmt: skip


def places(folder: Path) -> tuple[Path, ...]:
    """Return the files of `READERS`, in their order."""
    times = KnownTimes("here")._path
    named = ("plans/key.json", "made.json", "failures.json", "kernels/a.kernel")
    first = (folder / "calibration.json", folder / "peaks.json", times)
    return (*first, *(folder / name for name in named))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", READERS)
def test_what_is_damaged_is_as_good_as_absent(
    name: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    assert env.cache_dir() == tmp_path
    for path in places(tmp_path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(DAMAGE[damage], "utf-8")
    read, nothing = READERS[name]
    assert read(tmp_path) == nothing


@pytest.mark.parametrize("name", KEYS)
def test_what_is_sealed_and_still_does_not_fit_is_as_good_as_absent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    path = dict(zip(READERS, places(tmp_path), strict=True))[name]
    read, nothing = READERS[name]
    for content in ('{"schema": 3, "claims": 3, "library": 3, "refused": 3}', '{"a": [[[', "{}"):
        write_cached(path, KEYS[name], content)
        assert read(tmp_path) == nothing


def test_numbers_beyond_all_bounds_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    text = '{"schema": "ortkit.calibration/1", "bandwidths": [[1e999, 1]]}'
    write_cached(tmp_path / "calibration.json", "calibration", text)
    assert load_calibration() == Calibration()


@pytest.mark.parametrize("read", [load_database, read_profile_document])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_was_named_is_said_to_be_damaged(
    read: Callable[[Path], object], damage: str, tmp_path: Path
) -> None:
    path = tmp_path / "given.json"
    path.write_text(DAMAGE[damage], "utf-8")
    with pytest.raises(UserError) as caught:
        read(path)
    assert caught.value.where == str(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "record", ['{"confirmed": 1e999}', '{"confirmed": 0, "best": 3}', "[]", "3"]
)
def test_records_that_are_none(record: str, tmp_path: Path) -> None:
    fields = ("processor", "level", "backend", "key", "bucket", "op", "generator", "best")
    whole = ", ".join(f'"{name}": ""' for name in fields) + ', "trials": [], "gain": 1, '
    text = record.replace("{", "{" + whole) if record.startswith("{") else record
    path = tmp_path / "given.json"
    path.write_text(f'{{"schema": "ortkit.tuned/1", "records": [{text}]}}', "utf-8")
    with pytest.raises(UserError, match="holds a record that cannot be read"):
        load_database(path)


def test_only_its_user_reads_what_is_written(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_cached(tmp_path / "below" / "file", "key", b'{"content": 1}')
    finally:
        os.umask(before)
    (path,) = (tmp_path / "below").iterdir()
    assert path.name == "file"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("is_present", [True, False])
def test_a_full_disk_leaves_what_was_there(
    is_present: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    if is_present:
        path.write_text("before", "utf-8")

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_cached(path, "key", '{"after": 1}')
    assert [(item.name, item.read_text("utf-8")) for item in tmp_path.iterdir()] == (
        [("file", "before")] if is_present else []
    )


def test_who_reads_while_many_write_sees_one_of_them_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = [json.dumps({"text": letter * 20_000}) for letter in "abcd"]
    write_cached(path, "key", texts[0])
    writers = [
        threading.Thread(
            target=lambda text=text: [write_cached(path, "key", text) for _ in range(20)]
        )
        for text in texts
    ]
    for writer in writers:
        writer.start()
    while any(item.is_alive() for item in writers):
        assert read_cached(path, "key", json.dumps) in texts
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_ortkit_cache_clear_removes_what_killed_processes_left(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    left = tmp_path / folder / ".ortkit-draft-0123456789abcdef.tmp"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"half")
    assert run(["cache", "clear"]) == 0
    assert not left.exists()


def test_all_folders_that_are_written_to_are_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    KnownTimes("here").add({})
    failures.record(tmp_path / "provider", "", "message")
    plan_cache.remember(tmp_path / "provider", "key", [], None)
    keep_database(TunedDatabase())
    note_objects("0" * 64, (), (), find_shim()[0])
    Verdicts(tmp_path / VERDICTS, "0" * 64, {}).keep(
        KernelNode("add", onnx.FunctionProto(), (), (), (), (), 10), "", {}
    )
    folders = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert folders == {name or "." for name in FOLDERS if name != "kernels"}
