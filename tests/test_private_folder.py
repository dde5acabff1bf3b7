"""Folders that others can write to: each is refused with a line that says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ortkit.private_folder import make_private_folder, private_folder_refusal, read_private

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have no owners here")
Give = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`tmp_path/above/folder`, which only its user can write to."""
    for path in (tmp_path / "above", tmp_path / "above" / "folder"):
        path.mkdir()
        path.chmod(0o755)
    return tmp_path / "above" / "folder"


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Make something another user's; where only root may, what is there becomes another's."""

    def give_away(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 12_345, -1, follow_symlinks=False)
        else:
            other = os.geteuid() + 1
            monkeypatch.setattr(os, "geteuid", lambda: other)

    return give_away


def test_a_folder_of_ones_own_is_private(folder: Path) -> None:
    assert private_folder_refusal(folder) == ""
    assert private_folder_refusal(folder / "not" / "there") == ""
    assert private_folder_refusal(folder / ".." / "folder") == ""


@pytest.mark.parametrize(("mode", "who"), [(0o775, "its group"), (0o757, "all users")])
@pytest.mark.parametrize("sticky", [0, 0o1000])
def test_a_folder_that_others_can_write_to(mode: int, who: str, sticky: int, folder: Path) -> None:
    folder.chmod(mode | sticky)
    line = f"{folder} can be written by {who} (mode {mode | sticky:04o}): chmod go-w {folder}"
    assert private_folder_refusal(folder) == line
    above = private_folder_refusal(folder / "below")
    assert above == ("" if sticky else line)


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_folder_above_that_others_can_write_to(mode: int, folder: Path) -> None:
    folder.parent.chmod(mode)
    assert f"chmod go-w {folder.parent}" in private_folder_refusal(folder)
    folder.parent.chmod(0o1777)
    assert private_folder_refusal(folder) == ""


@pytest.mark.parametrize("which", ["folder", "above"])
def test_a_folder_of_another_user(which: str, folder: Path, give: Give) -> None:
    give(folder if which == "folder" else folder.parent)
    assert "belongs to another user (uid " in private_folder_refusal(folder)
    assert "\n" not in private_folder_refusal(folder)


def test_roots_folders_are_private_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    assert private_folder_refusal(Path("/usr")) == ""


def test_links_are_followed(folder: Path, give: Give) -> None:
    link, relative = folder.parent / "link", folder.parent / "relative"
    link.symlink_to(folder)
    relative.symlink_to("folder/../folder")
    assert private_folder_refusal(link) == private_folder_refusal(relative / "below") == ""
    folder.chmod(0o777)
    assert f"{folder} can be written" in private_folder_refusal(link)
    assert f"{folder} can be written" in private_folder_refusal(relative / "below")
    folder.chmod(0o755)
    give(link)
    assert "another user" in private_folder_refusal(link)


def test_links_in_a_circle(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert "cannot be examined" in private_folder_refusal(folder / "a")


def test_folders_are_made_for_their_user_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        make_private_folder(folder / "one" / "two")
        make_private_folder(folder / "one" / "two")
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o7777 for path in (folder / "one", folder / "one" / "two")]
    assert modes == [0o700, 0o700]


def test_a_folder_that_others_can_write_to_is_not_made_into_a_private_one(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by all users"):
        make_private_folder(folder / "below")
    folder.chmod(0o1777)
    make_private_folder(folder / "below")


def test_a_file_is_read_if_only_its_user_can_write_it(folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(b"content")
    path.chmod(0o644)
    assert read_private(path) == b"content"
    for mode in (0o664, 0o646):
        path.chmod(mode)
        with pytest.raises(PermissionError, match=f"chmod go-w {path}"):
            read_private(path)
    path.chmod(0o644)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match=f"chmod go-w {folder}"):
        read_private(path)


def test_a_file_of_another_user_is_not_read(folder: Path, give: Give) -> None:
    path = folder / "file"
    path.write_bytes(b"content")
    path.chmod(0o644)
    give(path)
    with pytest.raises(PermissionError, match="another user"):
        read_private(path)


def test_what_is_no_file_is_not_read(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    (folder / "link").symlink_to("file")
    os.mkfifo(folder / "pipe")
    for name in ("link", "pipe", "absent", "."):
        with pytest.raises(OSError, match=r"."):
            read_private(folder / name)
