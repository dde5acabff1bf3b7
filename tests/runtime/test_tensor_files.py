"""Tensors on disk, as children that run sessions read and write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortkit.runtime.tensor_files import plain_item


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
