"""A model file is data: opening it runs no native code that was not built here or trusted."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import ortkit
from ortkit.cli.main import run
from ortkit.errors import RunError
from ortkit.kernels import sealed
from ortkit.kernels.trust import listed, trust, unlisted
from tests.runtime.foreign import compile_foreign, embedded, fused_model, hash_of, stated


class Foreign:
    """A library from elsewhere, and the mark that it leaves when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "was-loaded"
        self.library = compile_foreign(folder, self.mark)

    def was_loaded(self) -> bool:
        """Return whether it was loaded since the last call."""
        found = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        return found


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    """Build one for each test: the dynamic loader loads a content once in a process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ORTKIT_TRUST", raising=False)
    (tmp_path / "elsewhere").mkdir()
    return Foreign(tmp_path / "elsewhere")


@pytest.fixture
def beside(foreign: Foreign, tmp_path: Path) -> Path:
    """Return a model with the library beside it, with the name and the hash that it states."""
    shutil.copyfile(foreign.library, tmp_path / "m.ops.so")
    return fused_model(tmp_path, stated(foreign.library))


def notes_of(model: Path, **settings: object) -> str:
    with ortkit.Session(model, "cpu", **settings) as session:  # type: ignore[arg-type]
        return " ".join(session.notes)


def test_a_library_from_elsewhere_is_not_loaded(foreign: Foreign, beside: Path) -> None:
    note = notes_of(beside)
    assert not foreign.was_loaded()
    assert "was not built by this user on this machine" in note
    assert f"`ortkit trust {beside.parent / 'm.ops.so'}`" in note
    assert "function bodies run instead" in note
    with pytest.raises(RunError, match="was not built by this user"):
        ortkit.Session(beside, "cpu", kernels="require")
    assert not foreign.was_loaded()


def say_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    return {"trust": True}


def list_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    assert run(["trust", str(model)]) == 0
    return {}


def list_the_library(model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    assert run(["trust", str(model.with_name("m.ops.so"))]) == 0
    return {}


def give_hashes(model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("ORTKIT_TRUST", f"{'0' * 64}, {hash_of(model.with_name('m.ops.so'))}")
    return {}


def give_a_list(model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    library = model.with_name("m.ops.so")
    (model.parent / "allowed.txt").write_text(f"# ours\n\n{hash_of(library).upper()} *{library}\n")
    monkeypatch.setenv("ORTKIT_TRUST", str(model.parent / "allowed.txt"))
    return {}


@pytest.mark.parametrize("allow", [say_so, list_it, list_the_library, give_hashes, give_a_list])
def test_what_the_user_trusts_is_loaded(
    foreign: Foreign,
    beside: Path,
    monkeypatch: pytest.MonkeyPatch,
    allow: Callable[[Path, pytest.MonkeyPatch], dict[str, object]],
) -> None:
    settings = allow(beside, monkeypatch)
    assert not foreign.was_loaded()
    with pytest.MonkeyPatch.context() as other:
        other.setattr("ortkit.kernels.trust._BUILT", set())  # what another process knows
        assert "was not built" not in notes_of(beside, **settings)
    assert foreign.was_loaded()


def test_a_library_that_the_caller_names_is_loaded(foreign: Foreign, beside: Path) -> None:
    with pytest.raises(RunError, match="lacks 1 of the model's fused ops"):
        ortkit.Session(beside, "cpu", kernels=beside.with_name("m.ops.so"))
    assert foreign.was_loaded()


def test_trust_is_taken_back(
    foreign: Foreign, beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = beside.with_name("other.so")
    other.write_bytes(b"\x7fELF other")
    assert run(["trust", str(beside), str(other)]) == 0
    assert [item.sha256 for item in listed()] == [hash_of(foreign.library), hash_of(other)]
    assert run(["trust", "--remove", str(beside)]) == 0
    assert [one.sha256 for one in listed()] == [hash_of(other)]
    capsys.readouterr()
    assert run(["trust"]) == 0
    assert hash_of(other) in capsys.readouterr().out
    assert "was not built" in notes_of(beside)
    assert not foreign.was_loaded()


def test_weights_are_no_library(foreign: Foreign, tmp_path: Path) -> None:
    """Bytes of a library may stand in a data file; no name in the metadata makes them one."""
    model = fused_model(tmp_path, stated(foreign.library, "m.onnx.data"), data="m.onnx.data")
    weights = tmp_path / "m.onnx.data"
    content = foreign.library.read_bytes()
    weights.write_bytes(content.ljust(4 * 4 * 1024, b"\0"))
    metadata = stated(weights, "m.onnx.data")
    proto = onnx.load(model, load_external_data=False)
    onnx.helper.set_model_props(proto, metadata)
    onnx.save(proto, model)
    for settings in ({}, {"trust": True}):
        assert "m.ops.so is not beside the model" in notes_of(model, **settings)
    assert not foreign.was_loaded()


def test_a_library_that_is_also_weights_is_refused(foreign: Foreign, tmp_path: Path) -> None:
    model = fused_model(tmp_path, {}, data="m.ops.so")
    library = tmp_path / "m.ops.so"
    library.write_bytes(foreign.library.read_bytes().ljust(4 * 4 * 1024, b"\0"))
    proto = onnx.load(model, load_external_data=False)
    onnx.helper.set_model_props(proto, stated(library))
    onnx.save(proto, model)
    assert "also external data" in notes_of(model, trust=True)
    assert run(["trust", str(model)]) == 2
    assert not foreign.was_loaded()


def test_a_link_out_of_the_folder_is_refused(foreign: Foreign, tmp_path: Path) -> None:
    model = fused_model(tmp_path, stated(foreign.library))
    (tmp_path / "m.ops.so").symlink_to(foreign.library)
    assert "is a link out of the model's folder" in notes_of(model, trust=True)
    (tmp_path / "m.ops.so").unlink()
    os.mkfifo(tmp_path / "m.ops.so")
    assert "is no regular file" in notes_of(model, trust=True)
    assert not foreign.was_loaded()


def test_a_link_to_model_and_library_is_followed(foreign: Foreign, tmp_path: Path) -> None:
    """Download caches keep both as links to one folder."""
    real, links = tmp_path / "real", tmp_path / "links"
    real.mkdir()
    links.mkdir()
    shutil.copyfile(foreign.library, real / "m.ops.so")
    fused_model(real, stated(foreign.library))
    for name in ("m.onnx", "m.ops.so"):
        (links / name).symlink_to(real / name)
    assert "was not built" not in notes_of(links / "m.onnx", trust=True)
    assert foreign.was_loaded()


@pytest.mark.parametrize("name", ["", ".", "..", "../m.ops.so", "/m.ops.so", "a\0b", "x" * 5000])
def test_odd_names_choose_nothing(foreign: Foreign, tmp_path: Path, name: str) -> None:
    model = fused_model(tmp_path, stated(foreign.library, name))
    assert "m.ops.so is not beside the model" in notes_of(model, trust=True)
    shutil.copyfile(foreign.library, tmp_path / "m.ops.so")
    assert "was not built" in notes_of(model)
    assert not foreign.was_loaded()


def test_a_renamed_pair_is_loaded(foreign: Foreign, beside: Path) -> None:
    moved = beside.rename(beside.with_name("n.onnx"))
    note = notes_of(moved, trust=True)
    assert "n.ops.so is not beside the model, which was saved with 'm.ops.so'" in note
    beside.with_name("m.ops.so").rename(beside.with_name("n.ops.so"))
    assert "not beside" not in notes_of(moved, trust=True)
    assert foreign.was_loaded()


def test_an_embedded_library_from_elsewhere(foreign: Foreign, tmp_path: Path) -> None:
    text = base64.b64encode(foreign.library.read_bytes()).decode()
    model = fused_model(tmp_path, embedded(foreign.library, text))
    assert "was not built by this user" in notes_of(model)
    assert not foreign.was_loaded()
    assert "was not built" not in notes_of(model, trust=True)
    assert foreign.was_loaded()
    assert run(["trust", str(model)]) == 0
    assert not unlisted(hash_of(foreign.library))


def test_an_embedded_library_of_a_model_in_memory(foreign: Foreign, tmp_path: Path) -> None:
    text = base64.b64encode(foreign.library.read_bytes()).decode()
    data = fused_model(tmp_path, embedded(foreign.library, text)).read_bytes()
    with pytest.raises(RunError, match="was not built by this user"):
        ortkit.Session(data, "cpu", kernels="require")
    assert not foreign.was_loaded()
    with ortkit.Session(data, "cpu", trust=True) as session:
        assert "lacks 1 of the model's fused ops" in " ".join(session.notes)
    assert foreign.was_loaded()


def test_what_is_hashed_is_what_is_loaded(
    foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is exchanged between the check and the load."""
    good, library = tmp_path / "good.c", tmp_path / "m.ops.so"
    good.write_text("void* RegisterCustomOps(void* o, const void* a) { return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, good], check=True)
    model = fused_model(tmp_path, stated(library))
    trust(hash_of(library), library)
    real = sealed.sealed_copy

    def exchanged(data: bytes) -> Path:
        shutil.copyfile(foreign.library, library)
        return real(data)

    monkeypatch.setattr("ortkit.runtime.libraries.sealed_copy", exchanged)
    with ortkit.Session(model, "cpu") as session:
        assert session.libraries == (library,)
    assert not foreign.was_loaded()


def test_a_copy_whose_descriptor_was_closed_is_made_again(tmp_path: Path) -> None:
    """A daemon closes what it did not open, and the number comes to mean another file."""
    copy = sealed.sealed_copy(b"closed content")
    os.close(int(copy.name))
    (tmp_path / "other").write_bytes(b"other")
    opened = [os.open(tmp_path / "other", os.O_RDONLY) for _ in range(64)]
    try:
        assert int(copy.name) in opened, "else this says nothing"
        again = sealed.sealed_copy(b"closed content")
        assert again.read_bytes() == b"closed content"
    finally:
        for one in opened:
            os.close(one)


def test_a_sealed_copy_cannot_be_written(tmp_path: Path) -> None:
    copy = sealed.sealed_copy(b"content")
    assert copy.read_bytes() == b"content"
    assert sealed.sealed_copy(b"content") == copy
    with pytest.raises(OSError, match="not permitted"), copy.open("r+b") as file:
        file.write(b"other")
        file.flush()


def test_a_copy_without_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "_COPIES", {})
    monkeypatch.delattr(os, "memfd_create")
    copy = sealed.sealed_copy(b"content")
    assert copy.read_bytes() == b"content"
    assert copy.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["profile", "--runs", "10"],
        ["memory"],
        ["compare", "--rounds", "1", "--processes", "1"],
        ["compare", "--nodes"],
        ["verify"],
    ],
    ids=" ".join,
)
def test_commands_load_what_is_trusted_only(
    foreign: Foreign, beside: Path, tmp_path: Path, command: list[str]
) -> None:
    """With --trust the mark is there, so that its absence says something."""
    models = [str(beside)] * (2 if command[0] in ("compare", "verify") else 1)
    if command == ["compare", "--rounds", "1", "--processes", "1"]:
        models[1] = str(shutil.copyfile(beside, tmp_path / "n.onnx"))
        shutil.copyfile(beside.with_name("m.ops.so"), tmp_path / "n.ops.so")
    call = [sys.executable, "-m", "ortkit", *command, *models]
    plain = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert not foreign.was_loaded()
    said = plain.stdout + plain.stderr
    assert "was not built by this user on this machine" in said
    assert "function bodies" in said
    trusted = subprocess.run([*call, "--trust"], capture_output=True, text=True, timeout=120)
    assert foreign.was_loaded(), trusted.stdout + trusted.stderr
    assert "was not built" not in trusted.stdout + trusted.stderr


