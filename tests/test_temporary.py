"""Temporary files and folders of dead processes go, those of live ones and of others stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortkit.errors import UserError
from ortkit.kernels.cache_files import write_cached
from ortkit.temporary import TemporaryFile, TemporaryFolder, sweep

HOLD = """
import sys, time
from pathlib import Path
from ortkit.temporary import TemporaryFile, TemporaryFolder
place = Path(sys.argv[1])
folder = TemporaryFolder("test", inside=place)
(folder.path / "a").mkdir()
(folder.path / "a" / "b").touch()
file = TemporaryFile(place)
print("made", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a process that holds a folder and a file in `tmp_path`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        yield process
        process.kill()


def test_a_killed_process_leaves_nothing_for_ever(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2, "it still runs"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert len(list(tmp_path.iterdir())) == 2
    with TemporaryFile(tmp_path) as file:
        assert list(tmp_path.iterdir()) == [file.path]


def test_each_way_to_write_sweeps_first(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.kill()
    holder.wait()
    write_cached(tmp_path / "entry", "key", '{"a": 1}')
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_a_process_sweeps_the_folder_for_temporaries_once(tmp_path: Path) -> None:
    left = tmp_path / "ortkit-verify-0123456789abcdef.tmp"
    left.mkdir()
    code = "from ortkit.temporary import TemporaryFolder as T; T('a').cleanup(); T('b').cleanup()"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert list(tmp_path.iterdir()) == []


def test_what_others_made_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    place = tmp_path / "place"
    place.mkdir()
    for name in (
        "ortkit-results",
        "ortkit-verify-abcd1234",
        "my-ortkit-draft-0123456789abcdef.tmp",
        ".ortkit-draft-0123456789abcdef.tmp.txt",
        ".ortkit-draft-0123456789ABCDEF.tmp",
        ".m.onnx.0123456789abcdef.tmp",
    ):
        (place / name).mkdir()
    (place / ".ortkit-draft-00000000000000ff.tmp").symlink_to(outside)
    os.mkfifo(place / ".ortkit-draft-00000000000000fe.tmp")
    inside = place / "ortkit-test-0123456789abcdef.tmp"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    before = {path.name for path in place.iterdir()}
    sweep(place)
    assert {path.name for path in place.iterdir()} == before - {inside.name}
    assert (outside / "kept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_what_belongs_to_another_user_stays(tmp_path: Path) -> None:
    (folder := tmp_path / "ortkit-test-0123456789abcdef.tmp").mkdir()
    os.chown(folder, 12345, 12345)
    sweep(tmp_path)
    assert folder.exists()


def test_a_sweep_of_what_cannot_be_read_is_silent(tmp_path: Path) -> None:
    sweep(tmp_path / "none")
    (tmp_path / "file").touch()
    sweep(tmp_path / "file")


def test_a_copy_of_the_process_removes_nothing(tmp_path: Path) -> None:
    folder = TemporaryFolder("test", inside=tmp_path)
    process = os.fork()
    if process == 0:
        folder.cleanup()
        os._exit(0)
    os.waitpid(process, 0)
    assert folder.path.is_dir()
    sweep(tmp_path)
    assert folder.path.is_dir()
    folder.cleanup()
    assert not folder.path.exists()


def test_a_folder_goes_with_its_last_reference(tmp_path: Path) -> None:
    path = TemporaryFolder("test", inside=tmp_path).path
    assert not path.exists()


def test_no_folder_can_be_made_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no temporary folder can be made"):
        TemporaryFolder("test", inside=tmp_path / "none")


SWEEPER = """
import sys
from pathlib import Path
from ortkit.temporary import sweep
print("begun", flush=True)
while True:
    sweep(Path(sys.argv[1]))
"""


def test_what_is_made_while_others_sweep_is_never_lost(tmp_path: Path) -> None:
    sweepers = [
        subprocess.Popen([sys.executable, "-c", SWEEPER, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for sweeper in sweepers:
            assert sweeper.stdout is not None
            sweeper.stdout.readline()
        for _ in range(200):
            with TemporaryFile(tmp_path) as file, TemporaryFolder("test", tmp_path) as folder:
                os.write(file.descriptor, b"content")
                (folder / "x").touch()
                file.path.replace(folder / "x")
                assert (folder / "x").read_bytes() == b"content"
    finally:
        for sweeper in sweepers:
            sweeper.kill()
            sweeper.communicate()


def test_a_process_whose_caller_has_ended_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    code = f"from ortkit.parent import end_with_parent as end; end({ended.pid})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1


def is_running(process: int) -> bool:
    """Say whether a process is there and has not ended; who adopts it may be slow to notice."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
