"""Calibration data: read, taken apart, and refused with one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ortkit.errors import UserError
from ortkit.graph.io.save import save_model
from ortkit.precision.calibrate import find_ranges, read_sets
from ortkit.verify.exchange import write_feeds
from tests.precision.helpers import floats, model_of

FIXED = "g (float[1, 3] x, float[1, 2] z) => (float[1, 3] y) { y = MatMul(x, w) }"
OPEN = "g (float[n, 3] x) => (float[n, 3] y) { y = MatMul(x, w) }"
W = floats(3, 3)


def test_a_file_is_one_sample_and_a_folder_many(tmp_path: Path) -> None:
    model = model_of(OPEN, w=W)
    for name in ("b", "a"):
        np.savez(tmp_path / f"{name}.npz", x=floats(5, 3, seed=ord(name)), y=floats(5, 3))
    sets = read_sets(tmp_path, model)
    np.testing.assert_array_equal(sets[0]["x"], floats(5, 3, seed=ord("a")))
    assert [list(feeds) for feeds in sets] == [["x"], ["x"]]
    assert len(read_sets(tmp_path / "a.npz", model)) == 1


def test_samples_of_a_fixed_batch_are_taken_apart(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", x=floats(5, 3), z=floats(5, 2))
    sets = read_sets(tmp_path / "many.npz", model_of(FIXED, w=W))
    assert len(sets) == 5
    np.testing.assert_array_equal(sets[3]["x"], floats(5, 3)[3:4])
    np.testing.assert_array_equal(sets[3]["z"], floats(5, 2)[3:4])


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def text_file(folder: Path) -> Path:
    (folder / "a.npz").write_text("no arrays")
    return folder


def empty(folder: Path) -> Path:
    (folder / "readme.txt").touch()
    return folder


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no such file": (lambda folder: folder / "no.npz", "no such file or folder"),
    "empty folder": (empty, "holds no .npz file"),
    "not an npz": (text_file, "not an npz file"),
    "no arrays": (lambda folder: save(folder / "a.npz"), "holds no inputs"),
    "outputs only": (lambda folder: save(folder / "a.npz", y=W), "holds no inputs"),
    "missing input": (lambda folder: save(folder / "a.npz", x=W[:1]), "input 'z' is missing"),
    "unknown input": (
        lambda folder: save(folder / "a.npz", x=W[:1], z=W[:1, :2], q=W), "has no input 'q'"),
    "wrong shape": (
        lambda folder: save(folder / "a.npz", x=W[:1, :2], z=W[:1, :2]), "has shape [1, 2]"),
    "counts differ": (
        lambda folder: save(folder / "a.npz", x=W, z=W[:2, :2]), "has shape [3, 3]"),
    "wrong rank": (lambda folder: save(folder / "a.npz", x=W[0], z=W[0]), "has shape [3]"),
    "wrong type": (
        lambda folder: save(folder / "a.npz", x=W[:1].astype(int), z=W[:1, :2]), "is int64"),
    "NaN": (
        lambda folder: save(folder / "a.npz", x=W[:1] * np.nan, z=W[:1, :2]), "holds NaN"),
    "no elements": (
        lambda folder: save(folder / "a.npz", x=W[:0], z=W[:0, :2]), "is empty"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), BAD.values(), ids=BAD)
def test_bad_data_are_refused(make: Callable[[Path], Path], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^[^\n]+$") as caught:
        read_sets(make(tmp_path), model_of(FIXED, w=W))
    assert said in str(caught.value)


def test_ranges_are_of_all_samples(tmp_path: Path) -> None:
    path = save_model(model_of(OPEN, w=W), tmp_path / "m.onnx").model
    for number, factor in enumerate((1, -3)):
        write_feeds(tmp_path / str(number), {"x": factor * np.ones((2, 3), np.float32)})
    sets = [tmp_path / "0", tmp_path / "1"]
    found = find_ranges(path, sets, ["minmax"], ["MatMul"], tmp_path / "found")["minmax"]
    assert found["x"] == (-3.0, 1.0)
    column = W.sum(axis=0)
    assert found["y"] == pytest.approx((min((-3 * column).min(), column.min()),
                                        max((-3 * column).max(), column.max())))  # fmt: skip


def test_a_failing_calibration_says_so(tmp_path: Path) -> None:
    path = save_model(model_of(OPEN, w=W), tmp_path / "m.onnx").model
    write_feeds(tmp_path / "0", {"x": floats(2, 4)})
    with pytest.raises(UserError, match="calibrate: calibration failed"):
        find_ranges(path, [tmp_path / "0"], ["minmax"], ["MatMul"], tmp_path / "found")