SPACES = ("\v", "\f", "\r", "\x1c", "\x1d", "\x85", "\u2028", "\0", " ", "x", "#")


@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_a_name_in_a_list_is_no_entry(
    foreign: Foreign, beside: Path, monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    """`sha256sum` writes names as they are, and only a line break begins a line."""
    wanted = hash_of(foreign.library)
    given = beside.with_name("allowed.txt")
    monkeypatch.setenv("ORTKIT_TRUST", str(given))
    given.write_text(f"{'0' * 64}  benign{space}{wanted}  x.so\n", "utf-8", newline="")
    assert "was not built" in unlisted(wanted)
    given.write_text(f"{'0' * 64}  benign\n \t{wanted.upper()}\r\n", "utf-8", newline="")
    assert not unlisted(wanted)


def test_a_list_that_was_cut_off_is_added_to(foreign: Foreign, beside: Path) -> None:
    trust("0" * 64, beside)
    path = Path(os.environ["XDG_STATE_HOME"]) / "ortkit" / "trusted-libraries.txt"
    path.write_bytes(path.read_bytes()[:-1])
    assert trust(hash_of(foreign.library), foreign.library) == ""
    assert not unlisted(hash_of(foreign.library))
    assert not unlisted("0" * 64)


def test_a_library_that_is_gone_is_removed_by_its_hash(foreign: Foreign, beside: Path) -> None:
    wanted = hash_of(foreign.library)
    assert run(["trust", str(beside)]) == 0
    beside.with_name("m.ops.so").unlink()
    assert run(["trust", "--remove", wanted.upper()]) == 0
    assert "was not built" in unlisted(wanted)


def test_a_list_that_others_can_write_is_not_used(foreign: Foreign, beside: Path) -> None:
    assert run(["trust", str(beside)]) == 0
    folder = Path(os.environ["XDG_STATE_HOME"]) / "ortkit"
    folder.chmod(0o777)
    assert "can be written by all users" in unlisted(hash_of(foreign.library))
    folder.chmod(0o700)
    assert not unlisted(hash_of(foreign.library))
    (folder / "trusted-libraries.txt").chmod(0o666)
    assert "can be written by all users" in unlisted(hash_of(foreign.library))
    assert run(["trust", str(beside)]) == 2
    assert run(["trust"]) == 2


def test_without_a_place_for_the_list(
    foreign: Foreign,
    beside: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What this process built it may load; nothing fails, and a line says what is missing."""
    (beside.parent / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(beside.parent / "file"))
    assert trust(hash_of(foreign.library), foreign.library)
    assert "was not built" not in notes_of(beside)
    assert foreign.was_loaded()
    assert run(["trust", str(beside)]) == 2
    assert "ORTKIT_TRUST" in capsys.readouterr().err


def test_a_wrong_allow_list_is_said(
    foreign: Foreign, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_TRUST", str(beside.with_name("missing.txt")))
    assert "cannot be read: No such file" in notes_of(beside)
    assert not foreign.was_loaded()
