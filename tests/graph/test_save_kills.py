"""A process that is killed while it saves leaves a model with its own data."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import save_killer
from onnx import numpy_helper

from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import SavedFiles, save_model


def test_a_kill_before_any_file_operation_leaves_a_whole_model(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, save_killer.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert all(count >= 15 for count in found["counts"].values())


def save(number: int, path: Path, *, external: bool = True) -> SavedFiles:
    return save_model(open_model(save_killer.model(number)), path, external_data=external)


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def data_of(saved: SavedFiles) -> Path:
    assert saved.data is not None
    return saved.data


def test_data_of_the_replaced_model_go_and_data_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    others = {
        "m.onnx.data",  # as exporters call it
        "n.onnx.0123456789abcdef.data",  # of another model of ours
        "m.onnx.0123456789abcde.data",
        "m.onnx.0123456789ABCDEF.data",
        "am.onnx.0123456789abcdef.data",
        "mxonnx.0123456789abcdef.data",
    }
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "m.onnx.00000000000000ff.data").symlink_to("m.onnx.data")
    others.add("m.onnx.00000000000000ff.data")
    first, second = save(1, path), save(2, path)
    assert names_in(tmp_path) == {*others, "m.onnx", data_of(second).name}
    assert data_of(first).name != data_of(second).name
    save(2, path, external=False)
    assert names_in(tmp_path) == {*others, "m.onnx"}


def test_equal_data_are_written_once(tmp_path: Path) -> None:
    first = data_of(save(1, tmp_path / "m.onnx")).stat()
    again = data_of(save(1, tmp_path / "m.onnx")).stat()
    assert (first.st_ino, first.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)


@pytest.mark.parametrize("change", ["cut off", "another byte"])
def test_damaged_data_of_the_right_name_are_replaced(change: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    data = data_of(save(1, path))
    content = data.read_bytes()
    data.write_bytes(content[:-1] if change == "cut off" else content[:-1] + b"?")
    saved = save(1, path)
    assert data_of(saved) == data
    assert data.read_bytes() == content
    assert names_in(tmp_path) == {"m.onnx", data.name}


def test_a_copy_of_a_model_saved_elsewhere_has_data_of_its_own(tmp_path: Path) -> None:
    path = save(1, tmp_path / "m.onnx").model
    copy = save_model(open_model(path), tmp_path / "copy.onnx")
    save(2, path)
    (first, _) = onnx.load(copy.model).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(first), 1)


def test_data_that_another_process_is_about_to_use_stay(tmp_path: Path) -> None:
    """What is held belongs to a process whose model is not in place yet."""
    path = tmp_path / "m.onnx"
    save(1, path)
    held = tmp_path / f"m.onnx.{hashlib.sha256(b'held').hexdigest()[:16]}.data"
    held.write_bytes(b"held")
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save(2, path)
        assert held.exists()
    save(3, path)
    assert not held.exists()


def test_new_data_have_the_permissions_of_the_replaced_model(tmp_path: Path) -> None:
    path = save(1, tmp_path / "m.onnx").model
    path.chmod(0o640)
    assert data_of(save(2, path)).stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_only_be_read_is_one_line(tmp_path: Path) -> None:
    path = save(1, tmp_path / "m.onnx").model
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match="cannot be written"):
            save(2, path)
    finally:
        tmp_path.chmod(0o700)
    assert save_killer.fault(path, in_place=False) == ""


SAVER = """
import sys
from pathlib import Path
import save_killer
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
models = [open_model(save_killer.model(int(number))) for number in sys.argv[2:]]
for _ in range(10):
    for model in models:
        save_model(model, Path(sys.argv[1]), external_data=True)
"""


def test_processes_that_save_to_the_same_path_at_the_same_time(tmp_path: Path) -> None:
    """They share one model, so that one finds data that another has just written."""
    path = tmp_path / "m.onnx"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, str(path), *numbers],
            cwd=Path(__file__).parent,
            stderr=subprocess.PIPE,
        )
        for numbers in (("1", "2"), ("2", "3"), ("3", "1"))
    ]
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()
    number = int(onnx.load(path).graph.name.split()[1])
    (first, _) = onnx.load(path).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(first), number)
    saved = save(4, path)
    assert names_in(tmp_path) == {"m.onnx", data_of(saved).name}
