"""Copies of a folder without its models: links, subfolders, and what is no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ortkit.errors import UserError
from ortkit.runtime.model_folder import copy_others


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder as download caches have it: links to files with names of their own."""
    (tmp_path / "blobs").mkdir()
    for name in ("config", "model", "tokens"):
        (tmp_path / "blobs" / name).write_text(name)
    found = tmp_path / "snapshots" / "one"
    (found / "inner").mkdir(parents=True)
    (found / "config.json").symlink_to("../../blobs/config")
    (found / "model.onnx").symlink_to("../../blobs/model")
    (found / "inner" / "tokens.txt").symlink_to("../../../blobs/tokens")
    (found / "same.txt").symlink_to("../../blobs/model")
    return found


def copied(folder: Path) -> Path:
    target = folder.parents[1] / "copy"
    copy_others(folder, target, frozenset({folder / "model.onnx"}), folder / "config.json")
    return target


def test_links_of_a_download_cache_become_files(folder: Path) -> None:
    target = copied(folder)
    found = {
        str(path.relative_to(target)): path.read_text()
        for path in target.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    assert found == {"config.json": "config", "inner/tokens.txt": "tokens", "same.txt": "model"}


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("../../secret", "secret.txt: is a link out of the folder"),
        ("/dev/zero", "secret.txt: is a link out of the folder"),
        (".", "secret.txt: is a link to a folder"),
        ("nowhere", "nowhere: cannot be copied: No such file"),
    ],
)
def test_links_elsewhere_are_not_followed(folder: Path, to: str, said: str) -> None:
    (folder.parents[1] / "secret").write_text("secret")
    (folder / "secret.txt").symlink_to(to)
    with pytest.raises(UserError, match=said):
        copied(folder)


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(UserError, match="pipe: is neither a file nor a folder"):
        copied(folder)
