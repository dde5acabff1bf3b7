"""Tensors on disk, as children that run sessions read and write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortkit.runtime.tensor_files import MANIFEST, plain_item, write_manifest


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=np.int16).reshape(2, 3).T, np.array(2.5), np.zeros((0, 4), np.float32)],
)
def test_a_file_holds_the_elements_in_order(array: np.ndarray, tmp_path: Path) -> None:
    item = plain_item(array, tmp_path, "0.bin")
    assert item["shape"] == list(array.shape)
    assert (tmp_path / "0.bin").read_bytes() == array.tobytes()


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    (tmp_path / "0.bin").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        plain_item(np.ones(3, np.float32), tmp_path, "0.bin")


def test_a_killed_run_leaves_no_half_of_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads takes the results of runs that have a manifest."""
    write = Path.write_text

    def killed(path: Path, text: str, encoding: str) -> int:
        write(path, text[: len(text) // 2], encoding=encoding)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        write_manifest(tmp_path, [{"name": "y", "kind": "none", "items": []}])
    assert not (tmp_path / MANIFEST).exists()
