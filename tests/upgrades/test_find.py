"""ONNX Runtimes that a user names: versions, folders, the installed one, and what is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from ortkit.errors import UserError
from ortkit.upgrades import fetch
from ortkit.upgrades.find import find_installations, kept_in, labels
from tests.upgrades.planted import planted

INSTALLED = version("onnxruntime")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted(tmp_path_factory.mktemp("runtimes"), "9.8.7")


def test_the_installed_one_by_word_and_by_version() -> None:
    for name in ("installed", INSTALLED, f"onnxruntime=={INSTALLED}"):
        (found,) = find_installations([name])
        assert (found.version, found.folder) == (INSTALLED, None)
        assert "CPUExecutionProvider" in found.providers
        assert found.library is not None and found.library.is_file()


def test_a_folder_in_each_form(other: Path, tmp_path: Path) -> None:
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (site / "onnxruntime").symlink_to(other / "onnxruntime")
    for name in (other, other / "onnxruntime", tmp_path / "venv"):
        (found,) = find_installations([str(name)])
        assert found.version == "9.8.7" and found.folder is not None


def test_labels_tell_equal_versions_apart(other: Path) -> None:
    found = find_installations(["installed", str(other)])
    assert labels(found) == (INSTALLED, "9.8.7")
    assert labels((found[1], found[1]))[0] == f"9.8.7 ({other})"


def test_what_is_not_there_is_one_line(other: Path, tmp_path: Path) -> None:
    broken = planted(tmp_path, "9.9.9", "raise ImportError('planted')")
    for name, said in (
        ("0.0.1", "0.0.1 is not there; add"),
        ("nowhere", "is no version and no folder"),
        ("~no-such-user/x", "is no version and no folder"),
        ("1" * 5000, "is no version and no folder"),
        (f"onnxruntime-genai=={version('onnxruntime-genai')}", "is not there"),
        (str(tmp_path), "there is no onnxruntime in"),
        (str(broken), "does not load: planted"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            find_installations([name])
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="is named twice"):
        find_installations([str(other), str(other / "onnxruntime")])


def test_a_version_is_fetched_once(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    fetched: list[str] = []

    def copied(requirement: str, target: Path) -> None:
        fetched.append(requirement)
        target.mkdir()
        (target / "onnxruntime").symlink_to(other / "onnxruntime")

    monkeypatch.setattr(fetch, "_install", copied)
    for _ in range(2):
        (found,) = find_installations(["9.8.7"], install=True)
        assert found.folder == kept_in("onnxruntime", "9.8.7").resolve()
    assert fetched == ["onnxruntime==9.8.7"]
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(UserError, match="can be written by all users"):
        find_installations(["9.8.7"])


def test_what_another_process_fetched_meanwhile_is_kept(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "it"

    def slow(_: str, target: Path) -> None:
        for each, whose in ((target, "mine"), (folder, "theirs")):
            (each / "onnxruntime").mkdir(parents=True)
            (each / "whose").write_text(whose)

    monkeypatch.setattr(fetch, "_install", slow)
    fetch.fetch("onnxruntime==9.8.7", folder)
    assert (folder / "whose").read_text() == "theirs"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (["WARNING: ... Failed to establish a new connection: ..."], "pip reaches no package"),
        (["No module named pip"], "this Python has no pip"),
        (
            ["ERROR: Could not find a version (from versions: 1.1, 1.2)", "ERROR: No match"],
            "no such version for this Python and this machine; there are ..., 1.1, 1.2",
        ),
        (["ERROR: No space left on device"], "pip failed: No space left on device"),
        ([], "pip failed: it said nothing"),
    ],
)
def test_what_pip_says_becomes_one_line(
    said: Sequence[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "\n".join(said), "")

    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(UserError, match=line):
        fetch.fetch("onnxruntime==1.3", tmp_path / "cache" / "it")
    assert list((tmp_path / "cache").iterdir()) == []
